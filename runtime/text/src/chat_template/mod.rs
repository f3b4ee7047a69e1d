//! The model's chat template: Jinja as transformers runs it, with Python's methods on strings and dictionaries.
//!
//! ```text
//! messages ──► conversation: arrangements that a template may take ──► environment (fuel) ──► text of bounded length
//!                                                                       └─ json, strftime
//! ```

mod conversation;
mod environment;
mod json;
mod strftime;

use std::io;

use minijinja::{Environment, ErrorKind, Value, context};
use unicorn_artifact::TokenizerSection;

use self::conversation::{arrangements, marked, missing_mark};
use self::environment::{environment, seconds_since_1970, without_generation_tags};
use crate::error::TextError;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `developer` (another name of `system`), `user`, `assistant`, or another role that the template has.
    pub role: String,
    /// The text.
    pub content: String,
}

/// Further variables of a template, by name: what llama-server and vLLM call `chat_template_kwargs`. Templates of models that
/// reason read `enable_thinking` (a boolean) or `reasoning_effort` (a text).
pub type TemplateArguments = serde_json::Map<String, serde_json::Value>;

/// A model's chat template, parsed. May be used by several threads at once.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    max_bytes: usize,
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
            .add_template_owned(TEMPLATE_NAME, without_generation_tags(&source))
            .map_err(|error| TextError::ChatTemplate { detail: shown(&error) })?;
        let (bos_token, eos_token) = (section.bos_token.clone(), section.eos_token.clone());
        let max_bytes = (context_tokens as usize).saturating_mul(MAX_TOKEN_BYTES);
        Ok(ChatTemplate { environment, source, bos_token, eos_token, max_bytes })
    }

    /// The conversation as the text that the model was trained on, up to where its next answer begins. Special tokens are written
    /// out: encode it with [`Tokenizer::encode`](crate::Tokenizer::encode), which adds none.
    ///
    /// Every message is part of the text, or it is an error. A system message that the template rejects or leaves out becomes the
    /// beginning of the first user message, and several of them become one.
    ///
    /// # Errors
    /// [`TextError::Conversation`], with the template's message if it rejects the conversation (`raise_exception`);
    /// [`TextError::DroppedMessage`] if it has no place for a role; [`TextError::TemplateArgument`] for an argument that stands for
    /// something else; [`TextError::TemplateSteps`] and [`TextError::TemplateOutput`] if it does not end.
    pub fn render(&self, messages: &[Message], arguments: &TemplateArguments) -> Result<String, TextError> {
        if let Some(name) = RESERVED.into_iter().find(|name| arguments.contains_key(*name)) {
            return Err(TextError::TemplateArgument { name: name.to_owned() });
        }
        let mut rejected = None;
        for arrangement in arrangements(messages) {
            match self.render_whole(&arrangement, arguments) {
                Err(error @ (TextError::Conversation { .. } | TextError::DroppedMessage { .. })) => {
                    rejected = Some(error);
                }
                rendered => return rendered,
            }
        }
        Err(rejected.expect("there is at least one arrangement"))
    }

    /// The template's text, Jinja.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template reads the variable `name`, for example `enable_thinking`.
    pub fn reads(&self, name: &str) -> bool {
        self.template().undeclared_variables(false).contains(name)
    }

    /// An error if a message is not part of the text.
    fn render_whole(&self, messages: &[Message], arguments: &TemplateArguments) -> Result<String, TextError> {
        let text = self.render_once(messages, arguments)?;
        // Contents may be changed on the way (trimmed, written as JSON, without their reasoning), marks are not. A template that
        // rejects the marks says nothing of the messages.
        if let Ok(with_marks) = self.render_once(&marked(messages), arguments)
            && let Some(index) = missing_mark(messages, &with_marks)
        {
            return Err(TextError::DroppedMessage { role: messages[index].role.clone(), number: index + 1 });
        }
        Ok(text)
    }

    fn render_once(&self, messages: &[Message], arguments: &TemplateArguments) -> Result<String, TextError> {
        let own = context! {
            messages => messages.iter().map(Message::value).collect::<Vec<_>>(),
            add_generation_prompt => true,
            tools => (),
            documents => (),
        };
        let tokens = context! { bos_token => self.bos_token.as_deref(), eos_token => self.eos_token.as_deref() };
        let mut output = BoundedOutput { text: Vec::new(), max_bytes: self.max_bytes };
        let rendered = self
            .template()
            .render_captured_to(context! { ..own, ..map(arguments), ..tokens }, &mut output)
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

impl Message {
    /// A message of `role` with the text `content`.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into() }
    }

    /// A dictionary, as templates expect it.
    fn value(&self) -> Value {
        context! { role => self.role.as_str(), content => self.content.as_str() }
    }
}

