//! A receiver of tokens that records what a request found and gave, to the bit.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use unicorn_runtime::Sampling;
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};

/// What a request found and gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Tokens of the prompt that were in the cache.
    pub cached_tokens: u32,
    /// The likeliest tokens.
    pub tokens: Vec<u32>,
    /// Bits of all logits that these are the largest of: the same tokens by other numbers show.
    pub logits: Vec<u32>,
    /// Tokens of drafts that were verified, and of those the accepted ones.
    pub drafted: (u32, u32),
}

/// Samples the likeliest token on the host, `most` times.
pub struct Recorder {
    answer: Arc<Mutex<Answer>>,
    most: usize,
}

impl Recorder {
    /// The request, and where its answer appears.
    pub fn request(prompt: Vec<u32>, most: usize) -> (Request<Recorder>, Arc<Mutex<Answer>>) {
        let answer = Arc::new(Mutex::new(Answer::default()));
        let receiver = Recorder { answer: answer.clone(), most };
        (Request { prompt, sampling: Sampling::default(), priority: 0, receiver }, answer)
    }

    fn record(&self, change: impl FnOnce(&mut Answer)) {
        change(&mut self.answer.lock().expect("no thread panics here"));
    }
}

impl TokenReceiver for Recorder {
    fn begin(&mut self, cached_tokens: u32) {
        self.record(|answer| answer.cached_tokens = cached_tokens);
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        self.record(|answer| answer.tokens.push(token));
        let n_tokens = self.answer.lock().expect("no thread panics here").tokens.len();
        if n_tokens == self.most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn samples_on_host(&self) -> bool {
        true
    }

    fn sample(&mut self, _tokens: &[u32], logits: &mut [f32]) -> u32 {
        self.record(|answer| answer.logits.extend(logits.iter().map(|logit| logit.to_bits())));
        (0..logits.len()).max_by(|&one, &other| logits[one].total_cmp(&logits[other])).expect("a vocabulary") as u32
    }

    fn drafted(&mut self, proposed: u32, accepted: u32) {
        self.record(|answer| {
            answer.drafted.0 += proposed;
            answer.drafted.1 += accepted;
        });
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        panic!("{why:?}");
    }
}

/// The answer to a request, which runs to the end of all that the scheduler has.
///
/// # Panics
/// When it fails.
pub fn ask(scheduler: &mut Scheduler<Recorder>, prompt: &[u32], most: usize) -> Answer {
    let (request, answer) = Recorder::request(prompt.to_vec(), most);
    scheduler.submit(request);
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    let answer = answer.lock().expect("no thread panics here");
    answer.clone()
}

/// Tokens that no other seed gives in this order, for a vocabulary of a hundred.
pub fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| 3 + (seed * 31 + at * 7 + at * at * seed) % 90).collect()
}
