//! Tokens of several sessions, one for each in a step.

use std::sync::Arc;

use crate::error::RunError;
use crate::session::model_state::Shared;
use crate::session::session::Session;
use crate::session::stream::{Stream, StreamRow};
use crate::step::masks::Masks;
use crate::step::sampling::{Sampled, Sampling};

/// A sequence's next token, and how those after it are sampled.
pub struct BatchRow<'b> {
    /// The sequence.
    pub session: &'b mut Session,
    /// The next token, not appended to the sequence yet.
    pub token: u32,
    /// How the tokens that follow are sampled.
    pub sampling: &'b Sampling,
}

/// The tokens of several sequences, one for each in a step: see [`crate::Model::generate_batch`] and [`crate::Tokens`].
pub struct BatchTokens<'s> {
    stream: Stream<'s>,
}

impl<'s> BatchTokens<'s> {
    pub(crate) fn new(shared: &Arc<Shared>, rows: Vec<BatchRow<'s>>, max_steps: u32) -> BatchTokens<'s> {
        BatchTokens { stream: Stream::new(shared, of_model(shared, rows), max_steps) }
    }

    /// The tokens of a row's sequence, and its newest, which is not appended yet.
    pub(crate) fn tokens(&self, row: usize) -> (&[u32], u32) {
        self.stream.tokens(row)
    }

    /// As [`Iterator::next`], among the tokens that `masks` allow: see [`Stream::next_masked`].
    pub(crate) fn next_masked(&mut self, masks: &mut Masks<'_>) -> Option<Result<Vec<Sampled>, RunError>> {
        self.stream.next_masked(masks)
    }

    /// Ends after the steps that are already submitted.
    pub(crate) fn end_soon(&mut self) {
        self.stream.end_soon();
    }
}

impl Iterator for BatchTokens<'_> {
    type Item = Result<Vec<Sampled>, RunError>;

    /// Waits for the step that samples the tokens, which are in the order of the rows.
    fn next(&mut self) -> Option<Result<Vec<Sampled>, RunError>> {
        self.stream.next()
    }
}

/// Appends each row's token and samples the next ones, without steps ahead. Nothing is appended when it fails.
pub fn decode(shared: &Arc<Shared>, rows: Vec<BatchRow<'_>>) -> Result<Vec<Sampled>, RunError> {
    let step = Stream::one_step(shared, of_model(shared, rows)).next();
    // No rows, no step.
    step.unwrap_or(Ok(Vec::new()))
}

/// As [`decode`], among the tokens that `masks` allow, and appends the logits of some rows to `logits`, which is empty.
pub fn decode_masked(
    shared: &Arc<Shared>,
    rows: Vec<BatchRow<'_>>,
    (with_logits, logits): (&[usize], &mut Vec<f32>),
    masks: &mut Masks<'_>,
) -> Result<Vec<Sampled>, RunError> {
    Stream::one_step(shared, of_model(shared, rows)).masked_step((with_logits, logits), masks)
}

/// Rows of sessions of this model as those of a stream.
pub fn of_model<'s>(shared: &Arc<Shared>, rows: Vec<BatchRow<'s>>) -> Vec<StreamRow<'s>> {
    let row = |BatchRow { session, token, sampling }: BatchRow<'s>| {
        assert!(Arc::ptr_eq(session.shared(), shared), "sessions of this model");
        session.stream_row(token, sampling)
    };
    rows.into_iter().map(row).collect()
}
