//! Endpoints that generate nothing: embeddings, and the scores of documents.
//!
//! ```text
//! embeddings: prompt ─► hidden rows after the final norm ─► pooling ─► norm ─► a vector
//! rerank:     query and document as a question ─► logits of "yes" and "no" ─► a score
//! ```

mod embeddings;
mod pool;
mod rerank;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use unicorn_text::unicorn_runtime::scheduler::{End, TokenReceiver};

use crate::admission::QueuePlace;
use crate::api::error::ApiError;
use crate::metrics::Metrics;

pub(crate) use embeddings::EmbeddingsApi;
pub(crate) use pool::Pool;
pub use pool::Pooling;
pub(crate) use rerank::YesNoTokens;

/// What is to be computed from a prompt.
pub(crate) enum PoolingTask {
    /// Its hidden rows, pooled.
    Hidden(Pool),
    /// How much more likely yes follows than no.
    YesNo(YesNoTokens),
}

/// What was computed from a prompt.
#[derive(Debug, PartialEq)]
pub(crate) enum PoolingOutput {
    /// Pooled rows: one, or one a token.
    Rows(Vec<Vec<f32>>),
    /// Probability of yes, where only yes and no can follow.
    Score(f32),
}

/// Output that a request waits for, and the prompt's time in the queue.
pub(crate) type PoolingResult = Result<(PoolingOutput, Duration), ApiError>;

/// A prompt that nothing follows, on its way to the worker.
pub(crate) struct PoolingJob {
    /// The prompt, which fits the context.
    pub(crate) prompt: Vec<u32>,
    pub(crate) receiver: PoolingReceiver,
}

/// Receives what is computed from one prompt. The other end of `found` is dropped when the client has disconnected.
pub(crate) struct PoolingReceiver {
    task: PoolingTask,
    /// `None`: it was sent.
    found: Option<oneshot::Sender<PoolingResult>>,
    prompt_tokens: u32,
    begun: Instant,
    /// Time in the queue.
    waited: Duration,
    metrics: Arc<Metrics>,
    place: QueuePlace,
}

impl PoolingReceiver {
    /// Receiver of a prompt of `prompt_tokens`.
    pub(crate) fn new(
        task: PoolingTask,
        prompt_tokens: u32,
        metrics: Arc<Metrics>,
        place: QueuePlace,
    ) -> (PoolingReceiver, oneshot::Receiver<PoolingResult>) {
        let (found, awaited) = oneshot::channel();
        let begun = Instant::now();
        let waited = Duration::ZERO;
        (PoolingReceiver { task, found: Some(found), prompt_tokens, begun, waited, metrics, place }, awaited)
    }

    /// Sends what was found. A client that has left does not receive it, which is no error.
    fn send(&mut self, found: Result<PoolingOutput, ApiError>) {
        if found.is_ok() {
            self.metrics.count_read(self.prompt_tokens, self.begun.elapsed());
            self.metrics.health.works();
        }
        if let Some(sender) = self.found.take() {
            let _ = sender.send(found.map(|finding| (finding, self.waited)));
        }
    }
}

impl TokenReceiver for PoolingReceiver {
    fn begin(&mut self, cached_tokens: u32) {
        self.begun = Instant::now();
        self.waited = self.place.taken_for();
        self.prompt_tokens -= cached_tokens;
        self.metrics.count_cached(cached_tokens);
        if let PoolingTask::Hidden(pool) = &mut self.task {
            pool.clear();
        }
    }

    fn token(&mut self, _token: u32) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn samples_on_host(&self) -> bool {
        matches!(self.task, PoolingTask::YesNo(_))
    }

    fn sample(&mut self, _tokens: &[u32], logits: &mut [f32]) -> u32 {
        if let PoolingTask::YesNo(tokens) = &self.task {
            let score = tokens.score(logits);
            self.send(Ok(PoolingOutput::Score(score)));
        }
        0
    }

    fn reads_hidden_rows(&self) -> bool {
        matches!(self.task, PoolingTask::Hidden(_))
    }

    fn hidden_row(&mut self, row: &[f32]) {
        if let PoolingTask::Hidden(pool) = &mut self.task {
            pool.add(row);
        }
    }

    fn is_closed(&self) -> bool {
        self.found.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn end(&mut self, why: End<'_>) {
        let found = match (why, &mut self.task) {
            (End::Failed(error), _) => {
                self.metrics.health.fails(error);
                Err(ApiError::failed(error.to_string()))
            }
            (End::Fed, PoolingTask::Hidden(pool)) => Ok(PoolingOutput::Rows(pool.take())),
            (End::Fed | End::ContextFull, _) => return,
        };
        self.send(found);
    }
}
