//! Speculation gives the text that the model gives without, whatever is proposed: on the toy artifact, whose sums are exact, with
//! pages of four tokens, a window of eleven and LongRoPE from 100 tokens on.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use toy_artifact::{CONTEXT, VOCAB, multistep, next_token, options, prompt, write_toy};
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};
use unicorn_runtime::{Draft, Drafter, Model, Sampling, Session, Speculation};

#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

/// Proposes what the model will sample, but now and then another token, or fewer, or none.
struct Guesser {
    state: u32,
    /// Percentage of proposed tokens that are right.
    percent: u32,
}

impl Guesser {
    fn random(&mut self, below: u32) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.state >> 16) % below
    }
}

impl Drafter for Guesser {
    fn draft(&mut self, tokens: &[u32], newest: u32, max_tokens: usize) -> Draft {
        let mut text = [tokens, &[newest]].concat();
        let begin = text.len();
        for _ in 0..self.random(max_tokens as u32 + 1) {
            let wrong = u32::from(self.random(100) >= self.percent);
            text.push((next_token(&text) + wrong) % VOCAB);
        }
        Draft { tokens: text.split_off(begin), class: 0 }
    }
}

/// Every draft is verified.
fn guesses(percent: u32) -> Speculation {
    Speculation::by(move || Box::new(Guesser { state: percent, percent })).with(|one| one.adaptive = false)
}

fn toy(slots: u32) -> (Model, tempfile::TempDir) {
    let options = multistep(options()).with(|options| options.slots = slots);
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&write_toy(folder.path()), &options).unwrap();
    (model, folder)
}

/// What the toy samples behind `prompt`, by the CPU.
fn expected(prompt: &[u32], n_tokens: usize) -> Vec<u32> {
    let mut text = prompt.to_vec();
    (0..n_tokens).for_each(|_| text.push(next_token(&text)));
    text.split_off(prompt.len())
}

fn begin(session: &mut Session, prompt: &[u32]) -> u32 {
    session.clear();
    session.feed_and_sample(prompt, &Sampling::default()).unwrap().token
}

#[test]
fn right_and_wrong_drafts_give_the_text_of_the_model() {
    let (model, _folder) = toy(1);
    let mut session = model.session().unwrap();
    let prompt = prompt(30);
    // Beyond the window, beyond LongRoPE's limit, until the context is full.
    let expected = expected(&prompt, CONTEXT as usize - prompt.len() + 1);
    for percent in [0, 50, 90, 100] {
        session.set_speculation(Some(&guesses(percent))).unwrap();
        let first = begin(&mut session, &prompt);
        let tokens = session.generate(first, &Sampling::default(), u32::MAX).map(|sampled| sampled.unwrap().token);
        assert_eq!(std::iter::once(first).chain(tokens).collect::<Vec<_>>(), expected, "{percent} % are right");
        let counts = session.take_draft_counts();
        assert!(counts.drafts > 20 && counts.accepted <= counts.proposed, "{counts:?}");
        match percent {
            0 => assert_eq!(counts.accepted, 0),
            100 => assert_eq!(counts.accepted, counts.proposed),
            _ => assert!(counts.accepted > 0 && counts.accepted < counts.proposed, "{counts:?}"),
        }
        // As many pages as of a sequence that was fed token by token.
        assert_eq!(session.len_tokens(), CONTEXT);
    }
}

/// The text ends anywhere within what a verification has sampled, and continues from there.
#[test]
fn an_interrupted_speculation_continues_with_the_same_tokens() {
    let (model, _folder) = toy(1);
    let mut session = model.session().unwrap();
    let prompt = prompt(30);
    let expected = expected(&prompt, 100);
    session.set_speculation(Some(&guesses(80))).unwrap();
    for n_taken in 1..=9 {
        let mut samples = vec![begin(&mut session, &prompt)];
        while samples.len() < expected.len() {
            let (newest, most) = (samples[samples.len() - 1], expected.len() - samples.len());
            let tokens = session.generate(newest, &Sampling::default(), most as u32).take(n_taken);
            samples.extend(tokens.map(|sampled| sampled.unwrap().token));
            // The newest is not appended yet.
            assert_eq!(session.tokens()[prompt.len()..], samples[..samples.len() - 1]);
        }
        assert_eq!(samples, expected, "interrupted after {n_taken}");
    }
}

