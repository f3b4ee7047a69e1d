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
//! `machine` decides which request comes next and what a step computes, without a device; this folder carries that out.
//!
//! A session whose request has ended keeps its tokens: a prompt that begins with them continues from there (prefix caching). When another
//! prompt takes the session, the sequence has ended and keeps its pages until a step needs them. A prompt that begins as another sequence's
//! tokens do, also of one that decodes or has ended, holds the same pages of the cache: equal system prompts, and the choices of one
//! request, are computed once. Layers with a sliding window give pages back as a sequence grows, and recurrent state changes; therefore what
//! a prompt has in common with others, and each whole prompt, is also kept as a sequence that has ended (`beginnings.rs`).
//!
//! A part of a prompt and the tokens of the sequences that decode are one step where the artifact has programs for it, so that these get their
//! tokens steadily; otherwise they take turns.
//!
//! With speculation, a sequence that has a draft worth its time gets a step of its own in a tick, in which several of its tokens are
//! computed, before the step that it shares with the others.
//!
//! Where the cache holds fewer tokens than all sessions could have (`LoadOptions::kv_capacity`), a request also waits for pages. When a step
//! finds none, ended sequences and then sessions without a request give theirs back, the one that has been idle longest first; then the
//! newest request of the lowest priority goes back to the queue (`requeue` in `pages.rs`), with its tokens as the prompt: they are computed
//! again later, and its text continues. The first of them is never interrupted, so that each comes to its end.

mod beginnings;
mod deterministic;
mod kept;
mod machine;
mod one_step;
mod pages;
mod prompts;
mod receiver;
mod requests;

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use self::machine::{MAX_PREFILL_TOKENS, Machine, Next};
use self::receiver::SamplingPlaces;
pub use self::receiver::{End, TokenReceiver};
use self::requests::{Active, Waiting};
use crate::error::RunError;
use crate::session::batch::{BatchRow, BatchTokens};
use crate::session::kv_store::KvStore;
use crate::session::model_state::Shared;
use crate::session::sequence::EndedSequence;
use crate::session::session::Session;
use crate::session::speculation::speculator::Speculation;
use crate::step::host_sampling::{HostSampler, HostSampling};
use crate::step::masks::{FillMask, Masks};
use crate::step::sampling::Sampling;

