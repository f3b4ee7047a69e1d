//! Continuous batching: sequences come and go between steps, and those that decode share each step, so that weights are read
//! once for all of them.
//!
//! ```text
//!            a session is free        prompt is fed             wants no more, context is full
//! waiting ──────────────────► prefill ────────────► decoding ──────────────────────────────────► idle session
//!                             a step's worth        all of them                                   keeps its cache
//!                             at a turn             in each step
//! ```
//!
//! A session that has ended keeps its tokens: a prompt that begins like them goes on from there (prefix caching).

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::error::RunError;
use crate::model::Model;
use crate::session::session::{Sampling, Session};
use crate::step::batch::BatchRow;

/// Sequences that wait, run and have ended, on one model.
pub struct Scheduler<L> {
    model: Model,
    waiting: VecDeque<Request<L>>,
    /// In the order in which they came; only the first is fed.
    prefill: VecDeque<Sequence<L>>,
    decoding: Vec<Sequence<L>>,
    /// The one that has been idle longest first.
    idle: VecDeque<Session>,
    /// Of the last turn that fed a step's worth.
    prefill_tokens_per_s: Option<f64>,
}

/// A prompt that is to be continued.
pub struct Request<L> {
    /// One token at least, and no more than the context holds.
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    pub listener: L,
}

/// Whoever asked for a sequence.
pub trait Listener {
    /// The sequence has a session, which still held the first `cached_tokens` of its prompt.
    fn begin(&mut self, cached_tokens: u32);

    /// A token was drawn. Breaks off when it wants no more, and hears nothing more then.
    fn token(&mut self, token: u32) -> ControlFlow<()>;

    /// Whether nobody would hear: asked of sequences that no token was drawn for yet.
    fn has_left(&self) -> bool;

    /// No more tokens come, although more were wanted.
    fn end(&mut self, why: End<'_>);
}

/// Why there are no more tokens.
#[derive(Debug)]
pub enum End<'e> {
    ContextFull,
    Failed(&'e RunError),
}

/// Hears after each step how many tokens were drawn; breaks off when requests have come.
pub type Between<'b> = dyn FnMut(usize) -> ControlFlow<()> + 'b;

struct Sequence<L> {
    session: Session,
    /// What is to be appended yet: the rest of the prompt, or the newest token.
    rest: Vec<u32>,
    sampling: Sampling,
    listener: L,
}

/// Most of a prompt that is fed in a turn.
const MOST_PREFILL_TOKENS: usize = 512;
/// Least of it, unless it ends: shorter steps would read all weights for little.
const LEAST_PREFILL_TOKENS: usize = 64;
/// How long sequences that decode may wait for a turn's prefill: a pause that a reader hardly sees.
const PREFILL_PAUSE: Duration = Duration::from_millis(250);

impl<L: Listener> Scheduler<L> {
    /// With as many sessions as `model` was loaded for.
    ///
    /// # Errors
    /// [`RunError::NoProgram`] when no step of the artifact takes a token of each, and when the model's sessions are taken.
    pub fn new(model: &Model) -> Result<Scheduler<L>, RunError> {
        if model.slots() > model.batch_rows() {
            return Err(RunError::NoProgram { wanted: "tokens of so many sequences at once" });
        }
        let idle = (0..model.slots()).map(|_| model.session()).collect::<Result<_, _>>()?;
        let (waiting, prefill, decoding) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(Scheduler { model: model.clone(), waiting, prefill, decoding, idle, prefill_tokens_per_s: None })
    }

    /// Puts a request at the end of the queue.
    pub fn submit(&mut self, request: Request<L>) {
        self.waiting.push_back(request);
    }

    /// Requests without a session.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences whose prompt is not in the cache yet.
    pub fn in_prefill(&self) -> usize {
        self.prefill.len()
    }

    pub fn decoding(&self) -> usize {
        self.decoding.len()
    }

    /// Whether a turn would do nothing.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.prefill.is_empty() && self.decoding.is_empty()
    }

    /// Requests get the sessions that are free. Then, while prompts are to be fed, the first of them gets a step's worth and
    /// every decoding sequence a token; otherwise those decode until one of them ends or `between` breaks off.
    pub fn turn(&mut self, between: &mut Between<'_>) {
        self.forget_who_left();
        self.admit();
        if self.prefill.is_empty() {
            self.decode(u32::MAX, between);
        } else {
            self.feed_prompt(between);
            self.decode(1, between);
        }
    }

    fn forget_who_left(&mut self) {
        self.waiting.retain(|request| !request.listener.has_left());
        let (left, stay): (VecDeque<_>, _) = self.prefill.drain(..).partition(|sequence| sequence.listener.has_left());
        self.prefill = stay;
        self.idle.extend(left.into_iter().map(|sequence| sequence.session));
    }

    fn admit(&mut self) {
        while let Some(index) = self.waiting.front().and_then(|request| self.best_session(&request.prompt)) {
            let mut session = self.idle.remove(index).expect("an index of an idle session");
            let Request { mut prompt, sampling, mut listener } = self.waiting.pop_front().expect("it was at the front");
            let cached_tokens = session.keep_common_start(&prompt);
            session.restart_draws();
            listener.begin(cached_tokens);
            prompt.drain(..cached_tokens as usize);
            self.prefill.push_back(Sequence { session, rest: prompt, sampling, listener });
        }
    }

