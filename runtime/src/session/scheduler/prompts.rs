//! Prompts: what of one is in some cache already, and the step that feeds a part of the rest.

use std::collections::VecDeque;
use std::time::Instant;

use super::pages::clear_first;
use super::requests::Active;
use super::{AfterStep, End, SamplingPlaces, Scheduler, TokenReceiver};
use crate::error::RunError;
use crate::session::sequence::EndedSequence;
use crate::session::session::Session;

impl<R: TokenReceiver> Scheduler<R> {
    /// Finds as much of a prompt, by its place among those that are fed, as any session has in its cache, just before the rest of it is fed: prompts
    /// that were fed since it came count.
    pub(super) fn begin_prompt(&mut self, place: usize) {
        if self.machine.prefill[place].has_begun {
            return;
        }
        let mut active = self.machine.prefill.remove(place).expect("it has just been there");
        active.has_begun = true;
        self.begin_apart(&mut active);
        self.machine.prefill.insert(place, active);
    }

    /// The same of a prompt that is not among those that are fed.
    fn begin_apart(&mut self, active: &mut Active<R>) {
        let Active { session, resumes, rest, receiver, .. } = &mut *active;
        if receiver.reads_hidden_rows() || (receiver.reads_prompt_logits() && resumes.is_none()) {
            session.clear();
            return receiver.begin(0);
        }
        if let Some(ended) = session.end_for(rest) {
            if !self.shared.loses_beginnings() {
                // The shorter beginnings of what has ended now are of no more use.
                self.ended.retain(|earlier| !ended.tokens().starts_with(earlier.tokens()));
            }
            self.ended.push_back(ended);
        }
        session.keep_common_start(rest);
        if self.machine.limits.deterministic {
            session.keep_reproducible_start(self.machine.limits.max_prefill_tokens as u32);
        }
        let donors = self.machine.running().map(|active| &active.session).chain(&self.idle);
        let donors = donors.map(Session::sequence).chain(self.ended.iter().map(|ended| &**ended));
        let common = match self.shared.loses_beginnings() {
            true => donors.clone().map(|donor| self.shared.common_start(donor, rest)).max(),
            false => None,
        };
        if let Some(donor) = donors.max_by_key(|donor| self.shared.usable_start(donor, rest)) {
            session.adopt_start(donor, rest);
            if self.machine.limits.deterministic {
                session.keep_reproducible_start(self.machine.limits.max_prefill_tokens as u32);
            }
        }
        used_last(&mut self.ended, session.tokens());
        if let Some(store) = &mut self.kv_store {
            let mut makes_room = || self.ended.pop_front().is_some() || clear_first(&mut self.idle);
            while session.restore(store, rest).is_err() && makes_room() {}
        }
        match *resumes {
            Some(n_samples) => session.resume_samples(n_samples),
            None => {
                session.restart_samples();
                receiver.begin(session.len_tokens());
            }
        }
        let n_tokens = rest.len() as u32;
        rest.drain(..session.len_tokens() as usize);
        self.plan_beginnings(active, n_tokens, common);
    }

    /// The idle session that holds most of the prompt, if that is half of all that it holds, or of the prompt: for less, no other
    /// conversation's cache is given up. Otherwise, and among equals, the one that has been idle longest.
    pub(super) fn best_session(&self, prompt: &[u32]) -> Option<usize> {
        let common = self.idle.iter().map(|session| (session.common_start(prompt), session.len_tokens()));
        let worth = common
            .enumerate()
            .rev()
            .filter(|(_, (common, len))| *common > 0 && 2 * common >= (*len).min(prompt.len() as u32));
        let best = worth.max_by_key(|(_, (common, _))| *common).map(|(index, _)| index);
        best.or((!self.idle.is_empty()).then_some(0))
    }

