//! Speculation of models with recurrent state, out of which no token can be taken: text and state are those of the accepted tokens alone,
//! whatever is proposed. llvmpipe unless `UNICORN_DEVICE` names another device.

use std::ops::ControlFlow;
use std::path::Path;

use tests::compiled::{Compiled, options, with};
use tests::known_texts::known_texts;
use tests::models::models;
use tests::recorder::{Recorder, ask, text};
use tests::reference::relative_error;
use tests::texts::text_of;
use unicorn_compiler::WeightsOption;
use unicorn_runtime::scheduler::Scheduler;
use unicorn_runtime::{DeviceChoice, KvCapacity, LoadOptions, Model, Sampling, Session, Speculation};
use unicorn_spirv::target;

/// As in `e2e`: f16 weights and KV cache, everything else f32.
const F16_TOLERANCE: f64 = 5e-3;

/// A gated delta net beside attention, alone, and with experts; a short convolution; neither.
const FAMILIES: [&str; 4] = ["qwen35-delta", "qwen3-next", "qwen35-moe", "lfm2"];

fn compile(folder: &Path) -> Compiled {
    let generic = target::by_name("generic").expect("a preset");
    let options = with(options(vec![generic], Vec::new()), |options| options.policy.weights = WeightsOption::F16);
    Compiled::of_folder(folder, &options)
}

fn load_with(compiled: &Compiled, change: impl FnOnce(&mut LoadOptions)) -> Model {
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        change(options);
    });
    Model::load(&compiled.artifact_path(), &options).expect("it loads")
}

fn load(family: &str, slots: u32) -> Model {
    load_with(&compile(&models().join("tiny").join(family)), |options| options.slots = slots)
}

/// Compares what follows the tokens of `session` with what follows them in a session that was fed nothing else.
fn assert_state(what: &str, model: &Model, session: &mut Session) {
    let tokens = [session.tokens(), &[9, 4]].concat();
    let cached = session.keep_common_start(&tokens) as usize;
    assert_eq!(cached, tokens.len() - 2, "{what}: the session continues where it is");
    let found = session.feed_and_read_logits(&tokens[cached..]).expect("the steps run");
    let mut other = model.session().expect("a free slot");
    let expected = other.feed_and_read_logits(&tokens).expect("the steps run");
    let error = relative_error(&expected, &found);
    assert!(error <= F16_TOLERANCE, "{what}: relative error {error}");
}

fn sampled() -> Sampling {
    Sampling::default().with(|sampling| {
        (sampling.temperature, sampling.top_k, sampling.top_p) = (0.9, 50, 0.95);
        (sampling.repeat_penalty, sampling.seed) = (1.1, 11);
    })
}

#[test]
fn text_and_state_are_those_of_the_accepted_tokens() {
    for family in FAMILIES {
        let model = load(family, 2);
        for sampling in [Sampling::default(), sampled()] {
            let what = format!("{family}, temperature {}", sampling.temperature);
            let mut session = model.session().expect("a free slot");
            let expected = text_of(&mut session, &text(1, 40), &sampling, 60);
            session.set_speculation(Some(&known_texts(vec![expected.clone()]))).expect("it speculates");
            assert_eq!(text_of(&mut session, &text(1, 40), &sampling, 60), expected, "{what}");
            let counts = session.take_draft_counts();
            assert!(counts.accepted >= 30 && counts.accepted < counts.proposed, "{what}: {counts:?}");
            assert_state(&what, &model, &mut session);
        }
    }
}

/// The text ends anywhere within what a verification has sampled, and continues from there.
#[test]
fn an_interrupted_draft_continues_with_the_same_text_and_state() {
    let model = load("qwen35-delta", 2);
    let (mut session, sampling) = (model.session().expect("a free slot"), Sampling::default());
    let prompt = text(1, 40);
    let expected = text_of(&mut session, &prompt, &sampling, 40);
    session.set_speculation(Some(&known_texts(vec![expected.clone()]))).expect("it speculates");
    for n_taken in 1..=5 {
        let mut found = text_of(&mut session, &prompt, &sampling, 1);
        while found.len() < expected.len() {
            let (newest, most) = (found[found.len() - 1], expected.len() - found.len());
            let tokens = session.generate(newest, &sampling, most as u32).take(n_taken);
            found.extend(tokens.map(|sampled| sampled.expect("the step runs").token));
        }
        assert_eq!(found, expected, "interrupted after {n_taken}");
        assert_state(&format!("interrupted after {n_taken}"), &model, &mut session);
    }
}

