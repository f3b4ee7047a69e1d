//! A conversation with a model.

use std::sync::Arc;

use unicorn_artifact::ImageSection;
use unicorn_runtime::{CancelToken, DraftCounts, FeedProgress, Image, Model, Sampling, Session, Speculation};

use crate::chat_template::{ChatTemplate, Message, TemplateArguments};
use crate::context_window::{Window, first_kept};
use crate::continuation::Continuation;
use crate::error::TextError;
use crate::images::{encode_with_images, without_marks};
use crate::output::{EndReason, StopConditions};
use crate::reply::ReplyFormat;
use crate::sampling::default_sampling;
use crate::token_sampler::AnswerConstraint;
use crate::tokenizer::Tokenizer;

/// A conversation: a session of a model with its tokenizer and chat template, and the messages so far. It keeps the model loaded,
/// can be stored in a struct and sent to another thread.
///
/// When the conversation no longer fits the context, its oldest turns are left out of the prompt; the system message stays.
///
/// ```no_run
/// use unicorn_text::{Chat, ChatOptions};
///
/// # fn example(model: &unicorn_text::unicorn_runtime::Model) -> Result<(), unicorn_text::TextError> {
/// let mut options = ChatOptions::default();
/// options.system = Some("Be brief.".to_owned());
/// let mut chat = Chat::new(model, options)?;
/// for piece in chat.ask("What is the capital of France?")? {
///     print!("{}", piece?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Chat {
    session: Session,
    context_tokens: u32,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stop_tokens: Vec<u32>,
    /// `None`: the model takes no images.
    image: Option<ImageSection>,
    options: ChatOptions,
    history: Vec<Message>,
    /// Index of the first message of `history` that is part of prompts.
    first: usize,
}

/// Options of a [`Chat`]. They may be changed between two questions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatOptions {
    /// The system message. Default: none.
    pub system: Option<String>,
    /// Further variables of the chat template, such as `enable_thinking`. Default: none.
    pub template_arguments: TemplateArguments,
    /// How tokens are sampled. Default: [`default_sampling`], whose seed is random.
    pub sampling: Sampling,
    /// Most tokens of an answer; `None`, the default: until the model ends it or the context is full.
    pub max_tokens: Option<u32>,
    /// Strings that end an answer, in addition to the model's stop tokens. Default: none.
    pub stop_strings: Vec<String>,
    /// What answers have to match. Default: nothing.
    pub constraint: Option<Arc<dyn AnswerConstraint>>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions {
            system: None,
            template_arguments: TemplateArguments::new(),
            sampling: default_sampling(),
            max_tokens: None,
            stop_strings: Vec::new(),
            constraint: None,
        }
    }
}

impl Chat {
    /// An empty conversation in a new session of `model`. Blocks for as long as its tokenizer takes to parse; where there are many
    /// chats, use [`Chat::with_parsed`].
    ///
    /// # Errors
    /// When the artifact has no tokenizer or chat template, or one that does not parse; when all sessions of the model are taken; and
    /// for a sampling parameter out of its range.
    pub fn new(model: &Model, options: ChatOptions) -> Result<Chat, TextError> {
        let section = model.tokenizer_section();
        let template = ChatTemplate::new(section, model.context_tokens())?;
        Chat::with_parsed(model, Tokenizer::new(section)?, template, options)
    }

    /// As [`Chat::new`], with the model's tokenizer and template, parsed before. A server parses them once and passes each chat a
    /// clone. Waits for no step.
    ///
    /// # Errors
    /// When all sessions of the model are taken, and for a sampling parameter out of its range.
    pub fn with_parsed(
        model: &Model,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        options: ChatOptions,
    ) -> Result<Chat, TextError> {
        options.sampling.check()?;
        let mut session = model.session()?;
        // Templates leave out what a model reasoned before its last answers.
        session.set_checkpoint(true);
        Ok(Chat {
            session,
            context_tokens: model.context_tokens(),
            tokenizer,
            template,
            stop_tokens: model.tokenizer_section().stop_ids.clone(),
            image: model.image().cloned(),
            options,
            history: Vec::new(),
            first: 0,
        })
    }

