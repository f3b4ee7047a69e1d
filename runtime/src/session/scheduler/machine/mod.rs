//! The scheduler's decisions as a state machine: which request comes next, and what the next step computes. It knows no device, no sessions and
//! no clock. The caller reports events: a request came, a step took so long, pages ran out. [`Machine::next`] then says what to do, and the
//! caller does it and moves the requests along the arrows. `simulation.rs` is such a caller, with measured times of steps.
//!
//! ```text
//! enqueue           admit             a first token             a last token
//! ───────► waiting ───────► prefill ───────────────► decoding ──────────────►
//!             ▲                │                        │
//!             └────────────────┴────── preempt ─────────┘
//! ```
//!
//! What requests are is up to the caller: those without a session, `W`, have a [`Place`]; of those with one, `A`, the machine asks what
//! [`Running`] says.

mod mixed_times;
mod pace;
#[cfg(test)]
mod simulation;

use std::collections::VecDeque;

use self::mixed_times::Prompts;
pub use self::pace::{MAX_PREFILL_TOKENS, MIN_PREFILL_TOKENS, Pace};

/// Requests in their places, and the times of their steps.
pub struct Machine<W, A> {
    /// Requests without a session, in order.
    pub waiting: VecDeque<W>,
    /// Requests whose prompts are being fed, in order.
    pub prefill: VecDeque<A>,
    /// Requests that get a token in each step, in the order in which their prompts were fed.
    pub decoding: Vec<A>,
    pub limits: Limits,
    pub pace: Pace,
    /// Number of the next request.
    next_number: u64,
    preemptions: u64,
}

/// What steps may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most tokens of a prompt that are fed in a step.
    pub max_prefill_tokens: usize,
    /// Most prompts of which a step that also decodes feeds parts.
    pub prompts_beside: usize,
    /// Steps do not depend on which requests run.
    pub deterministic: bool,
}

/// Order of requests: by priority, the lower number first, and among equals by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    priority: i32,
    /// Number of requests that came before it.
    number: u64,
}

/// A request that has a place.
pub trait Placed {
    fn place(&self) -> Place;
}

/// What decides about a request with a session. Tokens are those of its prompt while that is being fed.
pub trait Running: Placed {
    /// Whether it is known which of its first tokens are in a cache already. Until then, none is.
    fn has_begun(&self) -> bool;
    /// Tokens in its cache.
    fn n_cached(&self) -> u32;
    /// Tokens of its prompt that are not in its cache.
    fn n_left(&self) -> usize;
    /// Whether a step gives it rows of its prompt, which a step that also decodes cannot.
    fn reads_rows(&self) -> bool;
    /// Whether it begins with more than `first` has in its cache, and with what is yet to be fed of that: fed later, it has these tokens for nothing.
    fn shares_rest_of(&self, first: &Self) -> bool;
    /// How many of the next `n_tokens` of its prompt come before a row of an image, which a step that also decodes cannot feed.
    fn n_text(&self, n_tokens: usize) -> usize;
    /// Tokens of its prompt after which a step has to end; `None`: steps may end anywhere.
    fn to_checkpoint(&self) -> Option<usize>;
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The prompt of this number in the queue is about to be fed: the caller finds what of it is in a cache.
    Begin(usize),
    /// Steps of the sequences that decode, until one of them ends or requests come. Nothing, if there are none.
    Decode,
    /// One step of all sequences that decode, which feeds this number of tokens of each of the first prompts.
    DecodeBeside(Vec<usize>),
    /// A step that feeds the first prompt, then one of all sequences that decode, if there are any.
    TakeTurns,
}

/// Longest sequence that decodes in a step that feeds a prompt: its row attends to the cache in one workgroup a KV head, where a step that only
/// decodes divides the cache between many.
const MAX_DECODED_TOKENS: u32 = 8192;

/// Pages that each sequence is likely to need before another one ends. In the simulation of 32 sequences on 260 pages, one leads to three times as many
/// preemptions, at 1 % more tokens/s, and three to a fourth as many, at 2 to 3 % fewer.
const PAGES_TO_GROW: u32 = 2;

impl<W: Placed, A: Running> Machine<W, A> {
    /// Without requests. `mixed_rows`: rows of the programs that decode and feed parts of up to `prompts_beside` prompts, the smallest first.
    pub fn new(mixed_rows: Vec<u32>, prompts_beside: usize) -> Machine<W, A> {
        let limits = Limits { max_prefill_tokens: MAX_PREFILL_TOKENS, prompts_beside, deterministic: false };
        let (waiting, prefill, decoding) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Machine { waiting, prefill, decoding, limits, pace: Pace::new(mixed_rows), next_number: 0, preemptions: 0 }
    }