/// A text that was cut behind a draft's first token goes back to the state before the draft.
#[test]
fn a_session_goes_back_to_the_state_before_a_draft() {
    let model = load("qwen35-delta", 2);
    let mut session = model.session().expect("a free slot");
    let expected = text_of(&mut session, &text(1, 40), &Sampling::default(), 30);
    session.set_speculation(Some(&known_texts(vec![expected.clone()]))).expect("it speculates");
    text_of(&mut session, &text(1, 40), &Sampling::default(), 30);
    let len = session.len_tokens();
    session.truncate(len - 1).expect("the copy includes fewer tokens");
    assert_state("cut by one token", &model, &mut session);
    let error = session.truncate(20).expect_err("the copy includes more tokens").to_string();
    assert!(error.contains("20"), "{error}");
}

/// The answers to requests that speculate together, which are those to each alone, and their scheduler.
fn speculate_together(model: &Model, prompts: &[Vec<u32>; 3], most: usize) -> ([Vec<u32>; 3], Scheduler<Recorder>) {
    let mut alone = model.scheduler().expect("slots");
    let expected = prompts.each_ref().map(|prompt| ask(&mut alone, prompt, most).tokens);
    drop(alone);
    let mut scheduler: Scheduler<Recorder> = model.scheduler().expect("slots");
    let texts = prompts.iter().zip(&expected).map(|(prompt, answer)| [&prompt[..], answer].concat()).collect();
    scheduler.set_speculation(Some(known_texts(texts))).expect("it speculates");
    let answers = prompts.each_ref().map(|prompt| {
        let (request, answer) = Recorder::request(prompt.clone(), most);
        scheduler.submit(request);
        answer
    });
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    for (expected, answer) in expected.iter().zip(answers) {
        assert_eq!(answer.lock().expect("no thread panics here").tokens, *expected);
    }
    (expected, scheduler)
}

/// Several sequences share the one copy: each goes back to its own state before another one speculates.
#[test]
fn sequences_of_a_batch_speculate_with_one_copy_of_state() {
    for family in ["qwen35-delta", "lfm2"] {
        let prompts = [1, 2, 3].map(|seed| text(seed, 40 + seed as usize));
        let (answers, mut scheduler) = speculate_together(&load(family, 3), &prompts, 30);
        for (prompt, answer) in prompts.iter().zip(&answers) {
            // The session keeps exactly the tokens of the text, all but the last.
            let next = ask(&mut scheduler, &[&prompt[..], answer, &[5, 6]].concat(), 3);
            assert_eq!(next.cached_tokens as usize, prompt.len() + answer.len() - 1, "{family}");
        }
    }
}

/// Pages run out while sequences speculate: the newest is computed again, and each text is what it is alone.
#[test]
fn interrupted_sequences_speculate_on() {
    let compiled = compile(&models().join("tiny/qwen35-delta"));
    let model = load_with(&compiled, |options| {
        (options.slots, options.context_tokens, options.kv_capacity) = (3, Some(96), KvCapacity::Tokens(1));
    });
    let (_, scheduler) = speculate_together(&model, &[1, 2, 3].map(|seed| text(seed, 20)), 60);
    assert!(scheduler.preemptions() > 0);
}

