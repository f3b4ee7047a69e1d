//! Sequences whose layers have recurrent state: it continues behind its last token, from a copy or from zero, and belongs to one sequence.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use tests::compiled::{Compiled, options, with};
use tests::models::models;
use tests::reference::{Golden, read_golden, relative_error};
use unicorn_compiler::WeightsOption;
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};
use unicorn_runtime::{
    DeviceChoice, FillMask, HostSampler, HostSampling, KvCapacity, LoadOptions, Model, RunError, Sampling,
};
use unicorn_spirv::target;

/// As in `e2e`: f16 weights and KV cache, everything else f32.
const F16_TOLERANCE: f64 = 5e-3;

/// The golden, its tokens, and its model with `slots` slots, on llvmpipe unless `UNICORN_DEVICE` names another device.
fn load(slots: u32) -> (Golden, Vec<u32>, Model) {
    load_with(|options| options.slots = slots)
}

fn load_with(change: impl FnOnce(&mut LoadOptions)) -> (Golden, Vec<u32>, Model) {
    let folder = models().join("tiny/qwen35-delta");
    let golden = read_golden(&folder);
    let tokens = golden.tokens.iter().map(|&token| token as u32).collect();
    let generic = target::by_name("generic").expect("a preset");
    let options = with(options(vec![generic], Vec::new()), |options| options.policy.weights = WeightsOption::F16);
    let compiled = Compiled::of_folder(&folder, &options);
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        change(options);
    });
    (golden, tokens, Model::load(&compiled.artifact_path(), &options).expect("it loads"))
}

/// Compares the logits after token `index` of the golden.
fn assert_logits(what: &str, found: &[f32], golden: &Golden, index: usize) {
    let error = relative_error(&golden.logits[index * found.len()..][..found.len()], found);
    assert!(error <= F16_TOLERANCE, "{what}: relative error {error}");
}

/// If a prompt differs before the last token of the state, nothing of the state is kept.
#[test]
fn recurrent_state_is_not_cut() {
    let (golden, tokens, model) = load(2);
    let mut session = model.session().expect("a free slot");
    session.feed(&tokens[..40]).expect("the steps run");
    assert_eq!(session.common_start(&tokens), 40);
    assert_eq!((session.common_start(&tokens[..40]), session.common_start(&tokens[..20])), (0, 0));
    let error = session.truncate(39).expect_err("state is not cut");
    assert!(matches!(error, RunError::NotInCache { len_tokens: 39, kept_from: 40 }), "{error}");
    // A prompt that ends earlier is fed from its beginning, where the state of the old one is not read.
    assert_eq!(session.keep_common_start(&tokens[..20]), 0);
    let last = session.feed_and_read_logits(&tokens[..20]).expect("the steps run");
    assert_logits("a prompt from its beginning", &last, &golden, 19);
    assert_eq!(session.keep_common_start(&tokens), 20);
    let last = session.feed_and_read_logits(&tokens[20..]).expect("the steps run");
    assert_logits("and its rest", &last, &golden, tokens.len() - 1);
    // Pages that were freed and are used again.
    drop(session);
    let mut sessions = [(); 2].map(|()| model.session().expect("a free slot"));
    for session in &mut sessions {
        let last = session.feed_and_read_logits(&tokens).expect("the steps run");
        assert_logits("a page that was given out again", &last, &golden, tokens.len() - 1);
    }
}

/// Steps that ran ahead of the end of a text have changed its state: a continuation is computed from the beginning.
#[test]
fn state_that_ran_ahead_of_a_text_is_not_continued() {
    let (golden, tokens, model) = load(1);
    let mut session = model.session().expect("a free slot");
    let sampling = Sampling::default();
    let first = session.feed_and_sample(&tokens[..10], &sampling).expect("the steps run").token;
    // Ended before the device has done all that was submitted.
    let taken: Vec<u32> =
        session.generate(first, &sampling, 40).take(3).map(|sampled| sampled.expect("the step runs").token).collect();
    let text: Vec<u32> = tokens[..10].iter().copied().chain([first]).chain(taken).collect();
    assert_eq!(session.tokens(), &text[..text.len() - 1]);
    let more = [&text[..], &[7, 8]].concat();
    assert_eq!(session.keep_common_start(&more), 0, "its state is of more tokens");
    let found = session.feed_and_read_logits(&more).expect("the steps run");
    drop(session);
    let mut other = model.session().expect("a free slot");
    let expected = other.feed_and_read_logits(&more).expect("the steps run");
    assert_eq!(found, expected);
    assert_eq!(expected.len(), golden.logits.len() / tokens.len());
}

