//! One choice of a request while it is generated: the receiver of its tokens, which turns them into events for the response.

use std::ops::ControlFlow;

use tokio::sync::mpsc::UnboundedSender;
use unicorn_text::unicorn_runtime::scheduler::{End, TokenReceiver};
use unicorn_text::{EndReason, OutputText, Piece, TextError};

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
}

impl Choice {
    pub(crate) fn new(index: u32, events: UnboundedSender<Event>, output: OutputText) -> Choice {
        Choice { index, events, output }
    }

    /// Sends the events of a piece; breaks when it is the last or the client has disconnected.
    fn send_piece(&self, piece: Result<Piece, TextError>) -> ControlFlow<()> {
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
        let piece = self.output.push(token);
        self.send_piece(piece)
    }

    fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    fn end(&mut self, why: End<'_>) {
        let piece = match why {
            End::ContextFull => self.output.end(EndReason::ContextFull),
            End::Failed(error) => return self.send(Event::Failed(ApiError::failed(error.to_string()))),
        };
        let _ = self.send_piece(piece);
    }
}
