//! The tokens of one sequence as they are sampled, with and without speculation, or among those that may follow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::error::RunError;
use crate::session::model_state::Shared;
use crate::session::speculation::draft_length::StepTimes;
use crate::session::speculation::speculator::Speculator;
use crate::session::stream::{Stream, StreamRow};
use crate::step::masks::{FillMask, Masks};
use crate::step::sampling::Sampled;

/// The tokens of one sequence as they are sampled: see [`crate::Session::generate`].
///
/// Each item is the token that follows those before it; the newest one is appended to the session when the next one is requested.
/// The device computes up to seven steps ahead between two items, and no lock is held: everything may be called, also on the
/// model and on other sessions, from this thread and from others. Dropped, it waits for nothing. After an error it ends.
pub struct Tokens<'s> {
    stream: Stream<'s>,
    speculation: Option<&'s mut SessionSpeculation>,
    /// Samples of the last verification that were not given out yet.
    ready: VecDeque<Sampled>,
}

/// The tokens of one sequence, each sampled among those that may follow: see [`crate::Session::generate_masked`].
pub struct MaskedTokens<'s> {
    stream: Stream<'s>,
}

impl<'s> MaskedTokens<'s> {
    pub(crate) fn new(shared: &Arc<Shared>, row: StreamRow<'s>, max_tokens: u32) -> MaskedTokens<'s> {
        MaskedTokens { stream: Stream::new(shared, vec![row], max_tokens) }
    }

    /// Waits for the step that samples the next token, among those that `fill` allows, or all. The device computes the step behind, but for its
    /// sampler, until the next call; it does so for nothing where one of two calls in a row has a mask, unless there is recurrent state.
    ///
    /// # Panics
    /// If there is a mask and the model takes none: see [`crate::Model::takes_masks`].
    pub fn next_token(&mut self, fill: Option<FillMask<'_>>) -> Option<Result<Sampled, RunError>> {
        // A step that was sampled without a mask cannot run again: it has changed the state.
        let all =
            || self.stream.has_state().then(|| Box::new(|allowed: &mut [u32]| allowed.fill(u32::MAX)) as FillMask);
        let mut masks = Masks::of(fill.or_else(all).map(|fill| (0, fill)).into_iter().collect());
        self.stream.next_masked(&mut masks).map(|step| step.map(|sampled| sampled[0]))
    }
}

/// The speculation of a session.
pub struct SessionSpeculation {
    /// Its drafts.
    pub speculator: Speculator,
    /// Measured times of its steps.
    pub times: StepTimes,
}

impl<'s> Tokens<'s> {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        row: StreamRow<'s>,
        max_tokens: u32,
        speculation: Option<&'s mut SessionSpeculation>,
    ) -> Tokens<'s> {
        Tokens { stream: Stream::new(shared, vec![row], max_tokens), speculation, ready: VecDeque::new() }
    }
}

impl Iterator for Tokens<'_> {
    type Item = Result<Sampled, RunError>;

    /// Waits for the step that samples the token.
    fn next(&mut self) -> Option<Result<Sampled, RunError>> {
        let Tokens { stream, speculation, ready } = self;
        if let Some(sampled) = ready.pop_front() {
            return Some(Ok(sampled));
        }
        let Some(SessionSpeculation { speculator, times }) = speculation else {
            return stream.next().map(|step| step.map(|sampled| sampled[0]));
        };
        // A verification of n tokens gives up to n + 1.
        let (n_ahead, most) = (stream.steps_ahead(), stream.steps_left().saturating_sub(1));
        let (tokens, newest) = stream.tokens(0);
        let has_draft = speculator.has_draft(tokens, newest, most as usize, 1, times);
        // Steps in flight are awaited first: their tokens count as well.
        let draft = match n_ahead == 0 && has_draft {
            true => speculator.take_draft(|n_tokens| stream.predict(n_tokens)),
            false => Vec::new(),
        };
        if !draft.is_empty() {
            return Some(stream.verify(&draft, &mut speculator.logits).map(|(verified, samples)| {
                speculator.add(&verified, times);
                ready.extend(samples);
                ready.pop_front().expect("a verification samples one token at least")
            }));
        }
        let runs_ahead = speculator.runs_ahead();
        stream.set_most_ahead(if runs_ahead { u32::MAX } else { 0 });
        let begun = Instant::now();
        let step = stream.next()?;
        // Drafts are compared with what they prevent.
        if runs_ahead {
            times.add_plain(begun.elapsed());
        }
        Some(step.map(|sampled| sampled[0]))
    }
}

impl Drop for Tokens<'_> {
    /// The session continues behind the last token that was given out.
    fn drop(&mut self) {
        match self.ready.len() {
            0 => {}
            n_ready => self.stream.take_back(n_ready as u32),
        }
    }
}