/// Steps run ahead of masks there, too: none may run twice, also where other sequences use the device between two tokens, or a token has no mask. The
/// state is that of the tokens where the text ends with its last step.
#[test]
fn state_stays_with_a_masked_text() {
    for profile in [false, true] {
        masked_text(profile);
    }
}

/// `profile`: no step is submitted without its sampler, and the steps that ran again are counted.
fn masked_text(profile: bool) {
    const N_TOKENS: usize = 9;
    let (_, tokens, model) = load_with(|options| (options.slots, options.profile) = (3, profile));
    let sampling =
        Sampling::default().with(|sampling| (sampling.temperature, sampling.top_k, sampling.seed) = (1.3, 40, 9));
    let allow = |allowed: &mut [u32], number: usize| allowed.fill(0x5555_5555 << (number % 2));
    let is_masked = |number: usize| number % 4 != 3;
    let mut others = model.session().expect("a free slot");
    let mut session = model.session().expect("a free slot");
    session.feed(&tokens[..20]).expect("the steps run");
    model.take_profiles();
    let mut masked = session.generate_masked(tokens[20], &sampling, N_TOKENS as u32);
    let mut text = tokens[..=20].to_vec();
    for number in 0..N_TOKENS {
        let fill = is_masked(number).then(|| Box::new(move |allowed: &mut [u32]| allow(allowed, number)) as FillMask);
        let sampled = masked.next_token(fill);
        text.push(sampled.expect("steps are left").expect("the step runs").token);
        if number % 3 == 1 {
            others.feed(&tokens[..1]).expect("the step runs");
        }
    }
    drop(masked);
    let n_feeds_of_others = if profile { N_TOKENS / 3 } else { 0 };
    assert_eq!(model.take_profiles().len(), n_feeds_of_others, "no step of the text ran again");
    let mut on_host = model.session().expect("a free slot");
    on_host.feed(&tokens[..20]).expect("the steps run");
    let sampler = HostSampler::new(sampling, HostSampling::default());
    for (number, pair) in text[20..].windows(2).enumerate() {
        let mut logits = on_host.feed_and_read_logits(&pair[..1]).expect("the steps run");
        let mut allowed = vec![u32::MAX; logits.len().div_ceil(32)];
        if is_masked(number) {
            allow(&mut allowed, number);
        }
        let sampled = sampler.sample(number as u32, on_host.tokens(), &mut logits, Some(&allowed)).expect("a token");
        assert_eq!(sampled.token, pair[1], "{number}");
    }
    assert_eq!(session.keep_common_start(&[&text[..], &[7, 8]].concat()) as usize, text.len() - 1);
}

/// A text whose continuation leaves out what it generated goes on from the copy of the state in its prompt.
#[test]
fn a_session_goes_back_to_its_checkpoint() {
    let (_, tokens, model) = load_with(|options| (options.slots, options.context_tokens) = (1, Some(256)));
    let prompt = distinct(&tokens, 0, 100);
    let more = [&prompt[..], &distinct(&tokens, 1, 90)].concat();
    let mut session = model.session().expect("a free slot");
    let mut expect = |cached, prompt: &[u32], keeps: bool| {
        session.set_checkpoint(keeps);
        assert_eq!(session.keep_common_start(prompt), cached);
        let logits = session.feed_and_read_logits(&prompt[cached as usize..]).expect("the steps run");
        assert!(session.generate(1, &Sampling::default(), 9).all(|one| one.is_ok()), "the steps run");
        logits
    };
    let expected = [&prompt, &more].map(|prompt| expect(0, prompt, false));
    let found = [expect(0, &prompt, true), expect(96, &more, true)];
    for (found, expected) in found.iter().zip(&expected) {
        let error = relative_error(expected, found);
        assert!(error <= F16_TOLERANCE, "relative error {error}");
    }
    // The checkpoint is that of the longer prompt now, and its pages are free for a prompt that begins otherwise.
    expect(0, &distinct(&tokens, 2, 250), true);
}

