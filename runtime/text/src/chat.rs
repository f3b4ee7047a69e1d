//! A conversation with a model.

use unicorn_runtime::{CancelToken, Model, Sampling, Session};

use crate::chat_template::{ChatTemplate, Message};
use crate::continuation::Continuation;
use crate::error::TextError;
use crate::output::{EndReason, StopConditions};
use crate::sampling::default_sampling;
use crate::tokenizer::Tokenizer;

/// A conversation: a session of a model with its tokenizer and chat template, and the messages so far. It keeps the model loaded,
/// can be stored in a struct and sent to another thread.
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
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stop_tokens: Vec<u32>,
    options: ChatOptions,
    history: Vec<Message>,
}

/// Options of a [`Chat`]. They may be changed between two questions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatOptions {
    /// The system message. Default: none.
    pub system: Option<String>,
    /// How tokens are sampled. Default: [`default_sampling`], whose seed is random.
    pub sampling: Sampling,
    /// Most tokens of an answer; `None`, the default: until the model ends it or the context is full.
    pub max_tokens: Option<u32>,
    /// Strings that end an answer, beside the model's stop tokens. Default: none.
    pub stop_strings: Vec<String>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions { system: None, sampling: default_sampling(), max_tokens: None, stop_strings: Vec::new() }
    }
}

impl Chat {
    /// An empty conversation in a new session of `model`. Blocks for as long as its tokenizer takes to parse.
    ///
    /// # Errors
    /// When the artifact has no tokenizer or chat template, or one that does not parse; when all sessions of the model are taken; and
    /// for a sampling parameter out of its range.
    pub fn new(model: &Model, options: ChatOptions) -> Result<Chat, TextError> {
        options.sampling.check()?;
        let section = model.tokenizer_section();
        Ok(Chat {
            session: model.session()?,
            tokenizer: Tokenizer::new(section)?,
            template: ChatTemplate::new(section)?,
            stop_tokens: section.stop_ids.clone(),
            options,
            history: Vec::new(),
        })
    }

    /// Adds a message of the user, and returns the answer of the model, piece by piece. Blocks until the first token is sampled:
    /// only what is new since the last question is computed. The question and the text that was read are added to the history when
    /// the answer is dropped, unless it failed.
    ///
    /// # Errors
    /// When the template rejects the conversation, the conversation does not fit the context, or the device fails.
    pub fn ask(&mut self, question: &str) -> Result<Answer<'_>, TextError> {
        let question = Message::new("user", question);
        let system = self.options.system.as_ref().map(|content| Message::new("system", content.as_str()));
        let messages: Vec<Message> =
            system.into_iter().chain(self.history.iter().cloned()).chain([question.clone()]).collect();
        let prompt = self.tokenizer.encode(&self.template.render(&messages)?)?;
        let conditions = StopConditions {
            max_tokens: self.options.max_tokens,
            stop_tokens: self.stop_tokens.clone(),
            stop_strings: self.options.stop_strings.clone(),
        };
        let continuation =
            Continuation::new(&mut self.session, &self.tokenizer, &prompt, &self.options.sampling, conditions)?;
        let messages = Some((question, &mut self.history));
        Ok(Answer { continuation, text: String::new(), messages })
    }

    /// Messages of user and assistant so far, without the system message.
    pub fn history(&self) -> &[Message] {
        &self.history
    }

    /// Starts a new conversation. What its prompts have in common with the old ones is still cached.
    pub fn clear(&mut self) {
        self.history.clear();
    }

    /// The options of answers from now on.
    pub fn options_mut(&mut self) -> &mut ChatOptions {
        &mut self.options
    }

    /// Answers end with [`EndReason::Cancelled`] once `token` is cancelled, from any thread; reset it before the next question.
    pub fn set_cancel(&mut self, token: CancelToken) {
        self.session.set_cancel(token);
    }
}

/// The pieces of one answer: see [`Continuation`].
pub struct Answer<'c> {
    continuation: Continuation<'c>,
    text: String,
    /// The question, and where it goes; `None` after an error.
    messages: Option<(Message, &'c mut Vec<Message>)>,
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
            Err(_) => self.messages = None,
        }
        Some(piece)
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if let Some((question, history)) = self.messages.take() {
            history.extend([question, Message::new("assistant", std::mem::take(&mut self.text))]);
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
