//! The model's chat template: Jinja as transformers runs it, with Python's methods on strings and dictionaries.
//!
//! ```text
//! messages ──► conversation: arrangements that a template may take ──► environment ──► text of bounded length
//!                                           template ──► dialect ─────────┘ └─ json, strftime
//! ```

mod call_ids;
mod conversation;
mod dialect;
mod dictionary;
mod environment;
mod json;
mod message;
mod named;
mod observations;
mod plain_tools;
mod strftime;

use std::panic::resume_unwind;
use std::{io, thread};

use minijinja::{Environment, ErrorKind, Value, context};
use unicorn_artifact::TokenizerSection;

use self::call_ids::with_short_ids;
use self::conversation::{arrangements, marked, missing_mark};
use self::dialect::for_minijinja;
use self::dictionary::{Dictionary, dictionary, from_json};
use self::environment::{environment, seconds_since_1970};
pub use self::message::Message;
use self::message::text_parts;
use self::observations::with_observations;
use self::plain_tools::without_tools;
use self::strftime::strftime;
use crate::error::TextError;
use crate::reply::{ReasoningMarks, ReplyFormat, ToolFormat};

/// Further variables of a template, by name: what llama-server and vLLM call `chat_template_kwargs`. Templates of models that
/// reason read `enable_thinking` (a boolean) or `reasoning_effort` (a text).
pub type TemplateArguments = serde_json::Map<String, serde_json::Value>;

/// A model's chat template, parsed. Cloning is cheap: clones share the parsed template. May be used by several threads at once.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    max_bytes: usize,
    reads_tools: bool,
}

/// What a template reads in addition to the messages.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    tools: &'a [serde_json::Value],
    arguments: &'a TemplateArguments,
    /// Whether the text ends with the beginning of an answer.
    begins_reply: bool,
}

impl ChatTemplate {
    /// Parses the template of an artifact's tokenizer section, for conversations of at most `context_tokens`: a rendering ends
    /// with an error once its text is longer than any that fits.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`] or [`TextError::ChatTemplate`].
    pub fn new(section: &TokenizerSection, context_tokens: u32) -> Result<ChatTemplate, TextError> {
        ChatTemplate::at(section, context_tokens, seconds_since_1970)
    }

    /// The same, with the seconds since 1970 that `now` returns.
    fn at(section: &TokenizerSection, context_tokens: u32, now: fn() -> u64) -> Result<ChatTemplate, TextError> {
        let source = section.chat_template.clone().ok_or(TextError::NoChatTemplate)?;
        let mut environment = environment(now);
        environment
            .add_template_owned(TEMPLATE_NAME, for_minijinja(&source))
            .map_err(|error| TextError::ChatTemplate { detail: shown(&error) })?;
        let (bos_token, eos_token) = (section.bos_token.clone(), section.eos_token.clone());
        let max_bytes = (context_tokens as usize).saturating_mul(MAX_TOKEN_BYTES);
        let mut template = ChatTemplate { environment, source, bos_token, eos_token, max_bytes, reads_tools: false };
        template.reads_tools = template.reads("tools");
        Ok(template)
    }

    /// The conversation as the text that the model was trained on, up to where its next answer begins. Special tokens are written
    /// out: encode it with [`Tokenizer::encode`](crate::Tokenizer::encode), which adds none.
    ///
    /// Every message is part of the text, or it is an error. A system message that the template rejects or leaves out becomes the
    /// beginning of the first user message, and several of them become one. Where the template rejects or leaves out a later one, that is a
    /// part of the user's message beside it; where it rejects several messages of one role in a row, they become one.
    ///
    /// # Errors
    /// [`TextError::Conversation`], with the template's message if it rejects the conversation (`raise_exception`);
    /// [`TextError::DroppedMessage`] if it has no place for a role; [`TextError::TemplateArgument`] for an argument that stands for
    /// something else; [`TextError::TemplateSteps`] and [`TextError::TemplateOutput`] if it does not end;
    /// [`TextError::TemplateThread`] without address space for its stack.
    pub fn render(&self, messages: &[Message], arguments: &TemplateArguments) -> Result<String, TextError> {
        self.checked(messages, &Surroundings { tools: &[], arguments, begins_reply: true })
    }

    /// The same where the model may call `tools`, declared as in OpenAI's API. A template that has no place for tools gets them, and
    /// calls and results of the conversation, as text.
    ///
    /// # Errors
    /// Errors of [`ChatTemplate::render`].
    pub fn render_with_tools(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        arguments: &TemplateArguments,
    ) -> Result<String, TextError> {
        self.render_arranged(messages, &Surroundings { tools, arguments, begins_reply: true })
    }