    /// Adds a message of the user, and returns the answer of the model, piece by piece. Blocks until the first token is sampled:
    /// only what is new since the last question is computed. The question and the text that was read are added to the history when
    /// the answer is dropped, unless it failed.
    ///
    /// Unless the answer can have a quarter of the context (or its maximum, if that is less), the oldest turns are left out of
    /// this prompt and of later ones, until half the context is free: see [`Chat::turns_left_out`].
    ///
    /// # Errors
    /// When the template rejects the conversation, question and system message alone do not fit the context, or the device fails.
    pub fn ask(&mut self, question: &str) -> Result<Answer<'_>, TextError> {
        self.ask_about(question, Vec::new())
    }

    /// The same about images, which come before the question.
    ///
    /// # Errors
    /// Errors of [`Chat::ask`], and [`TextError::Images`] where the model takes none.
    pub fn ask_about(&mut self, question: &str, images: Vec<Image>) -> Result<Answer<'_>, TextError> {
        let question = Message::new("user", without_marks(question)).with_images(images);
        let max_tokens = self.options.max_tokens.unwrap_or(u32::MAX);
        let window = Window::for_answer(self.context_tokens, max_tokens);
        let (prompt, first) = self.fit(window, self.first, Some(&question), "")?;
        self.first = first;
        self.answer(&prompt, Exchange::New { question }, "")
    }

    /// Whether turns before the last answer are still part of prompts, so that [`Chat::resume`] can leave some out.
    pub fn can_resume(&self) -> bool {
        self.first_later_turn().is_some()
    }

    fn first_later_turn(&self) -> Option<usize> {
        let is_answered = self.history.last().is_some_and(|last| last.role == ASSISTANT);
        turns(&self.history).find(|&turn| is_answered && turn > self.first)
    }

    /// Continues the last answer, which ended because the context was full, without the oldest turns. `None`: there are no turns
    /// before it that could be left out.
    ///
    /// # Errors
    /// Errors of [`Chat::ask`].
    pub fn resume(&mut self) -> Result<Option<Answer<'_>>, TextError> {
        let (Some(first), Some(last)) = (self.first_later_turn(), self.history.last()) else { return Ok(None) };
        let begun = last.content.clone();
        let (prompt, first) = self.fit(Window::for_rest(self.context_tokens), first, None, &begun)?;
        self.first = first;
        self.answer(&prompt, Exchange::Continued, &begun).map(Some)
    }

    /// A prompt, and the index of the first message of the history in it: `from`, or a later turn so that it fits.
    /// The prompt ends with `question`, or where it is `None`, with `begun` as the start of the last answer.
    fn fit(
        &self,
        window: Window,
        from: usize,
        question: Option<&Message>,
        begun: &str,
    ) -> Result<(Prompt, usize), TextError> {
        let system = self.options.system.as_ref().map(|content| Message::new("system", content.as_str()));
        let end = if question.is_some() { self.history.len() } else { self.history.len() - 1 };
        let prompt = |first: usize| {
            let kept = self.history[first..end].iter().chain(question);
            let messages: Vec<Message> = system.iter().chain(kept).cloned().collect();
            let text = self.template.render(&messages, &self.options.template_arguments)?;
            let format = self.template.reply_format(false).behind(&text);
            let images: Vec<Image> = messages.iter().flat_map(|message| message.images.iter().cloned()).collect();
            let encode = |piece: &str, _| self.tokenizer.encode(piece);
            let tokens = encode_with_images(&(text + begun), &images, self.image.as_ref(), encode)?;
            Ok(Prompt { tokens, format })
        };
        // Without all turns, only a question is left.
        let all_left_out = question.map(|_| end);
        let later = turns(&self.history[..end]).filter(|&turn| turn > from).chain(all_left_out);
        first_kept(window, from, later, prompt)
    }

    /// Generates an answer whose beginning `begun` is already in the prompt.
    fn answer(&mut self, prompt: &Prompt, exchange: Exchange, begun: &str) -> Result<Answer<'_>, TextError> {
        let conditions = StopConditions {
            max_tokens: self.options.max_tokens,
            stop_tokens: self.stop_tokens.clone(),
            stop_strings: self.options.stop_strings.clone(),
            ..StopConditions::default()
        };
        let (session, tokenizer, sampling) = (&mut self.session, &self.tokenizer, &self.options.sampling);
        let continuation = match &self.options.constraint {
            None => Continuation::new(session, tokenizer, &prompt.tokens, sampling, conditions)?,
            Some(constraint) => {
                let mut sampler = constraint.sampler(sampling, &prompt.format);
                let observed = tokenizer.encode(begun)?.into_iter().try_for_each(|token| sampler.observe(token));
                observed.map_err(|detail| TextError::Sample { detail })?;
                Continuation::with_sampler(session, tokenizer, &prompt.tokens, sampling, conditions, sampler)?
            }
        };
        let record = Some((exchange, &mut self.history));
        Ok(Answer { continuation, text: String::new(), record })
    }

    /// Messages of user and assistant so far, without the system message.
    pub fn history(&self) -> &[Message] {
        &self.history
    }

    /// Replaces the messages of user and assistant, for example by those of a conversation that was saved.
    pub fn set_history(&mut self, history: Vec<Message>) {
        (self.history, self.first) = (history, 0);
    }

    /// Removes the last question with its answer from the history, and returns the question.
    pub fn take_last_question(&mut self) -> Option<String> {
        let last = turns(&self.history).last()?;
        self.first = self.first.min(last);
        self.history.drain(last..).next().map(|question| question.content)
    }

    /// Turns of the history, from the oldest, that are left out of prompts because the context is full.
    pub fn turns_left_out(&self) -> usize {
        turns(&self.history).filter(|&turn| turn < self.first).count()
    }

    /// Starts a new conversation. What its prompts have in common with the old ones is still cached.
    pub fn clear(&mut self) {
        self.set_history(Vec::new());
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model's chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// The options of answers.
    pub fn options(&self) -> &ChatOptions {
        &self.options
    }

    /// The options of answers from now on.
    pub fn options_mut(&mut self) -> &mut ChatOptions {
        &mut self.options
    }

    /// Answers end with [`EndReason::Cancelled`] once `token` is cancelled, from any thread; reset it before the next question.
    pub fn set_cancel(&mut self, token: CancelToken) {
        self.session.set_cancel(token);
    }

    /// Answers from now on are generated with speculation, or without: see [`Session::set_speculation`].
    ///
    /// # Errors
    /// For an option out of its range.
    pub fn set_speculation(&mut self, speculation: Option<&Speculation>) -> Result<(), TextError> {
        Ok(self.session.set_speculation(speculation)?)
    }

    /// Drafts since the last call.
    pub fn take_draft_counts(&mut self) -> DraftCounts {
        self.session.take_draft_counts()
    }

    /// From now on, `progress` is called while [`Chat::ask`] feeds what is new of the conversation, on the thread that calls it.
    pub fn set_feed_progress(&mut self, progress: Option<FeedProgress>) {
        self.session.set_feed_progress(progress);
    }
}