/// A model with state drafts for itself, so that both have to go back: greedily, all is accepted, and of other samples a part. Where the draft has
/// a copy for each sequence, one for both, or none and computes each text again, its proposals are the same.
#[test]
fn a_model_with_state_drafts() {
    let compiled = compile(&models().join("tiny/qwen35-delta"));
    let model = load_with(&compiled, |options| options.slots = 2);
    let drafts =
        [2, 1, 0].map(|copies| load_with(&compiled, |options| (options.slots, options.state_copies) = (2, copies)));
    let prompts = [1, 2].map(|seed| text(seed, 40));
    let mut sessions = [(); 2].map(|()| model.session().expect("a free slot"));
    for sampling in [Sampling::default(), sampled()] {
        sessions.iter_mut().for_each(|session| session.set_speculation(None).expect("off is possible"));
        let expected = prompts.each_ref().map(|prompt| text_of(&mut sessions[0], prompt, &sampling, 60));
        let counts = drafts.each_ref().map(|draft| {
            let speculation =
                draft.speculation_for(&model).expect("the same tokenizer").with(|one| one.adaptive = false);
            // In turn, a few tokens of each.
            let mut texts = prompts.clone();
            for (session, text) in sessions.iter_mut().zip(&mut texts) {
                session.set_speculation(Some(&speculation)).expect("it speculates");
                *text = text_of(session, text, &sampling, 1);
            }
            while texts[0].len() < expected[0].len() {
                for (session, text) in sessions.iter_mut().zip(&mut texts) {
                    let (newest, most) = (text[text.len() - 1], (expected[0].len() - text.len()).min(9));
                    let next = session.generate(newest, &sampling, most as u32);
                    text.extend(next.map(|sampled| sampled.expect("the step runs").token));
                }
            }
            assert_eq!(texts, expected, "temperature {}", sampling.temperature);
            sessions.each_mut().map(|session| session.take_draft_counts())
        });
        assert!(counts.iter().all(|found| *found == counts[0]), "{counts:?}");
        for one in counts[0] {
            match sampling.temperature == 0.0 {
                true => assert!(one.accepted == one.proposed && one.accepted > 30, "{one:?}"),
                false => assert!(one.accepted > 0 && one.accepted < one.proposed, "{one:?}"),
            }
        }
    }
}

/// What a store keeps of a text is the state behind its last token, without the tokens of rejected drafts.
#[test]
fn a_text_goes_on_from_a_store_after_its_drafts() {
    let model = load("qwen35-delta", 1);
    let question = text(1, 100);
    let mut alone = model.scheduler().expect("slots");
    let first = ask(&mut alone, &question, 22);
    let more = [&question[..], &first.tokens, &text(2, 9)].concat();
    let expected = ask(&mut alone, &more, 6);
    drop(alone);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let with_drafts = || {
        let mut scheduler: Scheduler<Recorder> = model.scheduler().expect("slots");
        scheduler.set_kv_store(Some(model.kv_store(folder.path(), 1 << 30).expect("a temporary folder")));
        let known = known_texts(vec![[&question[..], &first.tokens].concat()]);
        scheduler.set_speculation(Some(known)).expect("it speculates");
        scheduler
    };
    assert_eq!(ask(&mut with_drafts(), &question, 22).tokens, first.tokens);
    let found = ask(&mut with_drafts(), &more, 6);
    assert_eq!((found.cached_tokens, found.tokens), (expected.cached_tokens, expected.tokens));
    assert_eq!(found.cached_tokens, 121);
}

/// Without copies every rejected draft costs the sequence's tokens again, and changes none.
#[test]
fn without_copies_the_text_is_computed_again() {
    let compiled = compile(&models().join("tiny/qwen35-delta"));
    let model = load_with(&compiled, |options| (options.slots, options.state_copies) = (2, 0));
    let mut session = model.session().expect("a free slot");
    let expected = text_of(&mut session, &text(1, 40), &Sampling::default(), 20);
    session.set_speculation(Some(&known_texts(vec![expected.clone()]))).expect("it speculates");
    assert_eq!(text_of(&mut session, &text(1, 40), &Sampling::default(), 20), expected);
    assert_state("without copies", &model, &mut session);
}

/// Drafts from the text itself, as the programs make them.
#[test]
fn a_text_with_state_that_repeats_itself_is_drafted() {
    let model = load("qwen35-delta", 2);
    let mut session = model.session().expect("a free slot");
    let prompt = text(1, 12).repeat(4);
    let expected = text_of(&mut session, &prompt, &Sampling::default(), 60);
    let ngram = Speculation::ngram(1).with(|one| one.adaptive = false);
    session.set_speculation(Some(&ngram)).expect("it speculates");
    assert_eq!(text_of(&mut session, &prompt, &Sampling::default(), 60), expected);
    assert!(session.take_draft_counts().proposed > 0);
    assert_state("prompt lookup", &model, &mut session);
}