    /// The same up to the end of the last message: without the beginning of an answer.
    ///
    /// # Errors
    /// Errors of [`ChatTemplate::render`].
    pub fn render_history(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        arguments: &TemplateArguments,
    ) -> Result<String, TextError> {
        self.render_arranged(messages, &Surroundings { tools, arguments, begins_reply: false })
    }

    /// The template of a family, by llama-server's name for it; `None`: no family that is known here.
    pub fn named(name: &str) -> Option<&'static str> {
        named::TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
    }

    /// Names of [`ChatTemplate::named`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        named::TEMPLATES.iter().map(|(name, _)| *name)
    }

    /// How a reply to a conversation with this template is to be read.
    pub fn reply_format(&self, has_tools: bool) -> ReplyFormat {
        ReplyFormat::of_template(&self.source, self.reads_tools, has_tools)
    }

    /// Tools become text where the template has no place for them, results observations where it has that role for them, and ids of calls
    /// short where it refuses others.
    fn render_arranged(&self, messages: &[Message], around: &Surroundings<'_>) -> Result<String, TextError> {
        let uses_tools = !around.tools.is_empty() || messages.iter().any(|message| message.uses_tools());
        let is_for = |format: ToolFormat| self.reply_format(true).tools == Some(format);
        match uses_tools {
            true if !self.reads_tools => {
                self.checked(&without_tools(messages, around.tools), &Surroundings { tools: &[], ..*around })
            }
            true if is_for(ToolFormat::Glm4) => self.checked(&with_observations(messages), around),
            true if is_for(ToolFormat::Mistral) => self.checked(&with_short_ids(messages), around),
            _ => self.checked(messages, around),
        }
    }

    fn checked(&self, messages: &[Message], around: &Surroundings<'_>) -> Result<String, TextError> {
        if let Some(name) = RESERVED.into_iter().find(|name| around.arguments.contains_key(*name)) {
            return Err(TextError::TemplateArgument { name: name.to_owned() });
        }
        on_deep_stack(|| self.render_first_arrangement(messages, around))?
    }

    /// The first arrangement of `messages` that the template accepts.
    fn render_first_arrangement(&self, messages: &[Message], around: &Surroundings<'_>) -> Result<String, TextError> {
        let mut rejected: Option<(Vec<Message>, TextError)> = None;
        for arrangement in arrangements(messages) {
            if rejected.as_ref().is_some_and(|(before, _)| *before == arrangement) {
                continue;
            }
            match self.render_whole(&arrangement, around) {
                Err(error @ (TextError::Conversation { .. } | TextError::DroppedMessage { .. })) => {
                    rejected = Some((arrangement, error));
                }
                rendered => return rendered,
            }
        }
        Err(rejected.expect("there is at least one arrangement").1)
    }

    /// The template's text, Jinja.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template reads the variable `name`, for example `enable_thinking`.
    pub fn reads(&self, name: &str) -> bool {
        self.template().undeclared_variables(false).contains(name)
    }

    /// The variable by which the model reasons or does not: `thinking` in templates of Granite and DeepSeek. `None`: there is none.
    pub fn reasoning_switch(&self) -> Option<&'static str> {
        let variables = self.template().undeclared_variables(false);
        ["enable_thinking", "thinking"].into_iter().find(|name| variables.contains(*name))
    }

    /// An error if a message is not part of the text.
    fn render_whole(&self, messages: &[Message], around: &Surroundings<'_>) -> Result<String, TextError> {
        let text = self.render_once(messages, around)?;
        // Contents may be changed on the way (trimmed, written as JSON, without their reasoning), marks are not. A template that
        // rejects the marks allows no conclusion on the messages.
        if let Ok(with_marks) = self.render_once(&marked(messages), around)
            && let Some(index) = missing_mark(messages, &with_marks)
        {
            return Err(TextError::DroppedMessage { role: messages[index].role.clone(), number: index + 1 });
        }
        Ok(text)
    }

    fn render_once(&self, messages: &[Message], around: &Surroundings<'_>) -> Result<String, TextError> {
        let in_parts = messages.iter().any(Message::has_parts) && self.goes_through_parts();
        let thinks_in_parts = self.thinks_in_parts();
        let values = messages.iter().map(|message| message.value(in_parts, thinks_in_parts)).collect();
        let mut text = self.render_values(values, around)?;
        // Gemma 4's template leaves it out behind a result, if there is text beside the call.
        if around.begins_reply && text.ends_with(GEMMA4_TURN[1]) {
            text += GEMMA4_TURN[0];
        }
        Ok(text)
    }

    /// Whether reasoning is a part of the assistant's content, as in the templates of Ministral 3 and Magistral.
    fn thinks_in_parts(&self) -> bool {
        self.reply_format(false).marks == ReasoningMarks::Brackets && self.source.contains("'thinking'")
    }

    /// Whether a content that is a list of a text becomes what the text becomes, and of a list of two nothing is left out.
    fn goes_through_parts(&self) -> bool {
        let arguments = TemplateArguments::new();
        let around = Surroundings { tools: &[], arguments: &arguments, begins_reply: true };
        let rendered = |content: Value| {
            let message: Dictionary = [("role", "user".into()), ("content", content)].into_iter().collect();
            self.render_values(vec![message.into()], &around).unwrap_or_default()
        };
        let [first, second] = PROBES;
        let (one, both) = (rendered(text_parts(&[first])), rendered(text_parts(&PROBES)));
        both.contains(first) && both.contains(second) && one == rendered(first.into())
    }

    fn render_values(&self, messages: Vec<Value>, around: &Surroundings<'_>) -> Result<String, TextError> {
        let &Surroundings { tools, arguments, begins_reply } = around;
        // Templates test whether there are tools.
        let tools = if tools.is_empty() { Value::from(()) } else { tools.iter().map(from_json).collect() };
        let own = context! {
            messages => messages,
            add_generation_prompt => begins_reply,
            tools => tools,
            documents => (),
        };
        let tokens = context! { bos_token => self.bos_token.as_deref(), eos_token => self.eos_token.as_deref() };
        let mut output = BoundedOutput { text: Vec::new(), max_bytes: self.max_bytes };
        let rendered = self
            .template()
            .render_captured_to(context! { ..own, ..dictionary(arguments), ..tokens }, &mut output)
            .map(|_| ());
        match rendered {
            Ok(()) => Ok(String::from_utf8(output.text).expect("templates write text")),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(TextError::TemplateSteps { at: line(&error) }),
            Err(error) if error.kind() == ErrorKind::WriteFailure => {
                Err(TextError::TemplateOutput { max_bytes: self.max_bytes })
            }
            Err(error) => Err(TextError::Conversation { detail: shown(&error) }),
        }
    }

    fn template(&self) -> minijinja::Template<'_, '_> {
        self.environment.get_template(TEMPLATE_NAME).expect("added when the template was parsed")
    }
}

