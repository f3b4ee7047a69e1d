//! Continuous batching: sequences come and go between steps, and those that decode share each step, so that weights are read
//! once for all of them.
//!
//! ```text
//!            a session is free        prompt is fed             receiver is done, context is full
//! waiting ──────────────────► prefill ────────────► decoding ──────────────────────────────────► idle session
//!                             a step's worth        all of them                                   keeps its cache
//!                             in a tick             in each step
//! ```
//!
//! A session whose request has ended keeps its tokens: a prompt that begins with them continues from there (prefix caching). When another
//! prompt takes the session, the sequence has ended and keeps its pages until a step needs them. A prompt that begins as another sequence's
//! tokens do, also of one that decodes or has ended, holds the same pages of the cache: equal system prompts, and the choices of one
//! request, are computed once. Layers with a sliding window give pages back as a sequence grows, and recurrent state changes; therefore what
//! a prompt has in common with others, and each whole prompt, is also kept as a sequence that has ended (`beginnings.rs`).
//!
//! A part of a prompt and the tokens of the sequences that decode are one step where the artifact has programs for it, so that these get their
//! tokens steadily (`mixed_times.rs`); otherwise they take turns.
//!
//! With speculation, a sequence that has a draft worth its time gets a step of its own in a tick, in which several of its tokens are
//! computed, before the step that it shares with the others.
//!
//! Where the cache holds fewer tokens than all sessions could have (`LoadOptions::kv_tokens`), a request also waits for pages. When a step
//! finds none, ended sequences and then sessions without a request give theirs back, the one that has been idle longest first; then the
//! newest request of the lowest priority goes back to the queue (`preempt` in `pages.rs`), with its tokens as the prompt: they are computed
//! again later, and its text continues. The first of them is never interrupted, so that each comes to its end.

mod beginnings;
mod deterministic;
mod kept;
mod mixed_times;
mod one_step;
mod pages;
mod prompts;

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use self::mixed_times::MixedTimes;
use crate::error::RunError;
use crate::session::batch::{BatchRow, BatchTokens};
use crate::session::kv_store::KvStore;
use crate::session::model_state::Shared;
use crate::session::sequence::EndedSequence;
use crate::session::session::Session;
use crate::session::speculation::draft_length::StepTimes;
use crate::session::speculation::speculator::{Speculation, Speculator};
use crate::step::host_sampling::{HostSampler, HostSampling};
use crate::step::masks::{FillMask, Masks};
use crate::step::sampling::Sampling;

/// Runs requests on the sessions of one model: see [`crate::Model::scheduler`]. It belongs to one thread, which calls
/// [`Scheduler::tick`] again and again.
pub struct Scheduler<R> {
    shared: Arc<Shared>,
    /// Requests without a session, in order.
    waiting: VecDeque<Waiting<R>>,
    /// Number of the next request.
    next_number: u64,
    preemptions: u64,
    /// Requests whose prompts are being fed, in order; only the first is fed in a tick.
    prefill: VecDeque<Active<R>>,
    decoding: Vec<Active<R>>,
    /// Sessions without a request, the one that has been idle longest first.
    idle: VecDeque<Session>,
    /// Sequences that gave their session to another prompt and keep their pages, the one that was used longest ago first.
    ended: VecDeque<EndedSequence>,
    /// Rate of the last tick that fed at least [`MIN_PREFILL_TOKENS`].
    prefill_tokens_per_s: Option<f64>,
    /// Most tokens of a prompt that are fed in a tick.
    max_prefill_tokens: usize,
    /// Most ended sequences with a copy of recurrent state.
    max_checkpoints: usize,
    /// Buffer for the logits of rows whose receivers sample, and of verifications.
    logits: Vec<f32>,
    /// `None`: sequences do not speculate.
    speculation: Option<Speculation>,
    times: StepTimes,
    mixed_times: MixedTimes,
    /// Most prompts of which such a step feeds parts.
    prompts_beside: usize,
    /// Each text is that of its request alone.
    deterministic: bool,
    /// `None`: what sequences have computed is not written.
    kv_store: Option<KvStore>,
    kv_store_error: Option<io::Error>,
}

