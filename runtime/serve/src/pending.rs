//! A response while its choices are generated: collected into one object, or sent chunk by chunk.

use futures_util::stream::{self, Stream};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;
use unicorn_text::EndReason;

use crate::api::error::ApiError;
use crate::api::request::Request;
use crate::api::response::{ResponseFormat, Usage};
use crate::choice::Event;

/// The events of a request's choices on their way into the response. Dropping it cancels the choices.
pub(crate) struct PendingResponse {
    format: ResponseFormat,
    events: UnboundedReceiver<Event>,
    pub(crate) stream: bool,
    include_usage: bool,
    /// Choices of each prompt.
    n: u32,
    choices: usize,
    ended: usize,
    usage: Usage,
}

/// What a stream sends next.
enum Stage {
    Choices,
    Usage,
    Done,
    Over,
}

impl PendingResponse {
    /// To `request`; `usage` counts the tokens of its prompts.
    pub(crate) fn new(
        format: ResponseFormat,
        events: UnboundedReceiver<Event>,
        request: &Request,
        usage: Usage,
    ) -> PendingResponse {
        let &Request { n, stream, include_usage, .. } = request;
        let choices = request.prompts.len() * n as usize;
        PendingResponse { format, events, stream, include_usage, n, choices, ended: 0, usage }
    }

    /// Waits for all choices.
    ///
    /// # Errors
    /// When one of them fails.
    pub(crate) async fn collect(mut self) -> Result<Value, ApiError> {
        let mut choices = vec![(String::new(), EndReason::MaxTokens); self.choices];
        while let Some(event) = self.next().await {
            match event {
                Event::Started { .. } => {}
                Event::Text { choice, text } => choices[choice as usize].0 += &text,
                Event::Ended { choice, reason, .. } => choices[choice as usize].1 = reason,
                Event::Failed(error) => return Err(error),
            }
        }
        Ok(self.format.object(&choices, self.usage))
    }

    /// The data of each server-sent event, as it becomes available.
    pub(crate) fn chunks(self) -> impl Stream<Item = String> {
        stream::unfold((self, Stage::Choices), |(mut response, mut stage)| async move {
            loop {
                let chunk = match stage {
                    Stage::Choices => match response.next().await {
                        Some(event) => {
                            if matches!(event, Event::Failed(_)) {
                                stage = Stage::Over;
                            }
                            response.chunk(event)
                        }
                        None => {
                            stage = Stage::Usage;
                            None
                        }
                    },
                    Stage::Usage => {
                        stage = Stage::Done;
                        response.include_usage.then(|| response.format.usage_chunk(response.usage).to_string())
                    }
                    Stage::Done => {
                        stage = Stage::Over;
                        Some("[DONE]".to_owned())
                    }
                    Stage::Over => return None,
                };
                if let Some(chunk) = chunk {
                    return Some((chunk, (response, stage)));
                }
            }
        })
    }

    fn chunk(&self, event: Event) -> Option<String> {
        let chunk = match event {
            Event::Started { choice, .. } => self.format.role_chunk(choice)?,
            Event::Text { choice, text } => self.format.text_chunk(choice, &text),
            Event::Ended { choice, reason, .. } => self.format.end_chunk(choice, reason),
            Event::Failed(error) => error.json(),
        };
        Some(chunk.to_string())
    }

    /// `None`: all choices have ended.
    async fn next(&mut self) -> Option<Event> {
        if self.ended == self.choices {
            return None;
        }
        // The worker has dropped the sender: the server is stopping.
        let event = self.events.recv().await.unwrap_or_else(|| Event::Failed(ApiError::stopping()));
        match event {
            // A prompt's tokens count once, so those of its first choice do.
            Event::Started { choice, cached_tokens } if choice % self.n == 0 => {
                self.usage.cached_tokens += cached_tokens
            }
            Event::Ended { tokens, .. } => {
                self.ended += 1;
                self.usage.completion_tokens += tokens;
            }
            _ => {}
        }
        Some(event)
    }
}