    /// The idle session that holds most of the prompt, if that is half of all that it holds, or of the prompt: for less, nobody's
    /// conversation is given up. Otherwise, and among equals, the one that has been idle longest.
    fn best_session(&self, prompt: &[u32]) -> Option<usize> {
        let common = self.idle.iter().map(|session| (session.common_start(prompt), session.len_tokens()));
        let worth = common
            .enumerate()
            .rev()
            .filter(|(_, (common, held))| *common > 0 && 2 * common >= (*held).min(prompt.len() as u32));
        let best = worth.max_by_key(|(_, (common, _))| *common).map(|(index, _)| index);
        best.or((!self.idle.is_empty()).then_some(0))
    }

    /// Feeds a step's worth of the first prompt, and moves its sequence on when that was the rest of it.
    fn feed_prompt(&mut self, between: &mut Between<'_>) {
        let most = self.prefill_tokens();
        let sequence = self.prefill.front_mut().expect("a turn looks whether a prompt is to be fed");
        let Sequence { session, rest, sampling, listener } = sequence;
        let begun = Instant::now();
        let n_tokens = rest.len().min(most);
        let fed = match n_tokens < rest.len() {
            true => session.feed_part(rest, n_tokens).map(|()| None),
            false => session.feed_and_sample(rest, sampling).map(Some),
        };
        if n_tokens >= LEAST_PREFILL_TOKENS {
            self.prefill_tokens_per_s = Some(n_tokens as f64 / begun.elapsed().as_secs_f64());
        }
        match fed {
            Ok(None) => drop(rest.drain(..n_tokens)),
            Ok(Some(sampled)) => {
                *rest = vec![sampled.token];
                let wants_more = listener.token(sampled.token).is_continue();
                // What has come is seen before the next turn anyway.
                let _ = between(1);
                let sequence = self.prefill.pop_front().expect("it was at the front");
                self.go_on(sequence, wants_more);
            }
            Err(error) => {
                listener.end(End::Failed(&error));
                session.clear();
                self.idle.extend(self.prefill.pop_front().map(|sequence| sequence.session));
            }
        }
    }

    /// Tokens of a turn's prefill: a step's worth, and while others decode no more than the last one's pace promises in the
    /// pause that they may wait.
    fn prefill_tokens(&self) -> usize {
        match self.prefill_tokens_per_s.filter(|_| !self.decoding.is_empty()) {
            Some(pace) => tokens_in_pause(pace),
            None => MOST_PREFILL_TOKENS,
        }
    }

    /// Steps of all decoding sequences, at most `most`.
    fn decode(&mut self, most: u32, between: &mut Between<'_>) {
        if self.decoding.is_empty() {
            return;
        }
        let mut want_more = vec![true; self.decoding.len()];
        let (mut rows, mut hearers) = (Vec::new(), Vec::new());
        for (Sequence { session, rest, sampling, listener }, wants_more) in self.decoding.iter_mut().zip(&mut want_more)
        {
            rows.push(BatchRow { session, token: rest[0], sampling });
            hearers.push((listener, rest, wants_more));
        }
        let decoded = self.model.generate_batch(&mut rows, most, &mut |sampled| {
            let mut all_go_on = true;
            for ((listener, rest, wants_more), sampled) in hearers.iter_mut().zip(sampled) {
                rest[0] = sampled.token;
                **wants_more = listener.token(sampled.token).is_continue();
                all_go_on &= **wants_more;
            }
            match (between(sampled.len()), all_go_on) {
                (ControlFlow::Continue(()), true) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        });
        let sequences = std::mem::take(&mut self.decoding);
        match decoded {
            Ok(()) => sequences.into_iter().zip(want_more).for_each(|(one, wants_more)| self.go_on(one, wants_more)),
            Err(error) => sequences.into_iter().zip(want_more).for_each(|(mut sequence, wants_more)| {
                if wants_more {
                    sequence.listener.end(End::Failed(&error));
                }
                sequence.session.clear();
                self.idle.push_back(sequence.session);
            }),
        }
    }

    /// A sequence that a token was drawn for decodes on, or its session is free.
    fn go_on(&mut self, mut sequence: Sequence<L>, wants_more: bool) {
        let is_full = sequence.session.len_tokens() >= self.model.context_tokens();
        if wants_more && is_full {
            sequence.listener.end(End::ContextFull);
        }
        match wants_more && !is_full {
            true => self.decoding.push(sequence),
            false => self.idle.push_back(sequence.session),
        }
    }
}

fn tokens_in_pause(tokens_per_s: f64) -> usize {
    let tokens = (tokens_per_s * PREFILL_PAUSE.as_secs_f64()) as usize;
    tokens.clamp(LEAST_PREFILL_TOKENS, MOST_PREFILL_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_feeds_less_while_others_wait() {
        assert_eq!([1.0, 254.0, 1000.0, 1e6].map(tokens_in_pause), [64, 64, 250, 512]);
    }
}
