//! The head that predicts the token behind the next one (multi-token prediction): its logits against `tests/golden/predictor.py`, and the text that
//! it drafts for against the text without. llvmpipe unless `UNICORN_DEVICE` names another device.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tests::changed_weights::{chain_with_head, with_weights};
use tests::compiled::{Compiled, options, with};
use tests::launch::device;
use tests::models::models;
use tests::recorder::{Recorder, ask, text};
use tests::reference::{read_golden, read_predictor_golden, relative_error};
use tests::texts::text_of;
use unicorn_compiler::{CompileOptions, WeightsOption};
use unicorn_runtime::scheduler::Scheduler;
use unicorn_runtime::{BatchRow, DeviceChoice, LoadOptions, Model, Sampling, Session, Speculation};
use unicorn_spirv::target;

/// As in `e2e`: f16 weights and KV cache, everything else f32.
const F16_TOLERANCE: f64 = 5e-3;

/// A dense model, and one with experts.
const FOLDERS: [&str; 2] = ["qwen35-mtp", "qwen35-moe-mtp"];

fn f16(target: &str) -> CompileOptions {
    let mut target = target::by_name(target).expect("a preset");
    if target.subgroup_size > 0 {
        target = target.for_any_device(device().subgroup_size);
    }
    with(options(vec![target], Vec::new()), |options| options.policy.weights = WeightsOption::F16)
}

fn load(folder: &Path, options: &CompileOptions, slots: u32) -> Model {
    let compiled = Compiled::of_folder(folder, options);
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        options.slots = slots;
    });
    Model::load(&compiled.artifact_path(), &options).expect("it loads")
}

fn tiny(name: &str) -> PathBuf {
    models().join("tiny").join(name)
}

fn tokens_of(golden: &[i32]) -> Vec<u32> {
    golden.iter().map(|&token| token as u32).collect()
}

/// Logits of the head for each token of the golden but the first, each behind the tokens before it, which are fed one by one or `n_fed` at a time.
fn predicted(session: &mut Session, tokens: &[u32], n_fed: usize) -> Vec<f32> {
    session.clear();
    let mut found = Vec::new();
    let mut n_cached = 0;
    for newest in 1..tokens.len() {
        if newest % n_fed == 0 || newest == 1 {
            session.feed(&tokens[n_cached..newest]).expect("the steps run");
            n_cached = newest;
            found.extend(session.predicted_logits(tokens[newest]).expect("the step runs"));
        }
    }
    found
}

/// The golden's rows of those tokens.
fn expected(all: &[f32], n_tokens: usize, n_fed: usize) -> Vec<f32> {
    let vocab = all.len() / (n_tokens - 1);
    let rows = (1..n_tokens).filter(|newest| newest % n_fed == 0 || *newest == 1);
    rows.flat_map(|newest| &all[(newest - 1) * vocab..][..vocab]).copied().collect()
}

#[test]
fn logits_are_those_of_the_formula() {
    for name in FOLDERS {
        let golden = read_golden(tiny(name));
        let tokens = tokens_of(&golden.tokens);
        let of_head = read_predictor_golden(tiny(name));
        let of_subgroups = ("generic-subgroup", true);
        for (target, fuse) in [("generic", true), ("generic", false), ("llvmpipe", true), of_subgroups] {
            let model = load(&tiny(name), &with(f16(target), |options| options.fuse = fuse), 1);
            let mut session = model.session().expect("a free slot");
            for n_fed in [1, 7, 20] {
                let found = predicted(&mut session, &tokens, n_fed);
                let error = relative_error(&expected(&of_head.predicted, tokens.len(), n_fed), &found);
                let what = format!("{name}, {target}, fused: {fuse}, {n_fed} tokens at a time");
                assert!(error <= F16_TOLERANCE, "{what}: relative error {error}");
            }
        }
    }
}

/// The head of a GGUF file, with llama.cpp's names, is that of the folder.
#[test]
fn a_gguf_file_has_the_same_head() {
    for name in FOLDERS {
        let (golden, of_head) = (read_golden(tiny(name)), read_predictor_golden(tiny(name)));
        let tokens = tokens_of(&golden.tokens);
        let model = load(&models().join("gguf").join(format!("{name}.gguf")), &f16("generic"), 1);
        let found = predicted(&mut model.session().expect("a free slot"), &tokens, 7);
        let error = relative_error(&expected(&of_head.predicted, tokens.len(), 7), &found);
        assert!(error <= F16_TOLERANCE, "{name}: relative error {error}");
    }
}

