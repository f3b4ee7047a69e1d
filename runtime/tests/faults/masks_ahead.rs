//! Masks are computed while the device computes the step that they are for: Vulkan calls are counted, as nothing else shows the order of
//! submissions.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};
use unicorn_runtime::{FillMask, made_calls};

use super::*;

/// A mask of all tokens that are even, or odd.
fn alternate(allowed: &mut [u32], n_tokens: usize) {
    allowed.fill(0x5555_5555 << (n_tokens % 2));
}

fn submissions() -> usize {
    made_calls().iter().filter(|&&call| call == "vkQueueSubmit").count()
}

#[test]
fn the_step_of_a_mask_was_submitted_before_the_token_before_it_was_read() {
    const STEPS: usize = 8;
    let (_lock, options, _folder, path) = toy();
    let model = Model::load(&path, &multistep(options)).unwrap();
    let mut session = model.session().unwrap();
    let first = session.feed_and_sample(&prompt(20), &Sampling::default()).unwrap();
    inject(None);
    let mut tokens = session.generate_masked(first.token, &Sampling::default(), STEPS as u32);
    for number in 0..STEPS {
        let (calls_at_token, mut calls_at_mask) = (injected().0, 0);
        let fill: FillMask<'_> = Box::new(|allowed| {
            calls_at_mask = injected().0;
            alternate(allowed, number);
        });
        let sampled = tokens.next_token(Some(fill)).unwrap().unwrap();
        assert_eq!(sampled.token as usize % 2, number % 2);
        assert_eq!(calls_at_mask > calls_at_token, number == 0, "mask {number}");
    }
    assert_eq!(submissions(), 2 * STEPS, "a step and its sampler each time, and none for nothing");
}

/// A request whose tokens are even and odd in turn.
struct Alternating {
    n_left: usize,
    is_masked: bool,
    calls_at_token: u64,
    /// Masks, and those among them before which no call was made since the token before.
    counts: Arc<[AtomicUsize; 2]>,
}

impl TokenReceiver for Alternating {
    fn begin(&mut self, _cached_tokens: u32) {}

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        assert!(!self.is_masked || token as usize % 2 == self.n_left % 2);
        self.n_left -= 1;
        self.calls_at_token = injected().0;
        if self.n_left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_masked(&self) -> bool {
        self.is_masked
    }

    fn mask(&mut self) -> FillMask<'_> {
        Box::new(|allowed| {
            let [all, ahead] = &*self.counts;
            all.fetch_add(1, Ordering::Relaxed);
            ahead.fetch_add(usize::from(injected().0 == self.calls_at_token), Ordering::Relaxed);
            alternate(allowed, self.n_left);
        })
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        panic!("{why:?}");
    }
}

#[test]
fn the_scheduler_s_steps_run_ahead_of_masks() {
    let (_lock, options, _folder, path) = toy();
    let model = Model::load(&path, &multistep(options).with(|options| options.slots = 3)).unwrap();
    inject(None);
    let mut scheduler: Scheduler<Alternating> = model.scheduler().unwrap();
    let requests = [(30, true), (20, false), (40, true)].map(|(n_left, is_masked)| {
        let counts: Arc<[AtomicUsize; 2]> = Arc::default();
        let receiver = Alternating { n_left, is_masked, calls_at_token: 0, counts: Arc::clone(&counts) };
        let sampling = Sampling::default();
        scheduler.submit(Request { prompt: prompt(n_left as u32 / 10), sampling, priority: 0, receiver });
        (n_left, is_masked, counts)
    });
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    for (n_tokens, is_masked, counts) in requests {
        let [all, ahead] = [0, 1].map(|count: usize| counts[count].load(Ordering::Relaxed));
        assert_eq!(all, if is_masked { n_tokens } else { 0 });
        // Not that of the first token, nor those of the steps between three prompts, of the first one behind them, and of the first one behind the end
        // of the shortest reply.
        assert!(!is_masked || ahead + 6 >= all, "{ahead} of {all} masks");
    }
}