/// Runs requests on the sessions of one model: see [`crate::Model::scheduler`]. It belongs to one thread, which calls
/// [`Scheduler::tick`] again and again.
pub struct Scheduler<R> {
    shared: Arc<Shared>,
    /// The requests, and what is to be done next.
    machine: Machine<Waiting<R>, Active<R>>,
    /// Sessions without a request, the one that has been idle longest first.
    idle: VecDeque<Session>,
    /// Sequences that gave their session to another prompt and keep their pages, the one that was used longest ago first.
    ended: VecDeque<EndedSequence>,
    /// Most ended sequences with a copy of recurrent state.
    max_checkpoints: usize,
    /// Buffer for the logits of rows whose receivers sample, and of verifications.
    logits: Vec<f32>,
    /// `None`: sequences do not speculate.
    speculation: Option<Speculation>,
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

/// Is called after each step with the number of tokens that were sampled. `Break` ends the tick, because requests have come.
pub type AfterStep<'b> = dyn FnMut(usize) -> ControlFlow<()> + 'b;

/// Most copies of recurrent state, unless [`Scheduler::set_max_checkpoints`] sets another number.
const MAX_CHECKPOINTS: usize = 8;

impl<R: TokenReceiver> Scheduler<R> {
    /// A scheduler with all sessions that the model was loaded for.
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Scheduler<R>, RunError> {
        if shared.slots() > shared.batch_rows() {
            return Err(RunError::NoProgram { wanted: "a token of each sequence of the batch" });
        }
        let idle = (0..shared.slots()).map(|_| Session::new(shared.clone())).collect::<Result<_, _>>()?;
        Ok(Scheduler {
            shared: shared.clone(),
            machine: Machine::new(shared.mixed_rows(), shared.prompts_beside()),
            idle,
            ended: VecDeque::new(),
            max_checkpoints: MAX_CHECKPOINTS,
            logits: Vec::new(),
            speculation: None,
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
        self.machine.limits.max_prefill_tokens = (max_tokens as usize).clamp(1, MAX_PREFILL_TOKENS);
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
        let place = self.machine.next_place(priority);
        self.machine.enqueue(Waiting { place, prompt, sampling, receiver, resumes: None });
    }

    /// Requests without a session.
    pub fn waiting(&self) -> usize {
        self.machine.waiting.len()
    }

    /// Requests whose prompt is not in the cache yet.
    pub fn in_prefill(&self) -> usize {
        self.machine.prefill.len()
    }

    /// Requests that get a token in each step.
    pub fn decoding(&self) -> usize {
        self.machine.decoding.len()
    }

    /// Pages of the KV cache that the sequences hold that are generated, each counted once; what idle sessions keep is not counted.
    pub fn running_pages(&self) -> u32 {
        let running = || self.machine.running().map(|active| active.session.tables());
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
        self.machine.preemptions()
    }

    /// Times that the device was lost since the model was loaded.
    pub fn device_losses(&self) -> u64 {
        self.shared.generation()
    }

    /// Whether a tick would do nothing.
    pub fn is_idle(&self) -> bool {
        self.machine.is_empty() && !self.has_to_keep()
    }

    /// Gives free sessions to waiting requests. Then, while prompts are to be fed, feeds a step's worth of the first of them and
    /// runs one step of all decoding sequences, or the same step; otherwise runs their steps until one of them ends or `after_step` breaks.
    /// Blocks meanwhile. A failed step ends its requests, not the scheduler.
    pub fn tick(&mut self, after_step: &mut AfterStep<'_>) {
        self.drop_closed();
        self.admit();
        self.make_pages_free();
        loop {
            match self.machine.next() {
                Next::Begin(place) => {
                    self.begin_prompt(place);
                    continue;
                }
                Next::Decode => self.decode(u32::MAX, after_step),
                Next::DecodeBeside(parts) => self.decode_beside(&parts, after_step),
                Next::TakeTurns => {
                    self.feed_prompt(after_step);
                    self.decode(1, after_step);
                }
            }
            break;
        }
        if self.machine.prefill.is_empty() && self.machine.waiting.is_empty() {
            self.keep_next();
        }
    }

    fn drop_closed(&mut self) {
        self.machine.waiting.retain(|request| !request.receiver.is_closed());
        let (closed, open): (VecDeque<_>, _) =
            self.machine.prefill.drain(..).partition(|active| active.receiver.is_closed());
        self.machine.prefill = open;
        self.idle.extend(closed.into_iter().map(|active| active.session));
    }

    fn admit(&mut self) {
        while let Some(index) = self.machine.waiting.front().and_then(|request| self.best_session(request.reused()))
            && self.has_pages_for(&self.machine.waiting[0].prompt)
        {
            let session = self.idle.remove(index).expect("an index of an idle session");
            let request = self.machine.waiting.pop_front().expect("it was at the front");
            let Waiting { place, prompt: rest, sampling, receiver, resumes } = request;
            let speculator = self.speculation.as_ref().map(Speculation::speculator);
            self.machine.admit(Active {
                place,
                session,
                has_begun: false,
                resumes,
                beginnings: Vec::new(),
                rest,
                sampling,
                receiver,
                speculator,
            });
        }
    }

    /// Steps of all decoding sequences, at most `max_steps`; those that have a draft get one before it that verifies the draft, and where all
    /// do, no other.
    fn decode(&mut self, max_steps: u32, after_step: &mut AfterStep<'_>) {
        if self.machine.limits.deterministic {
            return self.decode_in_turn(max_steps, after_step);
        }
        let n_sequences = self.machine.decoding.len();
        match self.verify_drafts(after_step) {
            0 => self.decode_together(max_steps, after_step),
            n_verified if n_verified < n_sequences => self.decode_together(1, after_step),
            _ => {}
        }
    }

    /// One step of all decoding sequences that feeds parts of the first prompts; where all of them verify drafts, one of the first prompt.
    fn decode_beside(&mut self, parts: &[usize], after_step: &mut AfterStep<'_>) {
        let n_sequences = self.machine.decoding.len();
        match self.verify_drafts(after_step) == n_sequences {
            true => self.feed_prompt(after_step),
            false => self.decode_and_choose(parts, after_step),
        }
    }

    fn decode_together(&mut self, max_steps: u32, after_step: &mut AfterStep<'_>) {
        if self.machine.decoding.is_empty() {
            return;
        }
        let places = SamplingPlaces::of(&self.shared);
        if self.machine.decoding.iter().any(|active| places.samples_on_host(&active.receiver)) {
            return self.decode_and_choose(&[], after_step);
        }
        let n_sequences = self.machine.decoding.len();
        let drafts_are_near = |active: &Active<R>| active.speculator.as_ref().is_some_and(|one| !one.runs_ahead());
        let drafts_are_near = self.machine.decoding.iter().any(drafts_are_near);
        let max_steps = if drafts_are_near { 1 } else { max_steps };
        let mut go_on = vec![true; n_sequences];
        let (mut rows, mut receivers) = (Vec::new(), Vec::new());
        for (active, goes_on) in self.machine.decoding.iter_mut().zip(&mut go_on) {
            let Active { session, rest, sampling, receiver, speculator, .. } = active;
            rows.push(BatchRow { session, token: rest[0], sampling });
            let is_masked = places.is_masked(receiver);
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
                self.machine.pace.add_plain(begun.elapsed());
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
                    *is_masked = places.is_masked(*receiver);
                    wait_for_host |= places.samples_on_host(*receiver);
                }
                if let Some(speculator) = speculator {
                    let (tokens, newest) = steps.tokens(row);
                    let most = most_draft_tokens(&self.shared, tokens);
                    if speculator.has_draft(tokens, newest, most, n_sequences, &self.machine.pace.steps) {
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
            let _ = self.machine.decoding[row].session.truncate(len_tokens);
        }
        self.after_decode(&go_on, failed.as_ref());
    }

    /// Verifies the draft of each decoding sequence that has one, and moves its request on. Returns how many those were.
    fn verify_drafts(&mut self, after_step: &mut AfterStep<'_>) -> usize {
        let n_sequences = self.machine.decoding.len();
        let mut n_verified = 0;
        for mut active in std::mem::take(&mut self.machine.decoding) {
            let Active { session, rest, sampling, receiver, speculator: Some(speculator), .. } = &mut active else {
                self.machine.decoding.push(active);
                continue;
            };
            let most = most_draft_tokens(&self.shared, session.tokens());
            let draft =
                match speculator.has_draft(session.tokens(), rest[0], most, n_sequences, &self.machine.pace.steps) {
                    true => speculator.take_draft(|n_tokens| session.predict(rest[0], n_tokens).unwrap_or_default()),
                    false => Vec::new(),
                };
            if draft.is_empty() {
                self.machine.decoding.push(active);
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
                newest = match receiver.samples_on_host() || receiver.is_masked() {
                    true => receiver.sample(tokens, logits),
                    false => sampler.sample_as_device(number, tokens, logits, None).token,
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
                    speculator.add(&ran, &mut self.machine.pace.steps);
                    // The tick ends soon anyway.
                    let _ = after_step(ran.chosen);
                    n_verified += 1;
                    self.move_on(active, goes_on);
                }
                // The step of one row finds pages, or makes some free.
                Err(RunError::NoPages) => self.machine.decoding.push(active),
                Err(error) => self.fail(active, true, &error),
            }
        }
        n_verified
    }

    /// Advances the requests that decoded; `go_on`: whether each is to have more tokens.
    fn after_decode(&mut self, go_on: &[bool], failed: Option<&RunError>) {
        let decoded = std::mem::take(&mut self.machine.decoding).into_iter().zip(go_on);
        match failed {
            // Nothing was appended by the step that failed: all go on from the one before.
            None | Some(RunError::NoPages) => decoded.for_each(|(active, &goes_on)| self.move_on(active, goes_on)),
            Some(error) => decoded.for_each(|(active, &goes_on)| self.fail(active, goes_on, error)),
        }
        if let Some(error @ RunError::NoPages) = failed
            && !self.reclaim()
        {
            std::mem::take(&mut self.machine.decoding).into_iter().for_each(|active| self.fail(active, true, error));
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
            true => self.machine.decoding.push(active),
            false => self.idle.push_back(active.session),
        }
    }
}

/// Most tokens of a draft behind `tokens` and the newest one, so that the context has room for the token that follows, too.
fn most_draft_tokens(shared: &Shared, tokens: &[u32]) -> usize {
    (shared.context_tokens() as usize).saturating_sub(tokens.len() + 2)
}