/// As in `e2e`: INT8 weights; and INT4 with integer activations, against the same weights in the unfused graph.
const INTEGER_TOLERANCE: f64 = 3e-2;

#[test]
fn logits_of_integer_weights_are_near() {
    for name in FOLDERS {
        let (golden, of_head) = (read_golden(tiny(name)), read_predictor_golden(tiny(name)));
        let tokens = tokens_of(&golden.tokens);
        let found_by = |target, weights, fuse| {
            let options = with(f16(target), |options| (options.policy.weights, options.fuse) = (weights, fuse));
            let model = load(&tiny(name), &options, 1);
            predicted(&mut model.session().expect("a free slot"), &tokens, 7)
        };
        let found = |weights, fuse| found_by("generic", weights, fuse);
        let of_int8 = found(WeightsOption::Int8, true);
        let error = relative_error(&expected(&of_head.predicted, tokens.len(), 7), &of_int8);
        assert!(error <= INTEGER_TOLERANCE, "{name}: relative error {error} of int8");
        let error = relative_error(&found(WeightsOption::Int4, false), &found(WeightsOption::Int4, true));
        assert!(error <= INTEGER_TOLERANCE, "{name}: relative error {error} of int4");
        let of_subgroups = found_by("generic-subgroup", WeightsOption::Int4, true);
        let error = relative_error(&found(WeightsOption::Int4, false), &of_subgroups);
        assert!(error <= INTEGER_TOLERANCE, "{name}: relative error {error} of int4 with subgroups");
    }
}

/// Each draft's row is the hidden row of the next.
#[test]
fn drafts_are_those_of_the_formula() {
    for name in FOLDERS {
        let (golden, of_head) = (read_golden(tiny(name)), read_predictor_golden(tiny(name)));
        let model = load(&tiny(name), &f16("generic"), 1);
        let mut session = model.session().expect("a free slot");
        session.feed(&tokens_of(&golden.tokens)).expect("the steps run");
        // A second draft is as the first: none leaves anything behind that later steps read.
        for _ in 0..2 {
            let drafts = session.predict(golden.greedy[0] as u32, of_head.drafts.len() as u32).expect("the steps run");
            assert_eq!(drafts, tokens_of(&of_head.drafts), "{name}");
        }
    }
}

/// What the comparisons above would find: another order of the two rows, a norm of another weight, a position without its row.
#[test]
fn a_wrong_head_is_found() {
    let folder = tiny(FOLDERS[0]);
    let (golden, of_head) = (read_golden(&folder), read_predictor_golden(&folder));
    let tokens = tokens_of(&golden.tokens);
    let error_of = |folder: &Path| {
        let model = load(folder, &f16("generic"), 1);
        let found = predicted(&mut model.session().expect("a free slot"), &tokens, 7);
        relative_error(&expected(&of_head.predicted, tokens.len(), 7), &found)
    };
    assert!(error_of(with_weights(&folder, |_, _| ()).path()) <= F16_TOLERANCE);
    let swapped = with_weights(&folder, |name, values| {
        if name == "mtp.fc.weight" {
            let columns = 2 * 60;
            values.chunks_exact_mut(columns).for_each(|row| row.rotate_left(columns / 2));
        }
    });
    assert!(error_of(swapped.path()) > 20.0 * F16_TOLERANCE);
    for norm in ["mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight"] {
        let other = with_weights(&folder, |name, values| {
            if name == norm {
                values[3] += 2.0;
            }
        });
        let error = error_of(other.path());
        assert!(error > 2.0 * F16_TOLERANCE, "{norm}: relative error {error}");
    }
}

/// A token of a sequence more than the head has seen.
fn newest_of(session: &mut Session, tokens: &[u32], newest: u32) -> Vec<f32> {
    session.clear();
    session.feed(tokens).expect("the steps run");
    session.predicted_logits(newest).expect("the step runs")
}

/// Steps that decode, also several in one submission, keep what the head reads as those of a prompt do; so do steps of a batch.
#[test]
fn steps_that_decode_keep_what_the_head_reads() {
    let model = load(&tiny(FOLDERS[0]), &f16("generic"), 3);
    let [mut one, mut other, mut fresh] = [(); 3].map(|()| model.session().expect("a free slot"));
    let greedy = Sampling::default();
    let first = one.feed_and_sample(&text(1, 25), &greedy).expect("the steps run").token;
    let last = one.generate(first, &greedy, 12).map(|sampled| sampled.expect("the step runs").token).last();
    other.feed(&text(2, 31)).expect("the steps run");
    let rows = [(&mut one, last.expect("twelve tokens")), (&mut other, 5)];
    let rows = rows.map(|(session, token)| BatchRow { session, token, sampling: &greedy });
    model.decode_batch(rows).expect("the step runs");
    for session in [&mut one, &mut other] {
        let (found, tokens) = (session.predicted_logits(9).expect("the step runs"), session.tokens().to_vec());
        let error = relative_error(&newest_of(&mut fresh, &tokens, 9), &found);
        assert!(error <= F16_TOLERANCE, "relative error {error}");
    }
    // Nothing is known of what precedes a text.
    fresh.clear();
    assert!(fresh.predict(9, 3).expect("no step runs").is_empty());
}

