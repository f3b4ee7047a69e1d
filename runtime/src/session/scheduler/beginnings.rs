//! Beginnings of prompts that are kept as sequences which have ended, where a sequence that grows loses what others could continue from.
//!
//! ```text
//! tokens of a prompt      0 ─────────────────── common ──────────────────────────── last page ── end
//! sliding windows         pages                 kept, if fed in this request                     kept
//! recurrent state                               a step ends here: kept               and here: kept
//! ```
//!
//! `common` is what an earlier prompt had, too, such as a system prompt. Pages hold what was fed before, so that a sequence with windows is cut
//! back; a recurrent state is copied when a step has ended exactly there, and its K and V are whole pages.

use super::machine::MIN_PREFILL_TOKENS;
use super::requests::Active;
use super::{Scheduler, TokenReceiver};

impl<R: TokenReceiver> Scheduler<R> {
    /// Decides where a prompt, which has begun and has `n_tokens`, is kept for later ones. `common`: length of what an earlier prompt had, too.
    pub(super) fn plan_beginnings(&self, active: &mut Active<R>, n_tokens: u32, common: Option<u32>) {
        let Active { session, beginnings, .. } = active;
        let (has_state, unit) = (self.shared.has_state(), self.checkpoint_unit(session.sequence().page_tokens()));
        if !self.shared.loses_beginnings() {
            return;
        }
        // The prompt's last token is always fed.
        let in_units = |len: u32| unit.map_or(0, |unit| len.min(n_tokens - 1) / unit * unit);
        let begun = session.len_tokens();
        let least = if has_state { begun.max(MIN_PREFILL_TOKENS as u32 - 1) } else { begun };
        let lens = common.into_iter().chain([n_tokens]);
        let lens = lens.map(|len| if has_state { in_units(len) } else { len });
        *beginnings = lens.filter(|&len| len > least).collect();
        beginnings.dedup();
    }

    /// Tokens of which a beginning with recurrent state has a multiple; `None`: none is kept.
    fn checkpoint_unit(&self, page_tokens: u32) -> Option<u32> {
        let part_tokens = self.machine.limits.max_prefill_tokens as u32;
        match self.machine.limits.deterministic {
            _ if self.max_checkpoints == 0 => None,
            false => Some(page_tokens),
            // Steps end there anyway.
            true => Some(part_tokens).filter(|part_tokens| part_tokens.is_multiple_of(page_tokens)),
        }
    }

    /// Keeps what of the first prompt is to be kept and was fed.
    pub(super) fn keep_beginnings(&mut self) {
        let Some(Active { session, beginnings, .. }) = self.machine.prefill.front_mut() else { return };
        let n_fed = beginnings.partition_point(|&len| len <= session.len_tokens());
        for len in beginnings.drain(..n_fed) {
            if let Some(beginning) = session.beginning(len) {
                self.ended.retain(|earlier| earlier.tokens() != beginning.tokens());
                self.ended.push_back(beginning);
            }
        }
        self.limit_checkpoints();
    }

    /// Gives up the copies of recurrent state that were used longest ago, down to as many as may be kept.
    pub(super) fn limit_checkpoints(&mut self) {
        let n_kept = if self.shared.has_state() { self.max_checkpoints } else { usize::MAX };
        drop(self.ended.drain(..self.ended.len().saturating_sub(n_kept)));
    }
}