    /// The place of a request that comes now.
    pub fn next_place(&mut self, priority: i32) -> Place {
        self.next_number += 1;
        Place { priority, number: self.next_number - 1 }
    }

    /// Puts a request into the queue, at its place.
    pub fn enqueue(&mut self, request: W) {
        let at = self.waiting.partition_point(|one| one.place() < request.place());
        self.waiting.insert(at, request);
    }

    /// A request from the front of the queue has got a session.
    pub fn admit(&mut self, active: A) {
        let at = self.prefill.partition_point(|one| one.place() < active.place());
        self.prefill.insert(at, active);
    }

    /// Requests with a session.
    pub fn running(&self) -> impl Iterator<Item = &A> + Clone {
        self.prefill.iter().chain(&self.decoding)
    }

    /// Number of requests with a session.
    pub fn n_running(&self) -> usize {
        self.prefill.len() + self.decoding.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.n_running() == 0
    }

    /// What is to be done next, of the requests that have a session.
    pub fn next(&self) -> Next {
        let Some(first) = self.prefill.front() else { return Next::Decode };
        if !first.has_begun() {
            return Next::Begin(0);
        }
        let is_long = self.decoding.iter().any(|active| active.n_cached() > MAX_DECODED_TOKENS);
        if self.limits.deterministic || self.decoding.is_empty() || is_long || first.reads_rows() {
            return Next::TakeTurns;
        }
        match self.may_feed_next() {
            true if !self.prefill[1].has_begun() => Next::Begin(1),
            may_feed_next => self.parts(1 + usize::from(may_feed_next)).map_or(Next::TakeTurns, Next::DecodeBeside),
        }
    }

    /// Whether a step can end the first prompt and feed a part of the next one.
    fn may_feed_next(&self) -> bool {
        let (Some(first), Some(next), 2..) = (self.prefill.front(), self.prefill.get(1), self.limits.prompts_beside)
        else {
            return false;
        };
        let most_tokens = (self.pace.most_mixed_rows() as usize).saturating_sub(self.decoding.len());
        let may_end = first.n_left() < most_tokens.min(self.limits.max_prefill_tokens);
        may_end && !next.reads_rows() && (next.has_begun() || !next.shares_rest_of(first))
    }

    /// Tokens of the first `n_prompts` that the next step of the sequences that decode can feed; `None`: it feeds none.
    fn parts(&self, n_prompts: usize) -> Option<Vec<usize>> {
        let n_left = |n_prompts| self.prefill.iter().take(n_prompts).map(|active| active.n_left() as u32).sum::<u32>();
        let next = n_left(n_prompts).min(self.limits.max_prefill_tokens as u32);
        let prompts = Prompts { next, all: n_left(usize::MAX) };
        let mut left = self.pace.mixed_prompt_rows(self.decoding.len() as u32, &prompts)? as usize;
        let mut parts = Vec::new();
        for active in self.prefill.iter().take(n_prompts) {
            let n_tokens = active.n_left().min(left);
            if active.n_text(n_tokens) < n_tokens {
                break;
            }
            left -= n_tokens;
            parts.extend((n_tokens > 0).then_some(n_tokens));
        }
        (!parts.is_empty()).then_some(parts)
    }

    /// Tokens of the first prompt that a step of its own feeds: while others decode no more than the pause permits that they may make, and none
    /// behind a checkpoint.
    pub fn prefill_tokens(&self) -> usize {
        let others_wait = !self.decoding.is_empty() && !self.limits.deterministic;
        let in_pause = if others_wait { self.pace.tokens_in_pause() } else { None };
        let to_checkpoint = self.prefill.front().and_then(Running::to_checkpoint);
        [in_pause, to_checkpoint].into_iter().flatten().fold(self.limits.max_prefill_tokens, usize::min)
    }

    /// Free pages that are left to the requests with a session when another one gets its pages, in each pool.
    pub fn pages_to_grow(&self) -> u32 {
        PAGES_TO_GROW * self.n_running() as u32
    }

    /// Takes the newest request of the lowest priority from those with a session, because pages ran out. The last one is never taken, so that it comes to
    /// its end.
    pub fn preempt(&mut self) -> Option<A> {
        if self.n_running() < 2 {
            return None;
        }
        self.preemptions += 1;
        let in_prefill = (0..self.prefill.len()).max_by_key(|&at| self.prefill[at].place());
        let decoding = (0..self.decoding.len()).max_by_key(|&at| self.decoding[at].place());
        match (in_prefill, decoding) {
            (Some(one), other)
                if other.is_none_or(|other| self.prefill[one].place() > self.decoding[other].place()) =>
            {
                self.prefill.remove(one)
            }
            (_, other) => other.map(|at| self.decoding.remove(at)),
        }
    }

    /// Times that a request was preempted.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }
}