fn sampled() -> Sampling {
    Sampling::default().with(|sampling| {
        (sampling.temperature, sampling.top_k, sampling.top_p) = (0.9, 50, 0.95);
        (sampling.repeat_penalty, sampling.seed) = (1.1, 11);
    })
}

/// All drafts are verified.
fn always(model: &Model) -> Speculation {
    model.own_speculation().expect("a head for drafts").with(|one| (one.max_tokens, one.adaptive) = (3, false))
}

/// Whatever the head predicts, the text is that of the model. Random heads are almost never right, that of the chain always.
#[test]
fn the_text_is_that_of_the_model() {
    let chain = chain_with_head();
    for (folder, is_right) in [(tiny(FOLDERS[0]), false), (tiny(FOLDERS[1]), false), (chain.path().into(), true)] {
        let model = load(&folder, &f16("generic"), 1);
        let mut session = model.session().expect("a free slot");
        for sampling in [Sampling::default(), sampled()] {
            session.set_speculation(None).expect("off is possible");
            let expected = text_of(&mut session, &text(1, 40), &sampling, 60);
            session.set_speculation(Some(&always(&model))).expect("it speculates");
            assert_eq!(text_of(&mut session, &text(1, 40), &sampling, 60), expected, "{}", folder.display());
            let counts = session.take_draft_counts();
            match is_right && sampling.temperature == 0.0 {
                true => assert!(counts.accepted == counts.proposed && counts.accepted > 40, "{counts:?}"),
                false => assert!(counts.proposed > counts.accepted && counts.drafts > 10, "{counts:?}"),
            }
        }
    }
}

/// Where drafts are accepted, steps give more tokens: speculation that adapts goes on with them; where none is, it ends them.
#[test]
fn speculation_follows_what_is_accepted() {
    let chain = chain_with_head();
    let drafted = |folder: &Path| {
        let model = load(folder, &f16("generic"), 1);
        let mut session = model.session().expect("a free slot");
        let speculation = model.own_speculation().expect("a head for drafts");
        session.set_speculation(Some(&speculation)).expect("it speculates");
        let len = text_of(&mut session, &text(1, 40), &Sampling::default(), 300).len();
        assert_eq!(len, 340);
        session.take_draft_counts()
    };
    let (right, random) = (drafted(chain.path()), drafted(&tiny(FOLDERS[0])));
    assert!(right.accepted == right.proposed && right.drafts > 0, "{right:?}");
    assert!(random.drafts < 100 && random.accepted < random.proposed, "{random:?}");
}

/// Requests that share steps, beginnings and pages: each text is what it is alone, and the chain's drafts stay right where a prompt
/// continues from another's tokens.
#[test]
fn requests_speculate_with_the_head() {
    let chain = chain_with_head();
    let model = load(chain.path(), &f16("generic"), 3);
    let prompts = [text(1, 70), [&text(1, 64)[..], &text(2, 9)].concat(), text(3, 20)];
    let mut alone: Scheduler<Recorder> = model.scheduler().expect("slots");
    let expected = prompts.each_ref().map(|prompt| ask(&mut alone, prompt, 30).tokens);
    drop(alone);
    let mut scheduler: Scheduler<Recorder> = model.scheduler().expect("slots");
    scheduler.set_speculation(Some(always(&model))).expect("it speculates");
    let answers = prompts.each_ref().map(|prompt| {
        let (request, answer) = Recorder::request(prompt.clone(), 30);
        scheduler.submit(request);
        answer
    });
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    for (expected, answer) in expected.iter().zip(answers) {
        let answer = answer.lock().expect("no thread panics here");
        assert_eq!(answer.tokens, *expected);
        let (proposed, accepted) = answer.drafted;
        // The last draft may go on behind the last token that was asked for.
        assert!(proposed - accepted < 3 && accepted > 15, "{accepted} of {proposed} tokens");
    }
}