/// A prompt that is to be continued.
pub struct Request<R> {
    /// Tokens of the prompt: at least one, at most as many as the context holds.
    pub prompt: Vec<u32>,
    /// How the tokens that follow are sampled.
    pub sampling: Sampling,
    /// Requests of a lower number come first, in the queue and when prompts are fed, and give their pages back last. Usually 0.
    pub priority: i32,
    /// Receiver of those tokens.
    pub receiver: R,
}

/// Receives the tokens of a request. Its methods are called by [`Scheduler::tick`] between two steps, with nothing locked: they
/// delay the next step, and may call everything.
pub trait TokenReceiver {
    /// The prompt is about to be fed, to a session whose cache has the first `cached_tokens` of it.
    fn begin(&mut self, cached_tokens: u32);

    /// The cache has the first `n_tokens` of the prompt. Is called after each step that fed some of it, before the first token; not for
    /// tokens that are computed again because pages ran out.
    fn fed(&mut self, _n_tokens: u32) {}

    /// Receives the next token. `Break` ends the request; no method is called afterwards.
    fn token(&mut self, token: u32) -> ControlFlow<()>;

    /// Whether [`TokenReceiver::sample`] samples the next token, on the host, instead of the device. It may change with each token. No
    /// steps run ahead while such a request decodes, which costs all requests time.
    fn samples_on_host(&self) -> bool {
        false
    }

    /// Whether the device may sample only some tokens next, which [`TokenReceiver::mask`] finds. It may change with each token, which costs all
    /// requests the step that runs ahead. Where a draft is verified, and for artifacts without [`crate::Model::takes_masks`],
    /// [`TokenReceiver::sample`] samples instead.
    fn is_masked(&self) -> bool {
        false
    }

    /// What finds the tokens that may be sampled next. It runs on some thread while the device computes the logits, with the model locked: it
    /// may not use the model. The device waits for it, where it takes longer than a step. Where a step did not run, this is called again. Where no token is allowed, one is received that has no
    /// meaning.
    fn mask(&mut self) -> FillMask<'_> {
        Box::new(|_| {})
    }

    /// Samples the token that follows `tokens` by its logits, one for each token of the vocabulary. It is then received like others.
    fn sample(&mut self, _tokens: &[u32], _logits: &mut [f32]) -> u32 {
        0
    }

    /// Whether [`TokenReceiver::hidden_row`] takes the prompt's hidden rows, and no token. Such a prompt is fed from its first token on, by
    /// a session that is cleared afterwards.
    fn reads_hidden_rows(&self) -> bool {
        false
    }

    /// The next token's hidden state, see [`Session::feed_with_hidden_rows`]. After the last one, [`End::Fed`] follows; a preempted request
    /// begins again with [`TokenReceiver::begin`].
    fn hidden_row(&mut self, _row: &[f32]) {}

    /// Whether [`TokenReceiver::prompt_logits`] takes the logits of the prompt. Such a prompt is fed from its first token on, and
    /// [`TokenReceiver::sample`] samples the token that follows.
    fn reads_prompt_logits(&self) -> bool {
        false
    }

    /// The logits of the token that follows `position` of the prompt, one for each token of the vocabulary. A request that is preempted before
    /// its first token begins again with [`TokenReceiver::begin`].
    fn prompt_logits(&mut self, _position: u32, _logits: &[f32]) {}

    /// Adds to the counts of its drafts: with the tokens of one that is about to be verified, and with each accepted token, just before
    /// that is received.
    fn drafted(&mut self, _proposed: u32, _accepted: u32) {}

    /// Whether the tokens are not needed any more. Requests without a token yet are dropped then, and no method is called
    /// afterwards.
    fn is_closed(&self) -> bool;

    /// The request ended, although [`TokenReceiver::token`] did not end it.
    fn end(&mut self, why: End<'_>);
}

/// Why a request ended early.
#[derive(Debug)]
pub enum End<'e> {
    /// The sequence is as long as the model was loaded for.
    ContextFull,
    /// The prompt was fed to a receiver of hidden rows.
    Fed,
    /// A step failed, or the prompt was refused.
    Failed(&'e RunError),
}

/// Is called after each step with the number of tokens that were sampled. `Break` ends the tick, because requests have come.
pub type AfterStep<'b> = dyn FnMut(usize) -> ControlFlow<()> + 'b;

/// Order of requests: by priority, and among equals by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: i32,
    /// Number of requests that came before it.
    number: u64,
}

