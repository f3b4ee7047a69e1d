//! Requests that come and go on the sessions of one model, many with the same beginnings: each gets the tokens that it gets alone. On
//! the toy artifact, whose sums are exact, with pages of four tokens and a window of eleven.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use toy_artifact::{CONTEXT, VOCAB, multistep, next_token, options, prompt, write_toy};
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};
use unicorn_runtime::{KvCapacity, Model, RunError, Sampling, Speculation};

#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

/// Outcome of a request.
#[derive(Default)]
struct Received {
    cached_tokens: Option<u32>,
    tokens: Vec<u32>,
    has_ended: bool,
    /// Whether the client has closed it.
    is_closed: bool,
    /// Tokens of the prompt that were in the cache after each step.
    fed: Vec<u32>,
    /// Positions of the prompt whose logits were read since it began.
    positions: Vec<u32>,
}

struct Receiver {
    received: Rc<RefCell<Received>>,
    wanted: usize,
    reads_prompt: bool,
}

impl TokenReceiver for Receiver {
    fn begin(&mut self, cached_tokens: u32) {
        let mut received = self.received.borrow_mut();
        let earlier = received.cached_tokens.replace(cached_tokens);
        assert!(earlier.is_none() || self.reads_prompt, "{earlier:?}");
        received.positions.clear();
    }

    fn fed(&mut self, n_tokens: u32) {
        assert!(self.received.borrow().tokens.is_empty());
        self.received.borrow_mut().fed.push(n_tokens);
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        let mut received = self.received.borrow_mut();
        assert!(!received.has_ended && received.cached_tokens.is_some());
        received.tokens.push(token);
        received.has_ended = received.tokens.len() == self.wanted;
        if received.has_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn reads_prompt_logits(&self) -> bool {
        self.reads_prompt
    }

    fn prompt_logits(&mut self, position: u32, _logits: &[f32]) {
        self.received.borrow_mut().positions.push(position);
    }

    fn is_closed(&self) -> bool {
        self.received.borrow().is_closed
    }

    fn end(&mut self, why: End<'_>) {
        assert!(matches!(why, End::ContextFull), "{why:?}");
        self.received.borrow_mut().has_ended = true;
    }
}

fn toy(slots: u32) -> (Model, tempfile::TempDir) {
    toy_of(slots, KvCapacity::Each)
}

fn toy_of(slots: u32, kv_capacity: KvCapacity) -> (Model, tempfile::TempDir) {
    let options = multistep(options()).with(|options| (options.slots, options.kv_capacity) = (slots, kv_capacity));
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&write_toy(folder.path()), &options).unwrap();
    (model, folder)
}

fn submit(scheduler: &mut Scheduler<Receiver>, prompt: Vec<u32>, wanted: usize) -> Rc<RefCell<Received>> {
    submit_with_priority(scheduler, prompt, wanted, 0)
}