/// What an answer follows.
struct Prompt {
    tokens: Vec<u32>,
    /// How the answer is read.
    format: ReplyFormat,
}

impl AsRef<[u32]> for Prompt {
    fn as_ref(&self) -> &[u32] {
        &self.tokens
    }
}

const ASSISTANT: &str = "assistant";

/// Indices of the messages that begin a turn: those of the user.
fn turns(history: &[Message]) -> impl Iterator<Item = usize> {
    history.iter().enumerate().filter(|(_, message)| message.role == "user").map(|(index, _)| index)
}

/// What an answer adds to the history.
enum Exchange {
    /// The question and the answer.
    New { question: Message },
    /// More text of the last answer.
    Continued,
}

/// The pieces of one answer: see [`Continuation`].
pub struct Answer<'c> {
    continuation: Continuation<'c>,
    text: String,
    /// What is added to which history; `None` after an error.
    record: Option<(Exchange, &'c mut Vec<Message>)>,
}

impl Answer<'_> {
    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Why the answer ended; `None` while it has not, and after an error.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.continuation.end_reason()
    }

    /// The answer as a continuation of the conversation's prompt: its tokens, and what was cached of the prompt.
    pub fn continuation(&self) -> &Continuation<'_> {
        &self.continuation
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<String, TextError>;

    /// Blocks until the next piece is whole, which takes a step or a few.
    fn next(&mut self) -> Option<Result<String, TextError>> {
        let piece = self.continuation.next()?;
        match &piece {
            Ok(text) => self.text += text,
            Err(_) => self.record = None,
        }
        Some(piece)
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let Some((exchange, history)) = self.record.take() else { return };
        let text = std::mem::take(&mut self.text);
        match exchange {
            Exchange::New { question } => history.extend([question, Message::new(ASSISTANT, text)]),
            Exchange::Continued => history.last_mut().expect("there is an answer to continue").content += &text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_can_be_stored_and_sent_to_another_thread() {
        fn is_owned<T: Send + 'static>() {}
        is_owned::<Chat>();
    }
}
