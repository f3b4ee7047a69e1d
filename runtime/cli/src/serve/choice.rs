//! One choice on its way: tokens become text, until a stop token, a stop string or a count of tokens ends it.

use std::ops::ControlFlow;

use tokio::sync::mpsc::UnboundedSender;

use super::refusal::Refusal;
use super::stop_strings::StopStrings;
use crate::error::CliError;
use crate::text::TextStream;
use unicorn_runtime::scheduler::{End, Listener};

/// What a request hears of its choices.
#[derive(Debug, PartialEq)]
pub enum Event {
    Begun {
        choice: u32,
        cached_tokens: u32,
    },
    /// Never empty.
    Text {
        choice: u32,
        text: String,
    },
    Ended {
        choice: u32,
        tokens: u32,
        reason: FinishReason,
    },
    /// Nothing more comes of any choice.
    Failed(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model drew a stop token, or a stop string came up.
    Stop,
    /// As many tokens as were asked for, or as the context holds.
    Length,
}

impl FinishReason {
    /// As OpenAI has it.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

pub struct Choice<'m> {
    index: u32,
    events: UnboundedSender<Event>,
    text: TextStream<'m>,
    stop_ids: &'m [u32],
    stop_strings: StopStrings,
    max_tokens: Option<u32>,
    /// Drawn so far, stop token included.
    tokens: u32,
}

impl<'m> Choice<'m> {
    pub fn new(
        index: u32,
        events: UnboundedSender<Event>,
        text: TextStream<'m>,
        stop_ids: &'m [u32],
        stop_strings: Vec<String>,
        max_tokens: Option<u32>,
    ) -> Choice<'m> {
        let stop_strings = StopStrings::new(stop_strings);
        Choice { index, events, text, stop_ids, stop_strings, max_tokens, tokens: 0 }
    }

    fn take(&mut self, token: u32) -> Result<ControlFlow<()>, CliError> {
        self.tokens += 1;
        if self.stop_ids.contains(&token) {
            return self.finish(FinishReason::Stop);
        }
        let text = self.text.push(token)?;
        let (text, has_stopped) = self.stop_strings.push(&text);
        self.give(text);
        if has_stopped {
            self.tell(Event::Ended { choice: self.index, tokens: self.tokens, reason: FinishReason::Stop });
            return Ok(ControlFlow::Break(()));
        }
        if self.max_tokens.is_some_and(|most| self.tokens >= most) {
            return self.finish(FinishReason::Length);
        }
        Ok(if self.events.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Gives out what was held back, and ends.
    fn finish(&mut self, reason: FinishReason) -> Result<ControlFlow<()>, CliError> {
        let rest = self.text.finish()?;
        let (text, has_stopped) = self.stop_strings.push(&rest);
        let held = if has_stopped { String::new() } else { self.stop_strings.finish() };
        self.give(text + &held);
        let reason = if has_stopped { FinishReason::Stop } else { reason };
        self.tell(Event::Ended { choice: self.index, tokens: self.tokens, reason });
        Ok(ControlFlow::Break(()))
    }

    fn give(&self, text: String) {
        if !text.is_empty() {
            self.tell(Event::Text { choice: self.index, text });
        }
    }

    /// A request that has left hears nothing, and is asked for the next token whether it has.
    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    fn fail(&self, error: CliError) -> ControlFlow<()> {
        let message = match error {
            CliError::Failed(message) => message,
            CliError::OutputClosed => return ControlFlow::Break(()),
        };
        self.tell(Event::Failed(Refusal::failed(message)));
        ControlFlow::Break(())
    }
}

impl Listener for Choice<'_> {
    fn begin(&mut self, cached_tokens: u32) {
        self.tell(Event::Begun { choice: self.index, cached_tokens });
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        self.take(token).unwrap_or_else(|error| self.fail(error))
    }

    fn has_left(&self) -> bool {
        self.events.is_closed()
    }

    fn end(&mut self, why: End<'_>) {
        let ended = match why {
            End::ContextFull => self.finish(FinishReason::Length),
            End::Failed(error) => Err(error.into()),
        };
        let _ = ended.unwrap_or_else(|error| self.fail(error));
    }
}