#[test]
fn most_tokens_and_options_are_kept() {
    let (model, _folder) = toy(1);
    let mut session = model.session().unwrap();
    for most in 1..12 {
        session.set_speculation(Some(&guesses(100).with(|one| one.max_tokens = 5))).unwrap();
        let first = begin(&mut session, &prompt(20));
        assert_eq!(session.generate(first, &Sampling::default(), most).count(), most as usize);
        assert_eq!(session.len_tokens(), 20 + most);
    }
    let wrong = |change: fn(&mut Speculation)| Speculation::ngram(2).with(change).check().unwrap_err().to_string();
    assert_eq!(wrong(|one| one.max_tokens = 64), "most tokens of a draft must be 1 to 63, found 64");
    let found = wrong(|one| one.min_tokens = 8);
    assert_eq!(found, "fewest tokens of a draft must be no more than its most, found 8");
}

#[derive(Default)]
struct Received {
    tokens: Vec<u32>,
    proposed: u32,
    accepted: u32,
    has_ended: bool,
}

struct Receiver {
    received: Rc<RefCell<Received>>,
    wanted: usize,
    /// Chooses its tokens on the host.
    samples_on_host: bool,
}

impl TokenReceiver for Receiver {
    fn begin(&mut self, _cached_tokens: u32) {}

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        let mut received = self.received.borrow_mut();
        assert!(!received.has_ended);
        received.tokens.push(token);
        received.has_ended = received.tokens.len() == self.wanted;
        if received.has_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn samples_on_host(&self) -> bool {
        self.samples_on_host
    }

    fn sample(&mut self, _tokens: &[u32], logits: &mut [f32]) -> u32 {
        (0..VOCAB).max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize])).unwrap()
    }

    fn drafted(&mut self, proposed: u32, accepted: u32) {
        let mut received = self.received.borrow_mut();
        received.proposed += proposed;
        received.accepted += accepted;
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        assert!(matches!(why, End::ContextFull), "{why:?}");
        self.received.borrow_mut().has_ended = true;
    }
}

/// Rejected tokens are written behind the pages that others hold, and are gone before others may hold them.
#[test]
fn requests_that_share_pages_get_the_tokens_that_they_get_alone() {
    let (model, _folder) = toy(4);
    let mut scheduler: Scheduler<Receiver> = model.scheduler().unwrap();
    scheduler.set_speculation(Some(guesses(75))).unwrap();
    let mut random = Guesser { state: 5, percent: 0 };
    let mut requests = Vec::new();
    for number in 0..80 {
        // One of three conversations, up to one of its turns, and something of its own.
        let (conversation, own) = (random.random(3), random.random(5));
        let mut tokens: Vec<u32> =
            prompt(4 + random.random(12)).iter().map(|token| (token + conversation) % VOCAB).collect();
        tokens.extend((0..own).map(|_| random.random(VOCAB)));
        let wanted = 1 + random.random(if number % 20 == 0 { 300 } else { 20 }) as usize;
        let received = Rc::new(RefCell::<Received>::default());
        let receiver = Receiver { received: Rc::clone(&received), wanted, samples_on_host: random.random(4) == 0 };
        scheduler.submit(Request { prompt: tokens.clone(), sampling: Sampling::default(), priority: 0, receiver });
        requests.push((tokens, wanted, received));
        (0..random.random(3)).for_each(|_| scheduler.tick(&mut |_| ControlFlow::Continue(())));
    }
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    let (mut proposed, mut accepted) = (0, 0);
    for (prompt, wanted, received) in requests {
        let received = received.take();
        let n_tokens = wanted.min(CONTEXT as usize - prompt.len() + 1);
        assert!(received.has_ended);
        assert_eq!(received.tokens, expected(&prompt, n_tokens), "after {prompt:?}");
        (proposed, accepted) = (proposed + received.proposed, accepted + received.accepted);
    }
    assert!(accepted > 100 && accepted < proposed, "{accepted} of {proposed} tokens accepted");
    drop(scheduler);
    assert_eq!(model.kv_pages().0, 0);
}
