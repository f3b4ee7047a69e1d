//! Prompts: what of one is in some cache already, how much of the rest a tick feeds, and what of it is kept for others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use unicorn_artifact::step::image_of;

use super::mixed_times::Prompts;
use super::{Active, AfterStep, End, MAX_PREFILL_TOKENS, Scheduler, TokenReceiver, samples_on_host};
use crate::error::RunError;
use crate::session::sequence::EndedSequence;
use crate::session::session::Session;
use crate::step::images::without_cut;

/// Fewest tokens, unless the prompt ends: shorter steps would read all weights for little.
pub(super) const MIN_PREFILL_TOKENS: usize = 64;
/// How long sequences that decode may wait for a tick's prefill, if their own steps are not longer: a pause that a reader hardly notices.
/// With shorter parts, more time goes into reading weights: on an H200 with 32 clients, those of 64 tokens cost a fifth of all tokens/s.
const PREFILL_PAUSE: Duration = Duration::from_millis(100);
/// Longest sequence that decodes in a step that feeds a prompt: its row attends to the cache in one workgroup a KV head, where a step that only
/// decodes divides the cache between many.
const MAX_DECODED_TOKENS: u32 = 8192;

impl<R: TokenReceiver> Scheduler<R> {
    /// Finds as much of a prompt, by its place among those that are fed, as any session has in its cache, just before the rest of it is fed: prompts
    /// that were fed since it came count.
    pub(super) fn begin_prompt(&mut self, place: usize) {
        if self.prefill[place].has_begun {
            return;
        }
        let mut active = self.prefill.remove(place).expect("it has just been there");
        active.has_begun = true;
        self.begin_apart(&mut active);
        self.prefill.insert(place, active);
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
        if self.deterministic {
            session.keep_reproducible_start(self.max_prefill_tokens as u32);
        }
        let donors = self.decoding.iter().chain(&self.prefill).map(|active| &active.session).chain(&self.idle);
        let donors = donors.map(Session::sequence).chain(self.ended.iter().map(|ended| &**ended));
        let common = match self.shared.loses_beginnings() {
            true => donors.clone().map(|donor| self.shared.common_start(donor, rest)).max(),
            false => None,
        };
        if let Some(donor) = donors.max_by_key(|donor| self.shared.usable_start(donor, rest)) {
            session.adopt_start(donor, rest);
            if self.deterministic {
                session.keep_reproducible_start(self.max_prefill_tokens as u32);
            }
        }
        used_last(&mut self.ended, session.tokens());
        if let Some(store) = &mut self.kv_store {
            while session.restore(store, rest).is_err() && self.ended.pop_front().is_some() {}
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

    /// Tokens of the first prompt, which has begun, and of the next one if the step ends the first, that the next step of the sequences that decode
    /// can feed; `None`: they take turns.
    pub(super) fn parts_beside(&mut self) -> Option<Vec<usize>> {
        let is_long = |session: &Session| session.len_tokens() > MAX_DECODED_TOKENS;
        let longest = self.decoding.iter().any(|active| is_long(&active.session));
        if self.deterministic || self.decoding.is_empty() || longest || reads_rows(self.prefill.front()?) {
            return None;
        }
        let n_prompts = if self.may_feed_next() { 2 } else { 1 };
        (1..n_prompts).for_each(|place| self.begin_prompt(place));
        let rests: Vec<&[u32]> = self.prefill.iter().map(|active| &*active.rest).collect();
        let n_tokens = |rests: &[&[u32]]| rests.iter().map(|rest| rest.len() as u32).sum::<u32>();
        let next = n_tokens(&rests[..n_prompts]).min(self.max_prefill_tokens as u32);
        let prompts = Prompts { next, all: n_tokens(&rests) };
        let n_decoding = self.decoding.len() as u32;
        let mut left = self.mixed_times.prompt_rows(n_decoding, &prompts, self.times.plain())? as usize;
        let mut parts = Vec::new();
        for rest in &rests[..n_prompts] {
            let part = &rest[..rest.len().min(left)];
            if part.iter().any(|&token| image_of(token).is_some()) {
                break;
            }
            left -= part.len();
            parts.extend((!part.is_empty()).then_some(part.len()));
        }
        (!parts.is_empty()).then_some(parts)
    }

    /// Whether a step can end the first prompt and feed a part of the next one. Not if that begins with what is yet to be fed of the first: then it
    /// waits, and has these tokens for nothing.
    fn may_feed_next(&self) -> bool {
        let (Some(first), Some(next), 2..) = (self.prefill.front(), self.prefill.get(1), self.prompts_beside) else {
            return false;
        };
        let most_tokens = (self.mixed_times.most_rows() as usize).saturating_sub(self.decoding.len());
        if reads_rows(next) || first.rest.len() >= most_tokens.min(self.max_prefill_tokens) {
            return false;
        }
        if next.has_begun {
            return true;
        }
        let is_fed = first.session.len_tokens() as usize;
        let page_tokens = first.session.sequence().page_tokens() as usize;
        let is_same_start = next.rest.len() > is_fed && next.rest[..is_fed] == *first.session.tokens();
        let both = first.rest.iter().zip(next.rest.get(is_fed..).unwrap_or_default());
        !is_same_start || both.take_while(|(one, other)| one == other).count() < page_tokens
    }

    /// Feeds a step's worth of the first prompt, which has begun, and moves its request on when that was the rest of it.
    pub(super) fn feed_prompt(&mut self, after_step: &mut AfterStep<'_>) {
        let (max_tokens, takes_masks) = (self.prefill_tokens(), self.shared.takes_masks);
        let active = self.prefill.front_mut().expect("a tick looks whether a prompt is to be fed");
        let Active { session, rest, sampling, receiver, resumes, .. } = active;
        let (begun, n_cached) = (Instant::now(), session.len_tokens());
        let n_tokens = without_cut(rest, max_tokens);
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
            false if samples_on_host(receiver, takes_masks) => session
                .feed_and_read_logits(rest)
                .map(|mut logits| Some(receiver.sample(session.tokens(), &mut logits))),
            false if receiver.is_masked() => {
                session.feed_and_sample_masked(rest, sampling, receiver.mask()).map(|sampled| Some(sampled.token))
            }
            false => session.feed_and_sample(rest, sampling).map(|sampled| Some(sampled.token)),
        };
        if n_tokens >= MIN_PREFILL_TOKENS {
            self.prefill_tokens_per_s = Some(n_tokens as f64 / begun.elapsed().as_secs_f64());
        }
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
        let active = self.prefill.front_mut().expect("its prompt was fed");
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
                let active = self.prefill.pop_front().expect("it was at the front");
                self.move_on(active, goes_on);
            }
            Err(error) => {
                if matches!(error, RunError::NoPages) && self.reclaim() {
                    return;
                }
                let mut active = self.prefill.pop_front().expect("it was at the front");
                active.receiver.end(End::Failed(error));
                active.session.clear();
                self.idle.push_back(active.session);
            }
        }
    }

    /// The first prompt is fed, to a receiver of hidden rows. Nothing continues from its session, which is the next to be used.
    fn end_fed(&mut self) {
        let mut active = self.prefill.pop_front().expect("it was at the front");
        active.receiver.end(End::Fed);
        active.session.clear();
        self.idle.push_front(active.session);
    }

    /// Tokens of a tick's prefill: a step's worth, and while others decode no more than the last one's rate allows in the pause that they may
    /// wait, up to where a recurrent state is copied.
    fn prefill_tokens(&self) -> usize {
        let most = match self.prefill_tokens_per_s.filter(|_| !self.decoding.is_empty() && !self.deterministic) {
            Some(tokens_per_s) => {
                let pause = self.times.plain().map_or(PREFILL_PAUSE, |step| step.max(PREFILL_PAUSE));
                tokens_in_pause(tokens_per_s, pause).min(self.max_prefill_tokens)
            }
            None => self.max_prefill_tokens,
        };
        self.tokens_to_checkpoint().map_or(most, |to_checkpoint| most.min(to_checkpoint))
    }
}

/// Whether a request reads rows of its prompt, which steps beside sequences that decode do not give.
fn reads_rows<R: TokenReceiver>(active: &Active<R>) -> bool {
    active.receiver.reads_hidden_rows() || active.receiver.reads_prompt_logits() && active.resumes.is_none()
}

/// Moves the sequence of which a session has taken the start behind those that were used before.
fn used_last(ended: &mut VecDeque<EndedSequence>, start: &[u32]) {
    if let Some(at) = ended.iter().rposition(|one| !start.is_empty() && one.tokens().starts_with(start)) {
        let one = ended.remove(at).expect("it was just found");
        ended.push_back(one);
    }
}

fn tokens_in_pause(tokens_per_s: f64, pause: Duration) -> usize {
    let tokens = (tokens_per_s * pause.as_secs_f64()) as usize;
    tokens.clamp(MIN_PREFILL_TOKENS, MAX_PREFILL_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_feeds_less_while_others_wait() {
        let tokens = [1.0, 254.0, 1000.0, 1e6].map(|rate| tokens_in_pause(rate, Duration::from_millis(250)));
        assert_eq!(tokens, [64, 64, 250, 512]);
        assert_eq!(tokens_in_pause(20_000.0, Duration::from_millis(5)), 100);
    }
}