    /// Feeds a step's worth of the first prompt, which has begun, and moves its request on when that was the rest of it.
    pub(super) fn feed_prompt(&mut self, after_step: &mut AfterStep<'_>) {
        let (max_tokens, places) = (self.machine.prefill_tokens(), SamplingPlaces::of(&self.shared));
        let active = self.machine.prefill.front_mut().expect("a tick looks whether a prompt is to be fed");
        let Active { session, rest, sampling, receiver, resumes, .. } = active;
        let (begun, n_cached) = (Instant::now(), session.len_tokens());
        let n_tokens = self.shared.decided.images.without_cut(rest, max_tokens);
        let fed = match n_tokens < rest.len() {
            _ if receiver.reads_hidden_rows() => {
                session.feed_with_hidden_rows(rest, n_tokens, &mut |_, row| receiver.hidden_row(row)).map(|()| None)
            }
            is_part if receiver.reads_prompt_logits() && resumes.is_none() => {
                let mut last = Vec::new();
                let fed = session.feed_part_with_logits(rest, n_tokens, &mut |position, row| {
                    receiver.prompt_logits(position, row);
                    if !is_part && position as usize + 1 == n_cached as usize + n_tokens {
                        last.extend_from_slice(row);
                    }
                });
                fed.map(|()| (!is_part).then(|| receiver.sample(session.tokens(), &mut last)))
            }
            true => session.feed_part(rest, n_tokens).map(|()| None),
            false if places.samples_on_host(receiver) => session
                .feed_and_read_logits(rest)
                .map(|mut logits| Some(receiver.sample(session.tokens(), &mut logits))),
            false if places.is_masked(receiver) => {
                session.feed_and_sample_masked(rest, sampling, receiver.mask()).map(|sampled| Some(sampled.token))
            }
            false => session.feed_and_sample(rest, sampling).map(|sampled| Some(sampled.token)),
        };
        self.machine.pace.add_prompt(n_tokens, begun.elapsed());
        if fed.is_err() {
            // Earlier steps of the same feed may have ended.
            drop(rest.drain(..(session.len_tokens() - n_cached) as usize));
        }
        self.after_feed(fed.as_ref().copied(), n_tokens, after_step);
    }

    /// Moves the first prompt's request on, behind a step that fed `n_tokens` of it and, if these were the last, gave its first token.
    pub(super) fn after_feed(
        &mut self,
        fed: Result<Option<u32>, &RunError>,
        n_tokens: usize,
        after_step: &mut AfterStep<'_>,
    ) {
        if fed.is_ok() {
            self.keep_beginnings();
        }
        let active = self.machine.prefill.front_mut().expect("its prompt was fed");
        let Active { session, rest, receiver, resumes, .. } = active;
        if fed.is_ok() && resumes.is_none() {
            receiver.fed(session.len_tokens());
        }
        match fed {
            Ok(None) => {
                drop(rest.drain(..n_tokens));
                if rest.is_empty() {
                    self.end_fed();
                }
            }
            Ok(Some(token)) => {
                *rest = vec![token];
                let goes_on = receiver.token(token).is_continue();
                // Requests that came are seen before the next tick anyway.
                let _ = after_step(1);
                let active = self.machine.prefill.pop_front().expect("it was at the front");
                self.move_on(active, goes_on);
            }
            Err(error) => {
                if matches!(error, RunError::NoPages) && self.reclaim() {
                    return;
                }
                let mut active = self.machine.prefill.pop_front().expect("it was at the front");
                active.receiver.end(End::Failed(error));
                active.session.clear();
                self.idle.push_back(active.session);
            }
        }
    }

    /// The first prompt is fed, to a receiver of hidden rows. Nothing continues from its session, which is the next to be used.
    fn end_fed(&mut self) {
        let mut active = self.machine.prefill.pop_front().expect("it was at the front");
        active.receiver.end(End::Fed);
        active.session.clear();
        self.idle.push_front(active.session);
    }
}

/// Moves the sequence of which a session has taken the start behind those that were used before.
fn used_last(ended: &mut VecDeque<EndedSequence>, start: &[u32]) {
    if let Some(at) = ended.iter().rposition(|one| !start.is_empty() && one.tokens().starts_with(start)) {
        let one = ended.remove(at).expect("it was just found");
        ended.push_back(one);
    }
}