/// A request without a session.
struct Waiting<R> {
    place: Place,
    prompt: Vec<u32>,
    sampling: Sampling,
    receiver: R,
    /// Tokens that were sampled for it before it was preempted; `None`: it was not.
    resumes: Option<u32>,
}

/// A request with a session.
struct Active<R> {
    place: Place,
    session: Session,
    /// Whether the session's cache was cut to what it shares with the prompt.
    has_begun: bool,
    /// See [`Waiting::resumes`].
    resumes: Option<u32>,
    /// Lengths at which it is kept as a sequence that has ended, for later prompts; in order.
    beginnings: Vec<u32>,
    /// Tokens that are still to be appended: the rest of the prompt, or the newest token.
    rest: Vec<u32>,
    sampling: Sampling,
    receiver: R,
    /// `None`: it does not speculate.
    speculator: Option<Speculator>,
}

/// Most tokens of a prompt that are fed in a tick, unless [`Scheduler::set_max_prefill_tokens`] sets fewer.
const MAX_PREFILL_TOKENS: usize = 512;
/// Most copies of recurrent state, unless [`Scheduler::set_max_checkpoints`] sets another number.
const MAX_CHECKPOINTS: usize = 8;

impl<R: TokenReceiver> Scheduler<R> {
    /// A scheduler with all sessions that the model was loaded for.
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Scheduler<R>, RunError> {
        if shared.slots() > shared.batch_rows() {
            return Err(RunError::NoProgram { wanted: "a token of each sequence of the batch" });
        }
        let idle = (0..shared.slots()).map(|_| Session::new(shared.clone())).collect::<Result<_, _>>()?;
        let (waiting, prefill, decoding, ended) = (VecDeque::new(), VecDeque::new(), Vec::new(), VecDeque::new());
        Ok(Scheduler {
            shared: shared.clone(),
            waiting,
            next_number: 0,
            preemptions: 0,
            prefill,
            decoding,
            idle,
            ended,
            prefill_tokens_per_s: None,
            max_prefill_tokens: MAX_PREFILL_TOKENS,
            max_checkpoints: MAX_CHECKPOINTS,
            logits: Vec::new(),
            speculation: None,
            times: StepTimes::default(),
            mixed_times: MixedTimes::new(shared.mixed_rows()),
            prompts_beside: shared.prompts_beside(),
            deterministic: false,
            kv_store: None,
            kv_store_error: None,
        })
    }

    /// From now on, requests that begin to decode speculate, or do not. It changes how long tokens take, not which they are; but see
    /// [`Speculation`].
    ///
    /// # Errors
    /// For an option out of its range.
    pub fn set_speculation(&mut self, speculation: Option<Speculation>) -> Result<(), RunError> {
        speculation.as_ref().map_or(Ok(()), Speculation::check)?;
        self.speculation = speculation;
        Ok(())
    }

    /// From now on, at most this number of tokens of a prompt is fed in a tick: fewer let sequences that decode wait less, and progress
    /// of a prompt is reported more often. At least 1; more than 512, the default, count as these.
    pub fn set_max_prefill_tokens(&mut self, max_tokens: u32) {
        self.max_prefill_tokens = (max_tokens as usize).clamp(1, MAX_PREFILL_TOKENS);
    }

    /// From now on, at most this number of beginnings of prompts is kept for a model with recurrent state (8 by default), each with a copy of a
    /// sequence's state in host memory. Without one, a prompt that continues from anywhere but the end of a session is computed from its
    /// first token.
    pub fn set_max_checkpoints(&mut self, max_checkpoints: u32) {
        self.max_checkpoints = max_checkpoints as usize;
        self.limit_checkpoints();
    }

    /// Puts a request into the queue, behind those of its priority.
    pub fn submit(&mut self, request: Request<R>) {
        let Request { prompt, sampling, priority, receiver } = request;
        let place = Place { priority, number: self.next_number };
        self.next_number += 1;
        self.enqueue(Waiting { place, prompt, sampling, receiver, resumes: None });
    }

    fn enqueue(&mut self, request: Waiting<R>) {
        let at = self.waiting.partition_point(|one| one.place < request.place);
        self.waiting.insert(at, request);
    }

    /// Requests without a session.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests whose prompt is not in the cache yet.
    pub fn in_prefill(&self) -> usize {
        self.prefill.len()
    }