/// Today's date in UTC, in the form of Python's `strftime`: for variables of a template that are a date.
pub fn today(format: &str) -> String {
    strftime(format, seconds_since_1970())
}

/// Name of the template, without a file extension, so that nothing is escaped as HTML.
const TEMPLATE_NAME: &str = "chat";

/// Contents by which a template shows what it does with parts: letters only, which no filter changes.
const PROBES: [&str; 2] = ["contentinparts", "anotherpart"];

/// What begins a turn of Gemma 4, and what ends one.
const GEMMA4_TURN: [&str; 2] = ["<|turn>model\n", "<turn|>\n"];

/// Variables that a rendering sets itself.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// More bytes of text than a token has, on average. The longest tokens of common vocabularies are runs of 512 spaces.
const MAX_TOKEN_BYTES: usize = 1 << 10;

/// Address space for the stack of a rendering. A step nests a value by one level at most; minijinja writes a level with some 650 bytes of
/// stack, and drops one with less.
const STACK_BYTES: usize = 768 << 20;

/// Runs `work` with a stack for values as deep as the steps of a rendering can nest them: they are written and dropped by recursion, and
/// an overflow would end the process.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TextError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work);
        let thread = thread.map_err(|error| TextError::TemplateThread { detail: error.to_string() })?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// What a template has written, at most `max_bytes`.
struct BoundedOutput {
    text: Vec<u8>,
    max_bytes: usize,
}

impl io::Write for &mut BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max_bytes - self.text.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error's message, without minijinja's name of its kind where the message has more detail, and where it happened.
fn shown(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    format!("{what}{}", line(error))
}

/// ` (line N of the template)`, if the error has a place.
fn line(error: &minijinja::Error) -> String {
    error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default()
}

#[cfg(test)]
mod families;
#[cfg(test)]
mod tests;
