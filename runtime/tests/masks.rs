//! Requests whose tokens are sampled among some, on the device or on the host, beside others: each gets the tokens that it gets alone. On the toy
//! artifact, whose sums are exact.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use toy_artifact::{VOCAB, last_row, multistep, options, prompt, repeat_penalty, write_toy, write_toy_without_masks};
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};
use unicorn_runtime::{CancelToken, FillMask, Model, RunError, Sampled, Sampling, Session};

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
    /// As `Masked`, but every fourth token as `None`.
    AtTimes,
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
            (Limit::AtTimes, _) if self.tokens.borrow().len() % 4 == 3 => Limit::None,
            (Limit::AtTimes, _) => Limit::Masked,
            (limit, _) => limit,
        }
    }

    fn allowed(&self) -> Vec<u32> {
        allowed(self.tokens.borrow().len())
    }
}

/// A few tokens, others after each number of them.
fn allowed(n_tokens: usize) -> Vec<u32> {
    (0..VOCAB).filter(|token| (token * 7 + n_tokens as u32).is_multiple_of(11)).collect()
}

/// The mask of some tokens.
fn mask_of(tokens: Vec<u32>) -> FillMask<'static> {
    Box::new(move |allowed| {
        assert!(allowed.len() == VOCAB.div_ceil(32) as usize && allowed.iter().all(|word| *word == 0));
        tokens.into_iter().for_each(|token| allowed[token as usize / 32] |= 1 << (token % 32));
    })
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
        mask_of(self.allowed())
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