    /// Requests that get a token in each step.
    pub fn decoding(&self) -> usize {
        self.decoding.len()
    }

    /// Tokens in the KV cache of the sequences that are generated; what idle sessions keep is not counted.
    pub fn running_tokens(&self) -> u64 {
        let running = self.prefill.iter().chain(&self.decoding);
        running.map(|active| u64::from(active.session.len_tokens())).sum()
    }

    /// Pages of the KV cache that the sequences hold that are generated, each counted once.
    pub fn running_pages(&self) -> u32 {
        let running = || self.prefill.iter().chain(&self.decoding).map(|active| active.session.tables());
        let n_groups = running().map(<[_]>::len).max().unwrap_or(0);
        let pages_of_group = |group: usize| {
            let mut is_counted: Vec<bool> = Vec::new();
            let mut n_pages = 0;
            for page in running().flat_map(|tables| tables[group].pages()).map(|page| page as usize) {
                is_counted.resize(is_counted.len().max(page + 1), false);
                n_pages += u32::from(!std::mem::replace(&mut is_counted[page], true));
            }
            n_pages
        };
        (0..n_groups).map(pages_of_group).sum()
    }

    /// Times that a request went back to the queue because pages ran out.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Times that the device was lost since the model was loaded.
    pub fn device_losses(&self) -> u64 {
        self.shared.generation()
    }