/// The tokens of a request.
struct Collected {
    tokens: Arc<Mutex<Vec<u32>>>,
    most: usize,
    cached: u32,
}

impl TokenReceiver for Collected {
    fn begin(&mut self, cached_tokens: u32) {
        assert_eq!(cached_tokens, self.cached, "tokens that were there before");
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        let mut tokens = self.tokens.lock().unwrap();
        tokens.push(token);
        if tokens.len() == self.most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        panic!("{why:?}");
    }
}

/// A reply whose first tokens are free, as those of reasoning are.
struct MaskedLate(Collected);

impl TokenReceiver for MaskedLate {
    fn begin(&mut self, cached_tokens: u32) {
        self.0.begin(cached_tokens);
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        assert!(!self.is_masked() || token.is_multiple_of(2));
        self.0.token(token)
    }

    fn is_masked(&self) -> bool {
        self.0.tokens.lock().unwrap().len() >= 5
    }

    fn may_be_masked(&self) -> bool {
        true
    }

    fn mask(&mut self) -> FillMask<'_> {
        let is_masked = self.is_masked();
        Box::new(move |allowed| allowed.fill(if is_masked { 0x5555_5555 } else { u32::MAX }))
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        self.0.end(why);
    }
}

/// A step that ran ahead with a token that a mask forbids has changed the state: neither that sequence nor those beside it are computed again.
#[test]
fn masks_that_begin_late_find_the_state_of_the_tokens() {
    let (_, tokens, model) = load_with(|options| (options.slots, options.profile) = (2, true));
    let alone = text_of(&model, &tokens[..20], 12);
    let mut scheduler: Scheduler<MaskedLate> = model.scheduler().expect("slots");
    model.take_profiles();
    let texts: Vec<_> = (0..2).map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    for text in &texts {
        let receiver = MaskedLate(Collected { tokens: text.clone(), most: alone.len(), cached: 0 });
        let prompt = tokens[..20].to_vec();
        scheduler.submit(Request { prompt, sampling: Sampling::default(), priority: 0, receiver });
    }
    let mut n_prompt_steps = 0;
    while !scheduler.is_idle() {
        let is_prefill = scheduler.decoding() < 2;
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
        n_prompt_steps += if is_prefill { model.take_profiles().len() } else { 0 };
    }
    assert!(n_prompt_steps > 0);
    assert_eq!(model.take_profiles().len(), 0, "no step ran again");
    for text in texts {
        let text = text.lock().unwrap();
        assert_eq!(text[..5], alone[..5]);
    }
}

/// The likeliest tokens behind `prompt`, of a session of its own.
fn text_of(model: &Model, prompt: &[u32], n_tokens: u32) -> Vec<u32> {
    let mut session = model.session().expect("a free slot");
    let first = session.feed_and_sample(prompt, &Sampling::default()).expect("the steps run").token;
    let rest = session.generate(first, &Sampling::default(), n_tokens - 1).map(|one| one.expect("the step runs").token);
    [first].into_iter().chain(rest).collect()
}

/// Requests with the same prompt, in one batch: each has its own state, the later ones from a copy of the first one's, and the same text as
/// alone, also after another has ended.
#[test]
fn sequences_of_a_batch_share_no_state() {
    let (_, tokens, model) = load(3);
    let alone = text_of(&model, &tokens, 12);
    let mut scheduler = model.scheduler().expect("slots");
    let texts: Vec<_> = (0..3).map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    let lens = [alone.len() - 7, alone.len(), alone.len() - 2];
    let whole_pages = (tokens.len() as u32 - 1) / 32 * 32;
    for ((text, most), cached) in texts.iter().zip(lens).zip([0, whole_pages, whole_pages]) {
        let receiver = Collected { tokens: text.clone(), most, cached };
        scheduler.submit(Request { prompt: tokens.clone(), sampling: Sampling::default(), priority: 0, receiver });
    }
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    for (text, most) in texts.iter().zip(lens) {
        assert_eq!(*text.lock().unwrap(), alone[..most]);
    }
}