/// A JSON object as a dictionary of the template.
fn map(object: &TemplateArguments) -> Value {
    object.iter().map(|(name, value)| (name.as_str(), json(value))).collect()
}

fn json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64()),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(json).collect(),
        serde_json::Value::Object(object) => map(object),
    }
}

/// Without a file extension, so that nothing is escaped as HTML.
const TEMPLATE_NAME: &str = "chat";

/// Variables that a rendering sets itself.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// More bytes of text than a token has, on average. The longest tokens of common vocabularies are runs of 512 spaces.
const MAX_TOKEN_BYTES: usize = 1 << 10;

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

/// An error's own words, without minijinja's word for its kind where it has more to say, and where it happened.
fn shown(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    format!("{what}{}", line(error))
}

/// ` (line N of the template)`, if the error has a place.
fn line(error: &minijinja::Error) -> String {
    error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEMMA: &str = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\
        {% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
        {{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

    const CHATML: &str = "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + \
        messages[0].content + '<|im_end|>\\n' }}\n{%- endif %}\n{%- for message in messages %}\n    \
        {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or \
        message.role.startswith('assist') %}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + \
        '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
        {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

    const LLAMA3: &str = "{{- bos_token }}\n{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n\
        {%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n    \
        {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n\
        {{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{%- if tools is not none %}\n    \
        {{- \"Environment: ipython\\n\" }}\n{%- endif %}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}\n\
        {%- for message in messages %}\n    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ \
        message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n";

    fn template(source: &str) -> Result<ChatTemplate, TextError> {
        let section = TokenizerSection {
            chat_template: Some(source.into()),
            bos_token: Some("<bos>".into()),
            eos_token: Some("<eos>".into()),
            ..TokenizerSection::default()
        };
        ChatTemplate::new(&section, 4)
    }

    fn render(source: &str, turns: &[(&'static str, &str)]) -> String {
        let messages: Vec<Message> = turns.iter().map(|&(role, content)| Message::new(role, content)).collect();
        template(source).unwrap().render(&messages, &TemplateArguments::new()).unwrap()
    }

    #[test]
    fn gemma() {
        assert_eq!(
            render(GEMMA, &[("user", " Hi <b> "), ("assistant", "Hello"), ("user", "Bye")]),
            "<bos><start_of_turn>user\nHi <b><end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n\
             <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
        );
    }

    #[test]
    fn chatml() {
        assert_eq!(
            render(CHATML, &[("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", "1 & 2")]),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n\
             <|im_start|>user\n1 & 2<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn llama3() {
        assert_eq!(
            render(LLAMA3, &[("system", " Be brief. "), ("user", "Hi")]),
            "<bos><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\
             \n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        );
    }

    #[test]
    fn blocks_leave_no_line_of_their_own() {
        let source =
            "{% for message in messages %}\n  {% if true %}\n{{ message.content }}\n  {% endif %}\n{% endfor %}\n";
        assert_eq!(render(source, &[("user", "a"), ("user", "b")]), "a\nb\n");
    }

    #[test]
    fn functions_and_blocks_of_transformers_are_supported() {
        assert_eq!(
            render("{{ messages[0] | tojson }}", &[("user", r"<a>\u003cé")]),
            r#"{"role": "user", "content": "<a>\\u003cé"}"#
        );
        assert_eq!(render("{{ [1, 2] | tojson(indent=1, ensure_ascii=false) }}", &[]), "[\n 1,\n 2\n]");
        assert_eq!(render("{{ strftime_now('%Y') | length }}", &[]), "4");
        assert_eq!(render("a{%- generation -%} b {%- endgeneration %}c", &[]), "abc");
        assert_eq!(
            render("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", &[]),
            "1"
        );
    }

    #[test]
    fn a_template_s_own_error_is_quoted() {
        let error = template("{{ raise_exception('roles must alternate') }}").unwrap().render(&[], &TemplateArguments::new()).unwrap_err();
        assert!(matches!(error, TextError::Conversation { detail } if detail.contains("roles must alternate")));
        assert!(template("{% for %}").is_err());
    }
}