    /// Whether a tick would do nothing.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.prefill.is_empty() && self.decoding.is_empty() && !self.has_to_keep()
    }

    /// Gives free sessions to waiting requests. Then, while prompts are to be fed, feeds a step's worth of the first of them and
    /// runs one step of all decoding sequences, or the same step; otherwise runs their steps until one of them ends or `after_step` breaks.
    /// Blocks meanwhile. A failed step ends its requests, not the scheduler.
    pub fn tick(&mut self, after_step: &mut AfterStep<'_>) {
        self.drop_closed();
        self.admit();
        self.make_pages_free();
        if self.prefill.is_empty() {
            self.decode(u32::MAX, after_step);
        } else {
            self.feed_and_decode(after_step);
        }
        if self.prefill.is_empty() && self.waiting.is_empty() {
            self.keep_next();
        }
    }

    fn drop_closed(&mut self) {
        self.waiting.retain(|request| !request.receiver.is_closed());
        let (closed, open): (VecDeque<_>, _) = self.prefill.drain(..).partition(|active| active.receiver.is_closed());
        self.prefill = open;
        self.idle.extend(closed.into_iter().map(|active| active.session));
    }

    fn admit(&mut self) {
        while let Some(index) = self.waiting.front().and_then(|request| self.best_session(reused(request)))
            && self.has_pages_for(&self.waiting[0].prompt)
        {
            let session = self.idle.remove(index).expect("an index of an idle session");
            let request = self.waiting.pop_front().expect("it was at the front");
            let Waiting { place, prompt: rest, sampling, receiver, resumes } = request;
            let speculator = self.speculation.as_ref().map(Speculation::speculator);
            let active = Active {
                place,
                session,
                has_begun: false,
                resumes,
                beginnings: Vec::new(),
                rest,
                sampling,
                receiver,
                speculator,
            };
            let at = self.prefill.partition_point(|one| one.place < place);
            self.prefill.insert(at, active);
        }
    }

    /// Steps of all decoding sequences, at most `max_steps`; those that have a draft get one before it that verifies the draft, and where all
    /// do, no other.
    fn decode(&mut self, max_steps: u32, after_step: &mut AfterStep<'_>) {
        if self.deterministic {
            return self.decode_in_turn(max_steps, after_step);
        }
        let n_sequences = self.decoding.len();
        match self.verify_drafts(after_step) {
            0 => self.decode_together(max_steps, after_step),
            n_verified if n_verified < n_sequences => self.decode_together(1, after_step),
            _ => {}
        }
    }

    /// Feeds a part of the first prompt, and runs a step of all decoding sequences: the same one, if that is possible, which may feed a part of the
    /// next prompt, too.
    fn feed_and_decode(&mut self, after_step: &mut AfterStep<'_>) {
        self.begin_prompt(0);
        let n_sequences = self.decoding.len();
        match self.parts_beside() {
            Some(_) if self.verify_drafts(after_step) == n_sequences => self.feed_prompt(after_step),
            Some(parts) => self.decode_and_choose(&parts, after_step),
            None => {
                self.feed_prompt(after_step);
                self.decode(1, after_step);
            }
        }
    }

    fn decode_together(&mut self, max_steps: u32, after_step: &mut AfterStep<'_>) {
        if self.decoding.is_empty() {
            return;
        }
        let takes_masks = self.shared.takes_masks;
        if self.decoding.iter().any(|active| samples_on_host(&active.receiver, takes_masks)) {
            return self.decode_and_choose(&[], after_step);
        }
        let n_sequences = self.decoding.len();
        let drafts_are_near = |active: &Active<R>| active.speculator.as_ref().is_some_and(|one| !one.runs_ahead());
        let drafts_are_near = self.decoding.iter().any(drafts_are_near);
        let max_steps = if drafts_are_near { 1 } else { max_steps };
        let mut go_on = vec![true; n_sequences];
        let (mut rows, mut receivers) = (Vec::new(), Vec::new());
        for (active, goes_on) in self.decoding.iter_mut().zip(&mut go_on) {
            let Active { session, rest, sampling, receiver, speculator, .. } = active;
            rows.push(BatchRow { session, token: rest[0], sampling });
            let is_masked = is_masked(receiver, takes_masks);
            receivers.push((receiver, rest, speculator, goes_on, is_masked));
        }
        let mut failed = None;
        // Rows of requests that end, and the tokens that their sequences have then.
        let mut ends = Vec::new();
        let mut steps = BatchTokens::new(&self.shared, rows, max_steps);
        loop {
            let begun = Instant::now();
            let masked = receivers.iter_mut().enumerate().filter(|(_, (.., is_masked))| *is_masked);
            let masks = masked.map(|(row, (receiver, .., goes_on, _))| match **goes_on {
                true => (row, receiver.mask()),
                // The step that runs ahead has a row of it, whose token nobody needs.
                false => (row, Box::new(|_: &mut [u32]| {}) as FillMask),
            });
            let Some(step) = steps.next_masked(&mut Masks::of(masks.collect())) else { break };
            let sampled = match step {
                Ok(sampled) => sampled,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            };
            // Drafts are compared with what they prevent: steps that run ahead.
            if !drafts_are_near {
                self.times.add_plain(begun.elapsed());
                self.mixed_times.add_plain(self.times.plain().unwrap_or_default());
            }
            let (mut wait_for_host, mut n_tokens) = (false, 0);
            for (row, ((receiver, rest, speculator, goes_on, is_masked), sampled)) in
                receivers.iter_mut().zip(&sampled).enumerate()
            {
                if !**goes_on {
                    continue;
                }
                n_tokens += 1;
                rest[0] = sampled.token;
                **goes_on = receiver.token(sampled.token).is_continue();
                if !**goes_on {
                    ends.push((row, steps.tokens(row).0.len() as u32));
                }
                if **goes_on {
                    *is_masked = self::is_masked(*receiver, takes_masks);
                    wait_for_host |= samples_on_host(*receiver, takes_masks);
                }
                if let Some(speculator) = speculator {
                    let (tokens, newest) = steps.tokens(row);
                    let most = most_draft_tokens(&self.shared, tokens);
                    if speculator.has_draft(tokens, newest, most, n_sequences, &self.times) {
                        steps.end_soon();
                    }
                }
            }
            let is_over = after_step(n_tokens).is_break() || !ends.is_empty();
            let all_end = ends.len() == n_sequences && !self.shared.has_state();
            if wait_for_host || all_end {
                break;
            }
            if is_over {
                // The step that runs ahead has the next tokens of those that go on: thrown away, it would be waited for and run again.
                steps.end_soon();
            }
        }
        drop(steps);
        // A recurrent state stays with the tokens that it includes: others may continue there, and a store may keep it.
        for (row, len_tokens) in ends.into_iter().filter(|_| !self.shared.has_state()) {
            let _ = self.decoding[row].session.truncate(len_tokens);
        }
        self.after_decode(&go_on, failed.as_ref());
    }

    /// Verifies the draft of each decoding sequence that has one, and moves its request on. Returns how many those were.
    fn verify_drafts(&mut self, after_step: &mut AfterStep<'_>) -> usize {
        let n_sequences = self.decoding.len();
        let mut n_verified = 0;
        for mut active in std::mem::take(&mut self.decoding) {
            let Active { session, rest, sampling, receiver, speculator: Some(speculator), .. } = &mut active else {
                self.decoding.push(active);
                continue;
            };
            let most = most_draft_tokens(&self.shared, session.tokens());
            let draft = match speculator.has_draft(session.tokens(), rest[0], most, n_sequences, &self.times) {
                true => speculator.take_draft(|n_tokens| session.predict(rest[0], n_tokens).unwrap_or_default()),
                false => Vec::new(),
            };
            if draft.is_empty() {
                self.decoding.push(active);
                continue;
            }
            rest.extend(&draft);
            receiver.drafted(draft.len() as u32, 0);
            let sampler = HostSampler::new(sampling.clone(), HostSampling::default());
            let mut goes_on = true;
            let mut newest = rest[0];
            let mut expected = rest[1..].iter();
            let ran = session.verify(rest, &mut self.logits, &mut |tokens, number, logits| {
                // By the logits: a verification takes no masks.
                newest = match samples_on_host(receiver, false) {
                    true => receiver.sample(tokens, logits),
                    false => sampler.sample_as_device(number, tokens, logits).token,
                };
                if expected.next() == Some(&newest) {
                    receiver.drafted(0, 1);
                }
                goes_on = receiver.token(newest).is_continue();
                (newest, goes_on)
            });
            *rest = vec![newest];
            match ran {
                Ok(ran) => {
                    speculator.add(&ran, &mut self.times);
                    // The tick ends soon anyway.
                    let _ = after_step(ran.chosen);
                    n_verified += 1;
                    self.move_on(active, goes_on);
                }
                // The step of one row finds pages, or makes some free.
                Err(RunError::NoPages) => self.decoding.push(active),
                Err(error) => self.fail(active, true, &error),
            }
        }
        n_verified
    }

    /// Advances the requests that decoded; `go_on`: whether each is to have more tokens.
    fn after_decode(&mut self, go_on: &[bool], failed: Option<&RunError>) {
        let decoded = std::mem::take(&mut self.decoding).into_iter().zip(go_on);
        match failed {
            // Nothing was appended by the step that failed: all go on from the one before.
            None | Some(RunError::NoPages) => decoded.for_each(|(active, &goes_on)| self.move_on(active, goes_on)),
            Some(error) => decoded.for_each(|(active, &goes_on)| self.fail(active, goes_on, error)),
        }
        if let Some(error @ RunError::NoPages) = failed
            && !self.reclaim()
        {
            std::mem::take(&mut self.decoding).into_iter().for_each(|active| self.fail(active, true, error));
        }
    }

    /// Ends a request whose step failed, with an error if it is not ended already.
    fn fail(&mut self, mut active: Active<R>, goes_on: bool, error: &RunError) {
        if goes_on {
            active.receiver.end(End::Failed(error));
        }
        active.session.clear();
        self.idle.push_back(active.session);
    }

    /// After a token, a request continues to decode, or its session becomes free.
    fn move_on(&mut self, mut active: Active<R>, goes_on: bool) {
        let is_full = active.session.len_tokens() >= self.shared.context_tokens();
        if goes_on && is_full {
            active.receiver.end(End::ContextFull);
        }
        match goes_on && !is_full {
            true => self.decoding.push(active),
            false => self.idle.push_back(active.session),
        }
    }
}

/// Whether the host samples a receiver's next token, by its logits, where steps take masks or do not.
fn samples_on_host(receiver: &impl TokenReceiver, takes_masks: bool) -> bool {
    receiver.samples_on_host() || receiver.is_masked() && !takes_masks
}

/// Whether the device samples a receiver's next token among some.
fn is_masked(receiver: &impl TokenReceiver, takes_masks: bool) -> bool {
    receiver.is_masked() && !samples_on_host(receiver, takes_masks)
}

/// The prompt whose beginning a session may have in its cache already.
fn reused<R: TokenReceiver>(request: &Waiting<R>) -> &[u32] {
    if request.receiver.reads_hidden_rows() { &[] } else { &request.prompt }
}

/// Most tokens of a draft behind `tokens` and the newest one, so that the context has room for the token that follows, too.
fn most_draft_tokens(shared: &Shared, tokens: &[u32]) -> usize {
    (shared.context_tokens() as usize).saturating_sub(tokens.len() + 2)
}
