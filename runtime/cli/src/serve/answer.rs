//! What a request hears of its choices, put together whole or given out chunk by chunk.

use futures_util::stream::{self, Stream};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::choice::{Event, FinishReason};
use super::refusal::Refusal;
use super::reply::{Reply, Usage};
use super::request::Request;

/// Choices on their way. Dropped, nobody works on them any more.
pub struct Answer {
    reply: Reply,
    events: UnboundedReceiver<Event>,
    pub streams: bool,
    include_usage: bool,
    /// Choices of each prompt.
    n: u32,
    choices: usize,
    ended: usize,
    usage: Usage,
}

/// What comes next of a stream.
enum Stage {
    Choices,
    Usage,
    Done,
    Over,
}

impl Answer {
    /// To `request`; `usage` counts its prompts.
    pub fn new(reply: Reply, events: UnboundedReceiver<Event>, request: &Request, usage: Usage) -> Answer {
        let &Request { n, stream, include_usage, .. } = request;
        let choices = request.prompts.len() * n as usize;
        Answer { reply, events, streams: stream, include_usage, n, choices, ended: 0, usage }
    }

    /// Waits for all choices.
    ///
    /// # Errors
    /// When the model fails at one of them.
    pub async fn whole(mut self) -> Result<Value, Refusal> {
        let mut choices = vec![(String::new(), FinishReason::Length); self.choices];
        while let Some(event) = self.next().await {
            match event {
                Event::Begun { .. } => {}
                Event::Text { choice, text } => choices[choice as usize].0 += &text,
                Event::Ended { choice, reason, .. } => choices[choice as usize].1 = reason,
                Event::Failed(refusal) => return Err(refusal),
            }
        }
        Ok(self.reply.whole(&choices, self.usage))
    }

    /// The data of each server-sent event, as it comes.
    pub fn chunks(self) -> impl Stream<Item = String> {
        stream::unfold((self, Stage::Choices), |(mut answer, mut stage)| async move {
            loop {
                let chunk = match stage {
                    Stage::Choices => match answer.next().await {
                        Some(event) => {
                            if matches!(event, Event::Failed(_)) {
                                stage = Stage::Over;
                            }
                            answer.chunk(event)
                        }
                        None => {
                            stage = Stage::Usage;
                            None
                        }
                    },
                    Stage::Usage => {
                        stage = Stage::Done;
                        answer.include_usage.then(|| answer.reply.usage(answer.usage).to_string())
                    }
                    Stage::Done => {
                        stage = Stage::Over;
                        Some("[DONE]".to_owned())
                    }
                    Stage::Over => return None,
                };
                if let Some(chunk) = chunk {
                    return Some((chunk, (answer, stage)));
                }
            }
        })
    }

    fn chunk(&self, event: Event) -> Option<String> {
        let chunk = match event {
            Event::Begun { choice, .. } => self.reply.begun(choice)?,
            Event::Text { choice, text } => self.reply.text(choice, &text),
            Event::Ended { choice, reason, .. } => self.reply.ended(choice, reason),
            Event::Failed(refusal) => refusal.json(),
        };
        Some(chunk.to_string())
    }

    /// `None`: all choices have ended.
    async fn next(&mut self) -> Option<Event> {
        if self.ended == self.choices {
            return None;
        }
        let event = self.events.recv().await.unwrap_or_else(|| Event::Failed(Refusal::stopping()));
        match event {
            Event::Begun { choice, cached_tokens } if choice % self.n == 0 => self.usage.cached_tokens += cached_tokens,
            Event::Ended { tokens, .. } => {
                self.ended += 1;
                self.usage.completion_tokens += tokens;
            }
            _ => {}
        }
        Some(event)
    }
}
