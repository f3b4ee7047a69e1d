//! Pages for requests: whether there are enough for another one, and whose are given back when a step finds none.

use std::collections::VecDeque;

use super::machine::MAX_PREFILL_TOKENS;
use super::requests::{Active, Waiting};
use super::{Scheduler, TokenReceiver};
use crate::session::session::Session;

impl<R: TokenReceiver> Scheduler<R> {
    /// Gives pages of ended sequences back until the next steps find some, and those that a lost device had.
    pub(super) fn make_pages_free(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let generation = self.shared.generation();
        self.ended.retain(|ended| ended.generation() == Some(generation));
        let n_fed = self.next_fed_tokens();
        while !self.ended.is_empty() && !self.has_free_pages(n_fed) {
            self.ended.pop_front();
        }
    }

    /// Tokens of the first prompts that the next step feeds, after what these take from ended sequences.
    fn next_fed_tokens(&self) -> u32 {
        let left = |active: &Active<R>| {
            let donors = self.ended.iter().filter(|_| !active.has_begun);
            let common = donors.map(|ended| self.shared.usable_start(ended, &active.rest)).max().unwrap_or(0);
            active.rest.len() as u32 - common
        };
        let next = self.machine.prefill.iter().take(self.machine.limits.prompts_beside.max(1));
        next.map(left).sum::<u32>().min(MAX_PREFILL_TOKENS as u32)
    }

    /// Whether each running sequence finds a page, and the first prompts those for `n_fed` tokens.
    fn has_free_pages(&self, n_fed: u32) -> bool {
        let n_running = self.machine.n_running() as u32;
        let mut slot = self.shared.lock_engine();
        let Some(engine) = slot.engine() else { return false };
        let (pools, groups) = (engine.pools.lock(), &self.shared.artifact.plan().kv_groups);
        groups
            .iter()
            .zip(pools.iter())
            .all(|(group, pool)| group.is_state() || pool.n_free() >= n_running + n_fed.div_ceil(group.page_tokens))
    }

    /// Whether the pages that are free, of ended sequences or of idle sessions are enough for a prompt, for what others still feed of theirs
    /// and for running sequences to grow. Without running sequences they always are.
    pub(super) fn has_pages_for(&self, prompt: &[u32]) -> bool {
        let to_grow = self.machine.pages_to_grow();
        if to_grow == 0 || !self.shared.pages_can_run_out() {
            return true;
        }
        let running = self.machine.running().map(|active| &active.session);
        let common = running.chain(&self.idle).map(|session| session.common_start(prompt)).max().unwrap_or(0);
        let mut slot = self.shared.lock_engine();
        // After a lost device, the next step finds out.
        let Some(engine) = slot.engine() else { return true };
        let (pools, groups) = (engine.pools.lock(), &self.shared.artifact.plan().kv_groups);
        groups.iter().zip(pools.iter()).enumerate().all(|(index, (group, pool))| {
            // Recurrent state does not grow, and has a page for each session.
            if group.is_state() {
                return true;
            }
            let idle = self.idle.iter().map(|session| session.tables()[index].n_exclusive_pages(pool));
            let pages = |tokens: usize| group.pages_per_sequence(tokens as u32, MAX_PREFILL_TOKENS as u32);
            let promised: u32 = self.machine.prefill.iter().map(|active| pages(active.rest.len())).sum();
            let needed = pages(prompt.len() + 1).saturating_sub(common / group.page_tokens) + promised + to_grow;
            needed <= pool.n_free() + pool.n_kept() + idle.sum::<u32>()
        })
    }

    /// Makes pages free, after a step that found none. `false`: only one sequence has any.
    pub(super) fn reclaim(&mut self) -> bool {
        if self.ended.pop_front().is_some() || clear_first(&mut self.idle) {
            return true;
        }
        self.machine.preempt().map(|active| self.requeue(active)).is_some()
    }

    /// Puts a request back into the queue, to its place. Its tokens are its prompt then.
    fn requeue(&mut self, active: Active<R>) {
        let Active { place, mut session, rest, sampling, receiver, has_begun, resumes, .. } = active;
        // One that has not begun holds the pages of the session's last request, and none of its tokens.
        let (prompt, resumes) = match has_begun {
            // The prompt's logits are read again from its first token on.
            true if receiver.reads_prompt_logits() && session.samples() == 0 => {
                ([session.tokens(), &rest].concat(), None)
            }
            true => ([session.tokens(), &rest].concat(), Some(session.samples())),
            false => (rest, resumes),
        };
        session.clear();
        self.idle.push_front(session);
        self.machine.enqueue(Waiting { place, prompt, sampling, receiver, resumes });
    }
}

/// Gives back the pages of the idle session that has had some for longest. `false`: none has any.
pub(super) fn clear_first(idle: &mut VecDeque<Session>) -> bool {
    let has_pages = |session: &&mut Session| session.tables().iter().any(|table| table.pages().next().is_some());
    idle.iter_mut().find(has_pages).map(Session::clear).is_some()
}
