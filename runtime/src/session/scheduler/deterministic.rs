//! Texts that do not depend on which requests run beside them, or ran before: programs for other numbers of rows add in another order.
//!
//! - A sequence decodes in steps of its own, so that its program is that for one row.
//! - A prompt is fed in parts of the same length, however many sequences wait for it.
//! - Of what a session or another one has computed, whole parts that were fed like this are used again, and nothing that was sampled.

use super::{AfterStep, Scheduler, TokenReceiver};
use crate::error::RunError;

impl<R: TokenReceiver> Scheduler<R> {
    /// From now on, or not any more, each request gets the text that it would get alone, at the cost of weights that are read once for each
    /// sequence.
    ///
    /// # Errors
    /// [`RunError::NotDeterministic`] with speculation, with a store of KV caches, and where requests can be interrupted for want of
    /// pages: each computes tokens again in another way.
    pub fn set_deterministic(&mut self, deterministic: bool) -> Result<(), RunError> {
        let conflicts = [
            ("speculation", self.speculation.is_some()),
            ("a store of KV caches", self.kv_store.is_some()),
            ("fewer tokens in the KV cache than all sequences can have", self.shared.pages_can_run_out()),
        ];
        match conflicts.into_iter().find(|(_, is_there)| deterministic && *is_there) {
            Some((with, _)) => Err(RunError::NotDeterministic { with }),
            None => {
                self.machine.limits.deterministic = deterministic;
                Ok(())
            }
        }
    }

    /// Steps of each decoding sequence: one of each, or up to `max_steps` where there is only one.
    pub(super) fn decode_in_turn(&mut self, max_steps: u32, after_step: &mut AfterStep<'_>) {
        let max_steps = if self.machine.decoding.len() > 1 { 1 } else { max_steps };
        for active in std::mem::take(&mut self.machine.decoding) {
            let before = std::mem::replace(&mut self.machine.decoding, vec![active]);
            self.decode_together(max_steps, after_step);
            self.machine.decoding.splice(0..0, before);
        }
    }
}
