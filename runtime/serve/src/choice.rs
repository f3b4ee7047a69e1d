//! One choice of a request while it is generated: the receiver of its tokens, which turns them into events for the response.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::mpsc::UnboundedSender;
use unicorn_text::unicorn_runtime::scheduler::{End, TokenReceiver};
use unicorn_text::{EndReason, OutputText, Piece, TextError};

use crate::admission::QueuePlace;
use crate::api::error::ApiError;

/// What the response of a request is made of. `choice` is the index among the request's choices.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// The first `cached_tokens` of the prompt were in the cache.
    Started { choice: u32, cached_tokens: u32 },
    /// Never empty.
    Text { choice: u32, text: String },
    /// The last of a choice. `tokens` includes a stop token.
    Ended { choice: u32, tokens: u32, reason: EndReason },
    /// The last of all choices.
    Failed(ApiError),
}

/// Receives the tokens of one sequence. The other end of `events` is dropped when the client has disconnected.
pub(crate) struct Choice {
    index: u32,
    events: UnboundedSender<Event>,
    output: OutputText,
    _place: QueuePlace,
}

impl Choice {
    pub(crate) fn new(index: u32, events: UnboundedSender<Event>, output: OutputText, place: QueuePlace) -> Choice {
        Choice { index, events, output, _place: place }
    }

    /// Sends the events of the next piece; breaks when it is the last or the client has disconnected. The thread runs the steps of
    /// all requests: a decoder that panics ends this one.
    fn send_piece(&mut self, next: impl FnOnce(&mut OutputText) -> Result<Piece, TextError>) -> ControlFlow<()> {
        // After a panic the output is not used again.
        let Ok(piece) = catch_unwind(AssertUnwindSafe(|| next(&mut self.output))) else {
            self.send(Event::Failed(ApiError::failed("tokenizer of the artifact panicked while it decoded a token")));
            return ControlFlow::Break(());
        };
        match piece {
            Ok(Piece { text, end }) => {
                if !text.is_empty() {
                    self.send(Event::Text { choice: self.index, text });
                }
                if let Some(reason) = end {
                    self.send(Event::Ended { choice: self.index, tokens: self.output.n_tokens(), reason });
                }
                if end.is_some() || self.events.is_closed() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            }
            Err(error) => {
                self.send(Event::Failed(ApiError::failed(error.to_string())));
                ControlFlow::Break(())
            }
        }
    }

    /// A closed channel is no error here: it is checked after each token.
    fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

impl TokenReceiver for Choice {
    fn begin(&mut self, cached_tokens: u32) {
        self.send(Event::Started { choice: self.index, cached_tokens });
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        self.send_piece(|output| output.push(token))
    }

    fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    fn end(&mut self, why: End<'_>) {
        match why {
            End::ContextFull => drop(self.send_piece(|output| output.end(EndReason::ContextFull))),
            End::Failed(error) => self.send(Event::Failed(ApiError::failed(error.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::unbounded_channel;
    use unicorn_text::{StopConditions, Tokenizer, TokenizerSection};

    use super::*;

    /// The decoder cuts a space from both ends of each token: of a token that is one space, a part that begins behind its end.
    const PANICS_AT_1: &str = r#"{
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 1},
        "model": {"type": "BPE", "vocab": {"a": 0, " ": 1}, "merges": []}
    }"#;

    #[test]
    fn a_decoder_that_panics_ends_its_request_alone() {
        let section = TokenizerSection { tokenizer_json: PANICS_AT_1.into(), ..TokenizerSection::default() };
        let tokenizer = Tokenizer::new(&section).unwrap();
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let (events, mut received) = unbounded_channel();
        let output = OutputText::new(&tokenizer, &[], StopConditions::default());
        let mut choice = Choice::new(0, events, output, place);
        assert!(choice.token(0).is_continue());
        assert_eq!(received.try_recv(), Ok(Event::Text { choice: 0, text: "a".into() }));
        assert!(choice.token(1).is_break());
        let Ok(Event::Failed(error)) = received.try_recv() else { panic!("expected an error") };
        assert!(error.status == 500 && error.message.contains("panicked"), "{error:?}");
    }
}
