//! Requests that come and go on the sessions of one model, many with the same beginnings: each gets the tokens that it gets alone. On
//! the toy artifact, whose sums are exact, with pages of four tokens and a window of eleven.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use toy_artifact::{VOCAB, multistep, options, prompt, write_toy};
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};
use unicorn_runtime::{Model, Sampling};

#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

/// What became of a request.
#[derive(Default)]
struct Received {
    cached_tokens: Option<u32>,
    tokens: Vec<u32>,
    has_ended: bool,
}

struct Receiver {
    received: Rc<RefCell<Received>>,
    wanted: usize,
}

impl TokenReceiver for Receiver {
    fn begin(&mut self, cached_tokens: u32) {
        assert_eq!(self.received.borrow_mut().cached_tokens.replace(cached_tokens), None);
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        let mut received = self.received.borrow_mut();
        received.tokens.push(token);
        received.has_ended = received.tokens.len() == self.wanted;
        if received.has_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        panic!("{why:?}");
    }
}

fn toy(slots: u32) -> (Model, tempfile::TempDir) {
    let options = multistep(options()).with(|options| options.slots = slots);
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&write_toy(folder.path()), &options).unwrap();
    (model, folder)
}

fn submit(scheduler: &mut Scheduler<Receiver>, prompt: Vec<u32>, wanted: usize) -> Rc<RefCell<Received>> {
    let received = Rc::new(RefCell::default());
    let receiver = Receiver { received: Rc::clone(&received), wanted };
    scheduler.submit(Request { prompt, sampling: Sampling::default(), receiver });
    received
}

fn tick(scheduler: &mut Scheduler<Receiver>) {
    scheduler.tick(&mut |_| ControlFlow::Continue(()));
}

fn alone(model: &Model, prompt: &[u32], wanted: usize) -> Vec<u32> {
    let mut session = model.session().unwrap();
    let first = session.feed_and_sample(prompt, &Sampling::default()).unwrap().token;
    let rest = session.generate(first, &Sampling::default(), wanted as u32 - 1).map(|sampled| sampled.unwrap().token);
    std::iter::once(first).chain(rest).collect()
}

#[test]
fn equal_prompts_are_computed_once() {
    let (model, _folder) = toy(3);
    let mut scheduler = model.scheduler().unwrap();
    let all = [(); 3].map(|()| submit(&mut scheduler, prompt(9), 2));
    while !scheduler.is_idle() {
        tick(&mut scheduler);
    }
    // The last token is always fed, and pages are shared whole.
    assert_eq!(all.each_ref().map(|one| one.borrow().cached_tokens), [Some(0), Some(8), Some(8)]);
    let tokens = all.map(|one| one.take().tokens);
    assert!(tokens[0] == tokens[1] && tokens[1] == tokens[2], "{tokens:?}");
    // In each of the two groups two common pages, and one of each sequence.
    assert_eq!(model.kv_pages().0, 2 * (2 + 3));
}

#[test]
fn requests_with_common_beginnings_get_the_tokens_that_they_get_alone() {
    let (model, _folder) = toy(4);
    let (reference, _other_folder) = toy(1);
    let mut scheduler = model.scheduler().unwrap();
    let mut state = 1_u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    let mut requests = Vec::new();
    let mut n_cached = 0;
    for _ in 0..60 {
        // One of three conversations, up to one of its turns, and something of its own.
        let (conversation, own) = (random(3), random(5));
        let mut tokens: Vec<u32> = prompt(4 + random(12)).iter().map(|token| (token + conversation) % VOCAB).collect();
        tokens.extend((0..own).map(|_| random(VOCAB)));
        let wanted = 1 + random(9) as usize;
        let received = submit(&mut scheduler, tokens.clone(), wanted);
        requests.push((tokens, wanted, received));
        (0..random(3)).for_each(|_| tick(&mut scheduler));
    }
    while !scheduler.is_idle() {
        tick(&mut scheduler);
    }
    for (prompt, wanted, received) in requests {
        let received = received.take();
        n_cached += received.cached_tokens.unwrap();
        assert!(received.has_ended);
        assert_eq!(received.tokens, alone(&reference, &prompt, wanted), "after {prompt:?}");
    }
    assert!(n_cached > 100, "only {n_cached} tokens were cached");
    drop(scheduler);
    assert_eq!(model.kv_pages().0, 0);
}