fn submit_with_priority(
    scheduler: &mut Scheduler<Receiver>,
    prompt: Vec<u32>,
    wanted: usize,
    priority: i32,
) -> Rc<RefCell<Received>> {
    let received = Rc::new(RefCell::default());
    let receiver = Receiver { received: Rc::clone(&received), wanted, reads_prompt: false };
    scheduler.submit(Request { prompt, sampling: Sampling::default(), priority, receiver });
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

/// Runs the requests to their ends: each has got the tokens that follow its prompt alone.
fn end_as_alone(
    scheduler: &mut Scheduler<Receiver>,
    reference: &Model,
    prompts: &[Vec<u32>],
    received: impl IntoIterator<Item = Rc<RefCell<Received>>>,
) {
    while !scheduler.is_idle() {
        tick(scheduler);
    }
    for (prompt, received) in prompts.iter().zip(received) {
        let received = received.take();
        assert_eq!(received.tokens, alone(reference, prompt, received.tokens.len()));
    }
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

/// Sequences grow beyond their window, and give the pages of their beginnings back.
#[test]
fn beginnings_behind_a_window_are_kept_for_others() {
    let (model, _folder) = toy(2);
    let (reference, _other_folder) = toy(1);
    let mut scheduler = model.scheduler().unwrap();
    scheduler.set_max_prefill_tokens(4);
    let mut cached_of = |prompt: &[u32], wanted| {
        let received = submit(&mut scheduler, prompt.to_vec(), wanted);
        while !scheduler.is_idle() {
            tick(&mut scheduler);
        }
        let received = received.take();
        assert_eq!(received.tokens, alone(&reference, prompt, wanted));
        received.cached_tokens.unwrap()
    };
    let with = |own: u32| [prompt(8), vec![own; 12]].concat();
    // The second prompt shows that the first 8 tokens are common, the third has them.
    assert_eq!([1, 2, 3].map(|own| cached_of(&with(own), 20)), [0, 0, 8]);
    // A next turn, without the last answer.
    let turn = [with(3), vec![5; 3]].concat();
    assert_eq!([cached_of(&turn, 20), cached_of(&[turn.clone(), vec![7; 5]].concat(), 2)], [20, 20]);
    drop(scheduler);
    assert_eq!(model.kv_pages().0, 0);
}

#[test]
fn a_prompt_is_fed_in_steps_of_the_size_that_was_set() {
    let (model, _folder) = toy(1);
    let expected = alone(&model, &prompt(9), 3);
    let mut scheduler = model.scheduler().unwrap();
    scheduler.set_max_prefill_tokens(4);
    for steps in [vec![4, 8, 9], vec![9]] {
        let received = submit(&mut scheduler, prompt(9), 3);
        while !scheduler.is_idle() {
            tick(&mut scheduler);
        }
        // The second time all but the last token is in the cache.
        assert_eq!((&received.borrow().fed, &received.borrow().tokens), (&steps, &expected));
    }
}

#[test]
fn sequences_get_a_token_in_each_step_of_a_prompt() {
    let (model, _folder) = toy(3);
    let (reference, _other_folder) = toy(1);
    let mut scheduler = model.scheduler().unwrap();
    let prompts =
        [5, 7, 40].map(|tokens| prompt(tokens).iter().map(|token| (token + tokens) % VOCAB).collect::<Vec<_>>());
    let [first, second] = [0, 1].map(|at| submit(&mut scheduler, prompts[at].clone(), 20));
    while scheduler.in_prefill() + scheduler.waiting() > 0 {
        tick(&mut scheduler);
    }
    let n_received = || [&first, &second].map(|received| received.borrow().tokens.len());
    let third = submit(&mut scheduler, prompts[2].clone(), 3);
    let mut n_ticks = 0;
    while third.borrow().tokens.is_empty() {
        let before = n_received();
        tick(&mut scheduler);
        assert_eq!(n_received(), before.map(|n_tokens| n_tokens + 1));
        n_ticks += 1;
    }
    // Six tokens beside the two sequences, and the last four with the third one's first.
    assert_eq!((n_ticks, third.borrow().fed.clone()), (7, vec![6, 12, 18, 24, 30, 36, 40]));
    end_as_alone(&mut scheduler, &reference, &prompts, [first, second, third]);
}

/// A step that ends a prompt also feeds the next one.
#[test]
fn a_step_feeds_parts_of_two_prompts() {
    let (model, _folder) = toy(4);
    let (reference, _other_folder) = toy(1);
    let mut scheduler = model.scheduler().unwrap();
    let prompts =
        [5, 3, 9].map(|tokens| prompt(tokens).iter().map(|token| (token + tokens) % VOCAB).collect::<Vec<_>>());
    let first = submit(&mut scheduler, prompts[0].clone(), 20);
    tick(&mut scheduler);
    let [second, third] = [1, 2].map(|at| submit(&mut scheduler, prompts[at].clone(), 5));
    tick(&mut scheduler);
    // Eight rows: the first's token, three of the second, four of the third.
    assert_eq!((second.borrow().fed.clone(), second.borrow().tokens.len()), (vec![3], 1));
    assert_eq!((scheduler.in_prefill(), scheduler.decoding()), (1, 2));
    tick(&mut scheduler);
    assert_eq!((third.borrow().fed.clone(), third.borrow().tokens.len()), (vec![4, 9], 1));
    end_as_alone(&mut scheduler, &reference, &prompts, [first, second, third]);
}

/// Prompts that begin alike are not fed at the same time: the later one has the beginning for nothing.
#[test]
fn a_prompt_waits_for_what_the_one_before_has_in_common_with_it() {
    let (model, _folder) = toy(4);
    let mut scheduler = model.scheduler().unwrap();
    let running = submit(&mut scheduler, vec![7; 5], 30);
    tick(&mut scheduler);
    let common = prompt(4);
    let [second, third] = [1, 2].map(|last| submit(&mut scheduler, [&common[..], &[last]].concat(), 5));
    tick(&mut scheduler);
    assert_eq!((second.borrow().tokens.len(), third.borrow().cached_tokens), (1, None));
    tick(&mut scheduler);
    assert_eq!((third.borrow().tokens.len(), third.borrow().cached_tokens), (1, Some(4)));
    assert!(!running.borrow().has_ended);
}

/// One session: a request that comes last is processed first, others of its priority in the order in which they came. A prompt of which a part
/// was fed waits for one of a higher priority.
#[test]
fn requests_of_a_lower_number_come_first() {
    let (model, _folder) = toy(1);
    let mut scheduler = model.scheduler().unwrap();
    let waiting =
        [(0, 5), (0, 6), (-1, 7)].map(|(priority, n)| submit_with_priority(&mut scheduler, prompt(n), 2, priority));
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        tick(&mut scheduler);
        order.extend((0..3).filter(|&at| waiting[at].borrow().has_ended && !order.contains(&at)).collect::<Vec<_>>());
    }
    assert_eq!(order, [2, 0, 1]);

    let (model, _folder) = toy(2);
    let mut scheduler = model.scheduler().unwrap();
    scheduler.set_max_prefill_tokens(4);
    let long = submit(&mut scheduler, prompt(24), 2);
    tick(&mut scheduler);
    assert_eq!(long.borrow().fed, [4]);
    let urgent = submit_with_priority(&mut scheduler, vec![3; 8], 2, -1);
    (0..2).for_each(|_| tick(&mut scheduler));
    assert_eq!((&long.borrow().fed, &urgent.borrow().fed), (&vec![4], &vec![4, 8]));
    while !scheduler.is_idle() {
        tick(&mut scheduler);
    }
    let (reference, _other_folder) = toy(1);
    for (received, prompt) in [(long, prompt(24)), (urgent, vec![3; 8])] {
        assert_eq!(received.borrow().tokens, alone(&reference, &prompt, 2));
    }
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

/// 2000 requests arrive at random on eight sequences, whose pages are enough for little more than one of them at its longest. Some are given up
/// by their clients, some fill the context, and drafts are verified meanwhile. Each gets the tokens that it gets alone, none waits forever, and
/// no page is lost.
#[test]
fn pages_run_out_and_every_request_gets_its_tokens() {
    let (model, _folder) = toy_of(8, KvCapacity::Tokens(CONTEXT + 40));
    let (_, n_pages) = model.kv_pages();
    let mut scheduler: Scheduler<Receiver> = model.scheduler().unwrap();
    scheduler.set_speculation(Some(Speculation::ngram(1).with(|one| one.adaptive = false))).unwrap();
    let mut state = 3_u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    let mut requests = Vec::new();
    let (mut n_ticks, mut most_waiting) = (0, 0);
    for number in 0..2000 {
        let mut tokens: Vec<u32> = prompt(4 + random(12)).iter().map(|token| (token + number % 7) % VOCAB).collect();
        tokens.extend((0..random(30)).map(|_| random(VOCAB)));
        let wanted = 1 + random(if number % 40 == 0 { 300 } else { 12 }) as usize;
        let priority = random(3) as i32 - 1;
        let received = submit_with_priority(&mut scheduler, tokens.clone(), wanted, priority);
        requests.push((tokens, wanted, received));
        if random(20) == 0 {
            let at = requests.len() - 1 - random(10).min(number) as usize;
            requests[at].2.borrow_mut().is_closed = true;
        }
        for _ in 0..random(8) {
            tick(&mut scheduler);
            n_ticks += 1;
            most_waiting = most_waiting.max(scheduler.waiting());
            let (held, running) = (model.kv_pages().0, scheduler.running_pages());
            assert!(running <= held && held <= n_pages, "{running} of {held} of {n_pages} pages");
        }
    }
    // No more arrive: as many ticks as before are more than enough for those that wait.
    let mut ticks_left = n_ticks + 10_000;
    while !scheduler.is_idle() && ticks_left > 0 {
        tick(&mut scheduler);
        ticks_left -= 1;
    }
    assert!(scheduler.is_idle(), "{} requests wait", scheduler.waiting());
    assert!(scheduler.preemptions() >= 10 && most_waiting > 0, "{} preemptions", scheduler.preemptions());
    assert_eq!(scheduler.running_pages(), 0);
    for (prompt, wanted, received) in requests {
        let received = received.take();
        let n_tokens = wanted.min(CONTEXT as usize - prompt.len() + 1);
        assert!(received.has_ended || received.is_closed, "after {prompt:?}");
        let mut text = prompt.clone();
        for token in &received.tokens {
            assert_eq!(*token, next_token(&text), "after {prompt:?}");
            text.push(*token);
        }
        assert!(received.tokens.len() == n_tokens || received.is_closed, "{} tokens", received.tokens.len());
    }
    drop(scheduler);
    assert_eq!(model.kv_pages().0, 0);
}

/// The other sequence grows while the prompt is fed, until no page is left; afterwards the prompt's logits are read from its first token on.
#[test]
fn a_prompt_whose_logits_are_read_begins_again_after_an_interruption() {
    let (model, _folder) = toy_of(2, KvCapacity::Tokens(CONTEXT));
    let mut scheduler = model.scheduler().unwrap();
    scheduler.set_max_prefill_tokens(4);
    let first = submit(&mut scheduler, prompt(CONTEXT / 4), 3 * CONTEXT as usize / 4);
    let (received, n_tokens) = (Rc::new(RefCell::<Received>::default()), CONTEXT * 2 / 3);
    let receiver = Receiver { received: Rc::clone(&received), wanted: 1, reads_prompt: true };
    let request = Request { prompt: prompt(n_tokens), sampling: Sampling::default(), priority: 0, receiver };
    scheduler.submit(request);
    while scheduler.preemptions() == 0 && !scheduler.is_idle() {
        tick(&mut scheduler);
    }
    let read = received.borrow().positions.len() as u32;
    assert!((1..n_tokens).contains(&read) && received.borrow().tokens.is_empty(), "{read} of {n_tokens}");
    while !scheduler.is_idle() {
        tick(&mut scheduler);
    }
    assert_eq!(received.borrow().positions, (0..n_tokens).collect::<Vec<_>>());
    assert_eq!(first.borrow().tokens.len(), 3 * CONTEXT as usize / 4);
}

#[test]
fn without_a_scheduler_a_step_that_finds_no_pages_fails_and_changes_nothing() {
    let (model, _folder) = toy_of(2, KvCapacity::Tokens(1));
    assert_eq!(model.kv_tokens(), u64::from(CONTEXT));
    let [mut one, mut other] = [model.session().unwrap(), model.session().unwrap()];
    one.feed(&prompt(150)).unwrap();
    (0..2).for_each(|_| other.feed(&prompt(24)).unwrap());
    let error = other.feed(&prompt(20)).unwrap_err();
    assert!(matches!(error, RunError::NoPages), "{error}");
    assert_eq!(other.len_tokens(), 48);
    let sampled = other.generate(1, &Sampling::default(), 100).collect::<Vec<_>>();
    assert!(matches!(sampled.last(), Some(Err(RunError::NoPages))), "{sampled:?}");
    one.clear();
    assert_eq!(other.generate(1, &Sampling::default(), 50).filter(Result::is_ok).count(), 50);
}
