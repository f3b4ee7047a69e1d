//! A response while its choices are generated: collected into one object, or sent piece by piece.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Duration, timeout};
use unicorn_text::Delta;

use crate::api::error::{ApiError, json_response};
use crate::api::request::Request;
use crate::events::Event;
use crate::observer::{Observation, RequestFailure};
use crate::reply::{Reply, Usage};
use crate::writer::{ResponseWriter, Stream};

/// Turns the events of a request's choices into the response. Dropping it cancels the choices, and notes what the request has used.
pub(crate) struct PendingResponse {
    writer: Box<dyn ResponseWriter>,
    events: Receiver<Event>,
    is_stream: bool,
    replies: Vec<Reply>,
    /// Number of choices that are generated for each prompt, and of those in the response.
    best_of: u32,
    n: u32,
    /// What each choice begins with, before its first token.
    beginnings: Vec<String>,
    ended: usize,
    /// Everything was sent.
    is_over: bool,
    observation: Observation,
}

/// What an event changed in the reply of its choice.
enum EventOutcome {
    Begun { choice: usize, deltas: Vec<Delta> },
    Fed { choice: usize },
    More { choice: usize, deltas: Vec<Delta>, tokens: Vec<u32> },
    Ended { choice: usize, deltas: Vec<Delta>, tokens: Vec<u32> },
    Failed(ApiError),
}

/// After this time without anything to send, a stream sends a comment, so that no proxy closes it as idle.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

impl PendingResponse {
    /// `replies` are empty, one a choice; each begins with its text of `beginnings`, which is not generated.
    pub(crate) fn new(
        writer: Box<dyn ResponseWriter>,
        events: Receiver<Event>,
        replies: Vec<Reply>,
        beginnings: Vec<String>,
        request: &Request,
    ) -> PendingResponse {
        PendingResponse {
            writer,
            events,
            is_stream: request.stream,
            replies,
            best_of: request.best_of,
            n: request.n,
            beginnings,
            ended: 0,
            is_over: false,
            observation: Observation::default(),
        }
    }

    /// The response to the observed request, whole once all choices have ended, or a stream at once.
    ///
    /// # Errors
    /// When a choice of a response that is not a stream fails.
    pub(crate) async fn respond(mut self, observation: Observation) -> Result<Response, ApiError> {
        self.observation = observation;
        if self.is_stream {
            return Ok(self.stream());
        }
        while let Some(outcome) = self.next().await {
            if let EventOutcome::Failed(error) = outcome {
                return Err(error);
            }
        }
        self.keep_best();
        Ok(json_response(StatusCode::OK, &self.writer.whole(&self.replies)))
    }

    /// Of the choices of each prompt, keeps those whose tokens are the most likely.
    fn keep_best(&mut self) {
        let mut all = std::mem::take(&mut self.replies).into_iter();
        while all.len() > 0 {
            let of_prompt = all.by_ref().take(self.best_of as usize).collect();
            self.replies.extend(Reply::best(of_prompt, self.n as usize));
        }
        self.best_of = self.n;
    }

    fn stream(self) -> Response {
        let kind = if self.writer.is_lines() { "application/x-ndjson" } else { "text/event-stream" };
        let pieces = stream::unfold(self, |mut response| async move {
            let mut out = Stream::default();
            while out.text.is_empty() && !response.is_over {
                response.advance(&mut out).await;
            }
            (!out.text.is_empty()).then_some((Ok::<String, Infallible>(out.text), response))
        });
        ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], Body::from_stream(pieces)).into_response()
    }

    /// Writes the next event.
    async fn advance(&mut self, out: &mut Stream) {
        let Ok(outcome) = timeout(KEEP_ALIVE, self.next()).await else {
            if !self.writer.is_lines() {
                out.text += ":\n\n";
            }
            return;
        };
        let (writer, replies) = (&mut self.writer, &self.replies);
        match outcome {
            Some(EventOutcome::Begun { choice, deltas }) => {
                writer.begin(choice, replies, out);
                writer.progress(choice, replies, out);
                if !deltas.is_empty() {
                    writer.add(choice, &deltas, &[], replies, out);
                }
            }
            Some(EventOutcome::Fed { choice }) => writer.progress(choice, replies, out),
            Some(EventOutcome::More { choice, deltas, tokens }) => writer.add(choice, &deltas, &tokens, replies, out),
            Some(EventOutcome::Ended { choice, deltas, tokens }) => {
                if !deltas.is_empty() {
                    writer.add(choice, &deltas, &tokens, replies, out);
                }
                writer.end(choice, replies, out);
            }
            Some(EventOutcome::Failed(error)) => {
                writer.fail(&error, out);
                self.observation.fails(error.status.into());
                self.is_over = true;
            }
            None => {
                writer.finish(replies, out);
                self.is_over = true;
            }
        }
    }

    /// `None`: all choices have ended.
    async fn next(&mut self) -> Option<EventOutcome> {
        if self.ended == self.replies.len() {
            return None;
        }
        // The worker has dropped the sender: the server is stopping.
        let event = self.events.recv().await.unwrap_or_else(|| Event::Failed(ApiError::stopping()));
        Some(match event {
            Event::Started { choice, cached_tokens, waited } => {
                self.observation.begins_after(waited);
                let choice = choice as usize;
                let reply = &mut self.replies[choice];
                (reply.cached_tokens, reply.fed_tokens) = (cached_tokens, cached_tokens);
                let deltas = self.replies[choice].push(std::mem::take(&mut self.beginnings[choice]), &[], Vec::new());
                EventOutcome::Begun { choice, deltas }
            }
            Event::Fed { choice, fed_tokens, times } => {
                let choice = choice as usize;
                let reply = &mut self.replies[choice];
                (reply.fed_tokens, reply.times) = (fed_tokens, times);
                EventOutcome::Fed { choice }
            }
            Event::Text { choice, text, tokens, probabilities, times } => {
                self.observation.has_token_since(times.decode);
                let choice = choice as usize;
                self.replies[choice].times = times;
                EventOutcome::More { choice, deltas: self.replies[choice].push(text, &tokens, probabilities), tokens }
            }
            Event::Ended { choice, end } => {
                let choice = choice as usize;
                self.ended += 1;
                if end.tokens > 0 {
                    self.observation.has_token_since(end.times.decode);
                }
                let n_before = self.replies[choice].tokens.len();
                let deltas = self.replies[choice].finish(end);
                EventOutcome::Ended { choice, deltas, tokens: self.replies[choice].tokens[n_before..].to_vec() }
            }
            Event::Failed(error) => EventOutcome::Failed(error),
        })
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.observation.uses(&Usage::of(&self.replies, self.best_of));
        if self.is_stream && !self.is_over {
            self.observation.fails(RequestFailure::ClientLeft);
        }
    }
}
