//! Requests whose tokens are sampled among some, on the device or on the host, beside others: each gets the tokens that it gets alone. On the toy
//! artifact, whose sums are exact.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use toy_artifact::{VOCAB, multistep, options, prompt, write_toy, write_toy_without_masks};
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};
use unicorn_runtime::{FillMask, Model, Sampling};

#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

/// How a request's tokens are limited.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// Not at all.
    None,
    /// By a mask of the device.
    Masked,
    /// By the host, which samples.
    OnHost,
    /// As `Masked`, but every third token as `None`, every next as `OnHost`.
    Changing,
}

struct Receiver {
    limit: Limit,
    /// Whether the model takes masks.
    takes_masks: bool,
    wanted: usize,
    tokens: Rc<RefCell<Vec<u32>>>,
}

impl Receiver {
    fn limit(&self) -> Limit {
        match (self.limit, self.tokens.borrow().len() % 3) {
            (Limit::Changing, 0) => Limit::None,
            (Limit::Changing, 1) => Limit::OnHost,
            (Limit::Changing, _) => Limit::Masked,
            (limit, _) => limit,
        }
    }

    /// A few tokens, others each time.
    fn allowed(&self) -> Vec<u32> {
        let n_tokens = self.tokens.borrow().len() as u32;
        (0..VOCAB).filter(|token| (token * 7 + n_tokens).is_multiple_of(11)).collect()
    }
}

impl TokenReceiver for Receiver {
    fn begin(&mut self, _cached_tokens: u32) {}

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        assert!(self.limit() == Limit::None || self.allowed().contains(&token), "{token}");
        self.tokens.borrow_mut().push(token);
        if self.tokens.borrow().len() == self.wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn samples_on_host(&self) -> bool {
        self.limit() == Limit::OnHost
    }

    fn is_masked(&self) -> bool {
        self.limit() == Limit::Masked
    }

    fn mask(&mut self) -> FillMask<'_> {
        assert!(self.takes_masks && self.limit() == Limit::Masked);
        let tokens = self.allowed();
        Box::new(move |allowed| {
            assert!(allowed.len() == VOCAB.div_ceil(32) as usize && allowed.iter().all(|word| *word == 0));
            tokens.into_iter().for_each(|token| allowed[token as usize / 32] |= 1 << (token % 32));
        })
    }

    fn sample(&mut self, _tokens: &[u32], logits: &mut [f32]) -> u32 {
        assert!(self.limit() == Limit::OnHost || !self.takes_masks && self.limit() == Limit::Masked);
        let by_logit = |a: &u32, b: &u32| logits[*a as usize].total_cmp(&logits[*b as usize]);
        self.allowed().into_iter().max_by(by_logit).unwrap()
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        panic!("{why:?}");
    }
}

fn toy(slots: u32, takes_masks: bool) -> (Model, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = multistep(options()).with(|options| options.slots = slots);
    let write = if takes_masks { write_toy } else { write_toy_without_masks };
    let model = Model::load(&write(folder.path()), &options).unwrap();
    assert_eq!(model.takes_masks(), takes_masks);
    (model, folder)
}

/// The tokens of requests, each of which comes a tick after the one before.
fn answers(model: &Model, deterministic: bool, requests: &[(Limit, u32)]) -> Vec<Vec<u32>> {
    let mut scheduler: Scheduler<Receiver> = model.scheduler().unwrap();
    scheduler.set_deterministic(deterministic).unwrap();
    let takes_masks = model.takes_masks();
    let mut all = Vec::new();
    for &(limit, number) in requests {
        let tokens = Rc::new(RefCell::default());
        let receiver = Receiver { limit, takes_masks, wanted: 10 + number as usize, tokens: Rc::clone(&tokens) };
        let prompt = prompt(5 + 3 * number).iter().map(|token| (token + number) % VOCAB).collect();
        scheduler.submit(Request { prompt, sampling: Sampling::default(), priority: 0, receiver });
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
        all.push(tokens);
    }
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    all.into_iter().map(|tokens| tokens.take()).collect()
}

#[test]
fn the_device_samples_what_the_host_samples() {
    let (reference, _folder) = toy(1, true);
    let alone = |limit, number| answers(&reference, false, &[(limit, number)]).remove(0);
    let limits = [Limit::Masked, Limit::None, Limit::Changing, Limit::Masked, Limit::OnHost, Limit::Masked];
    let requests: Vec<(Limit, u32)> = limits.into_iter().zip(0..).collect();
    for (takes_masks, deterministic) in [(true, false), (true, true), (false, false)] {
        let (model, _folder) = toy(4, takes_masks);
        let found = answers(&model, deterministic, &requests);
        for (&(limit, number), found) in requests.iter().zip(&found) {
            assert_eq!(found.len(), 10 + number as usize);
            assert_eq!(*found, alone(limit, number), "{limit:?}, {number}");
            if limit == Limit::Masked {
                assert_eq!(*found, alone(Limit::OnHost, number), "{number}");
                assert_ne!(*found, alone(Limit::None, number), "{number}: the mask has an effect");
            }
        }
    }
}

#[test]
fn a_mask_that_allows_nothing_gives_some_token() {
    let (model, _folder) = toy(1, true);
    let mut session = model.session().unwrap();
    let sampled = session.feed_and_sample_masked(&prompt(5), &Sampling::default(), |_| {}).unwrap();
    assert!(sampled.token < VOCAB);
    // The bits behind the vocabulary mean nothing.
    let last = VOCAB - 1;
    let sampled = session.feed_and_sample_masked(&[1], &Sampling::default(), |allowed| {
        allowed[last as usize / 32] = !0 << (last % 32);
    });
    assert_eq!(sampled.unwrap().token, last);
}