/// Sequences grow until there are no pages of the KV cache: the newest is interrupted and computed again, the state of the oldest goes on.
#[test]
fn an_interrupted_sequence_makes_its_state_anew() {
    let (_, tokens, model) = load_with(|options| {
        (options.slots, options.context_tokens, options.kv_capacity) = (3, Some(96), KvCapacity::Tokens(1));
    });
    let expected = text_of(&model, &tokens[..20], 60);
    let mut scheduler = model.scheduler().expect("slots");
    let texts: Vec<_> = (0..3).map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    for text in &texts {
        let receiver = Collected { tokens: text.clone(), most: expected.len(), cached: 0 };
        scheduler.submit(Request {
            prompt: tokens[..20].to_vec(),
            sampling: Sampling::default(),
            priority: 0,
            receiver,
        });
    }
    let mut most_decoding = 0;
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
        most_decoding = most_decoding.max(scheduler.decoding());
    }
    assert!(scheduler.preemptions() > 0 && most_decoding >= 2, "{most_decoding} at a time");
    for text in texts {
        assert_eq!(*text.lock().unwrap(), expected);
    }
}

/// A prompt whose tokens are unlike those of other `number`s.
fn distinct(tokens: &[u32], number: usize, n_tokens: usize) -> Vec<u32> {
    (0..n_tokens).map(|at| tokens[(at * (number + 2) + number) % tokens.len()]).collect()
}

/// The text of one request, of whose prompt `cached` tokens are expected to be there.
fn run(scheduler: &mut Scheduler<Collected>, prompt: &[u32], cached: u32, most: usize) -> Vec<u32> {
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let receiver = Collected { tokens: tokens.clone(), most, cached };
    scheduler.submit(Request { prompt: prompt.to_vec(), sampling: Sampling::default(), priority: 0, receiver });
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    std::mem::take(&mut tokens.lock().unwrap())
}

/// Where a step of a prompt ends with a page, its state is copied: other prompts continue from there.
#[test]
fn a_prompt_continues_from_a_copy_of_the_state_of_another() {
    let (_, tokens, model) = load_with(|options| (options.slots, options.context_tokens) = (1, Some(512)));
    let system = distinct(&tokens, 0, 70);
    let prompts: Vec<Vec<u32>> = (1..5).map(|number| [&system[..], &distinct(&tokens, number, 60)].concat()).collect();
    let next_turn = [&prompts[0][..], &distinct(&tokens, 7, 20)].concat();
    let prompts = [&prompts[..], &[next_turn]].concat();
    let alone: Vec<_> = prompts.iter().map(|prompt| text_of(&model, prompt, 9)).collect();
    let mut scheduler = model.scheduler().expect("slots");
    // What the second has in common with the first is not known before: it is copied then.
    for (number, cached) in [(0, 0), (1, 0), (2, 64), (4, 128), (2, 128)] {
        assert_eq!(
            run(&mut scheduler, &prompts[number], cached, 9),
            alone[number],
            "{number}: {cached} tokens were there"
        );
    }
    // Copies that were used longest ago are given up.
    scheduler.set_max_checkpoints(1);
    for (number, cached) in [(3, 0), (2, 0), (2, 128)] {
        assert_eq!(
            run(&mut scheduler, &prompts[number], cached, 9),
            alone[number],
            "{number}: {cached} tokens were there"
        );
    }
    scheduler.set_max_checkpoints(0);
    for number in [2, 3] {
        run(&mut scheduler, &prompts[number], 0, 9);
    }
}

/// Where texts depend on nothing else, whole parts of prompts are copied.
#[test]
fn deterministic_prompts_continue_from_whole_parts() {
    let (_, tokens, model) = load_with(|options| (options.slots, options.context_tokens) = (1, Some(512)));
    let prompts = [1, 2].map(|number| [distinct(&tokens, 0, 140), distinct(&tokens, number, 40)].concat());
    let mut scheduler = model.scheduler().expect("slots");
    scheduler.set_deterministic(true).expect("nothing is in the way");
    scheduler.set_max_prefill_tokens(64);
    scheduler.set_max_checkpoints(0);
    let alone = prompts.each_ref().map(|prompt| run(&mut scheduler, prompt, 0, 9));
    scheduler.set_max_checkpoints(2);
    for (number, cached) in [(0, 0), (1, 128), (0, 128)] {
        assert_eq!(run(&mut scheduler, &prompts[number], cached, 9), alone[number], "{cached} tokens were there");
    }
}