/// No request samples on the host, so that steps run ahead. They join and leave at different steps; the expected tokens are computed on the CPU.
#[test]
fn requests_get_the_twins_tokens_while_steps_run_ahead() {
    let requests = [
        (Limit::Masked, 40),
        (Limit::None, 9),
        (Limit::AtTimes, 23),
        (Limit::Masked, 5),
        (Limit::None, 31),
        (Limit::Masked, 12),
    ];
    let prompt_of = |number: usize| -> Vec<u32> {
        prompt(5 + 3 * number as u32).iter().map(|token| (token + number as u32) % VOCAB).collect()
    };
    for (slots, deterministic) in [(1, false), (3, false), (4, true)] {
        let (model, _folder) = toy(slots, true);
        let mut scheduler: Scheduler<Receiver> = model.scheduler().unwrap();
        scheduler.set_deterministic(deterministic).unwrap();
        let mut all = Vec::new();
        let mut coming = requests.iter().enumerate();
        loop {
            let next = coming.next();
            if let Some((number, &(limit, wanted))) = next {
                let tokens = Rc::new(RefCell::default());
                let receiver = Receiver { limit, takes_masks: true, wanted, tokens: Rc::clone(&tokens) };
                let sampling = Sampling::default();
                scheduler.submit(Request { prompt: prompt_of(number), sampling, priority: 0, receiver });
                all.push(tokens);
            }
            if next.is_none() && scheduler.is_idle() {
                break;
            }
            // The next request comes while steps run ahead.
            let mut n_steps = 0;
            scheduler.tick(&mut |_| {
                n_steps += 1;
                if n_steps == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        for (number, (&(limit, wanted), found)) in requests.iter().zip(all).enumerate() {
            let expected = Receiver { limit, takes_masks: true, wanted, tokens: Rc::default() };
            let mut text = prompt_of(number);
            while expected.tokens.borrow().len() < wanted {
                let (row, is_limited) = (last_row(&text), expected.limit() == Limit::Masked);
                let candidates = (0..VOCAB).filter(|token| !is_limited || expected.allowed().contains(token));
                let token = candidates.max_by(|&a, &b| row[a as usize].total_cmp(&row[b as usize])).unwrap();
                text.push(token);
                expected.tokens.borrow_mut().push(token);
            }
            assert_eq!(*found.borrow(), *expected.tokens.borrow(), "{number}: {limit:?}, {slots} slots");
        }
    }
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer reported messages");
}

/// A session after a prompt, and its first token.
fn begin(model: &Model, n_tokens: u32) -> (Session, u32) {
    let mut session = model.session().unwrap();
    let first = session.feed_and_sample(&prompt(n_tokens), &repeat_penalty()).unwrap();
    (session, first.token)
}

/// Whether the token after `n_tokens` has a mask.
fn is_masked(n_tokens: usize) -> bool {
    n_tokens % 7 != 6
}

/// Samples that follow the first token, each by a step of its own.
fn stepped(model: &Model, n_prompt: u32, wanted: usize) -> Vec<Sampled> {
    let (mut session, mut newest) = begin(model, n_prompt);
    let sample = |n_tokens| {
        let sampled = match is_masked(n_tokens) {
            true => session.feed_and_sample_masked(&[newest], &repeat_penalty(), mask_of(allowed(n_tokens))),
            false => session.feed_and_sample(&[newest], &repeat_penalty()),
        };
        newest = sampled.as_ref().unwrap().token;
        sampled.unwrap()
    };
    (0..wanted).map(sample).collect()
}

/// Also numbers of samples and the history of the penalty, which the toy returns, are those of single steps; wherever the text is interrupted.
#[test]
fn a_masked_text_that_runs_ahead_is_that_of_single_steps() {
    let (model, _folder) = toy(1, true);
    // Into LongRoPE's second set.
    let expected = stepped(&model, 30, 90);
    for n_taken in [1, 2, 5, 90] {
        let (mut session, mut newest) = begin(&model, 30);
        let mut found = Vec::new();
        while found.len() < expected.len() {
            let mut tokens = session.generate_masked(newest, &repeat_penalty(), 90);
            for _ in 0..n_taken {
                let fill = is_masked(found.len()).then(|| mask_of(allowed(found.len())));
                found.push(tokens.next_token(fill).unwrap().unwrap());
            }
            newest = found[found.len() - 1].token;
        }
        assert_eq!(found, expected, "interrupted after {n_taken}");
    }
}

#[test]
fn other_sequences_may_use_the_device_between_two_masked_tokens() {
    let (model, _folder) = toy(3, true);
    let (expected, expected_other) = (stepped(&model, 20, 30), stepped(&model, 33, 30));
    let (mut session, first) = begin(&model, 20);
    let (mut other, first_of_other) = begin(&model, 33);
    let mut tokens = session.generate_masked(first, &repeat_penalty(), 30);
    let mut tokens_of_other = other.generate_masked(first_of_other, &repeat_penalty(), 30);
    let fill = |n_tokens| is_masked(n_tokens).then(|| mask_of(allowed(n_tokens)));
    // The host samples where a step has ended without its mask; it counts no samples as candidates, as the toy does.
    let result = |sampled: &Sampled| (sampled.token, sampled.logit);
    for (n_tokens, (expected, expected_other)) in expected.iter().zip(&expected_other).take(20).enumerate() {
        assert_eq!(result(&tokens.next_token(fill(n_tokens)).unwrap().unwrap()), result(expected), "{n_tokens}");
        if n_tokens % 3 == 0 {
            let (mut third, first) = begin(&model, 20);
            // Dropped with steps in flight.
            assert_eq!(third.generate(first, &Sampling::default(), 100).take(2).count(), 2);
        }
        let found = tokens_of_other.next_token(fill(n_tokens)).unwrap().unwrap();
        assert_eq!(result(&found), result(expected_other), "{n_tokens}");
    }
    assert_eq!(result(&tokens.next_token(fill(20)).unwrap().unwrap()), result(&expected[20]));
    for (n_tokens, expected) in expected.iter().enumerate().skip(21) {
        assert_eq!(tokens.next_token(fill(n_tokens)).unwrap().unwrap(), *expected, "{n_tokens}, alone");
    }
    assert!(tokens.next_token(None).is_none(), "30 tokens");
}

#[test]
fn a_masked_text_that_is_cancelled_continues_behind_its_last_token() {
    let (model, _folder) = toy(1, true);
    let expected = stepped(&model, 20, 9);
    let (mut session, first) = begin(&model, 20);
    let cancel = CancelToken::default();
    session.set_cancel(cancel.clone());
    let mut tokens = session.generate_masked(first, &repeat_penalty(), 30);
    for (n_tokens, expected) in expected[..5].iter().enumerate() {
        assert_eq!(tokens.next_token(Some(mask_of(allowed(n_tokens)))).unwrap().unwrap(), *expected);
    }
    cancel.cancel();
    assert!(matches!(tokens.next_token(None), Some(Err(RunError::Cancelled))));
    drop(tokens);
    session.set_cancel(CancelToken::default());
    assert_eq!(session.len_tokens(), 20 + 5);
    let next = session.feed_and_sample_masked(&[expected[4].token], &repeat_penalty(), mask_of(allowed(5)));
    assert_eq!(next.unwrap(), expected[5]);
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
