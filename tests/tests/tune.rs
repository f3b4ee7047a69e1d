//! `unicorn-run tune`: every alternative computes what the compiler's choice computes, and winners are used by later starts
//! and by no other's.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::compiled::{Compiled, options, with};
use tests::launch::{device, device_matrices};
use tests::programs::{Watched, program, send_signal};
use tests::reference::relative_error;
use tests::terminal::Terminal;
use tests::tiny_model::TinyModel;
use unicorn_artifact::{ArtifactView, ArtifactWriter, MappedFile, Pipeline, TargetKernels};
use unicorn_runtime::{BatchRow, Choice, Effort, LoadOptions, Model, RunError, Sampling, StepShape, TuneError, Tuning};
use unicorn_spirv::{Target, target};

/// Only the order of sums differs; with integer activations a code may move to its neighbour for that.
const SAME_TOLERANCE: f64 = 1e-3;
const INTEGER_TOLERANCE: f64 = 3e-2;
/// Enough mixes for every alternative of kernels with two, and for most of the others.
const MIXES: u32 = 3;

const ONE: StepShape = StepShape { rows: 1, batch: false, from_tokens: 0 };

#[test]
fn any_mix_of_alternatives_of_rdna3_computes_the_same() {
    any_mix_computes_the_same("rdna3", INTEGER_TOLERANCE);
}

#[test]
fn any_mix_of_alternatives_of_generic_computes_the_same() {
    any_mix_computes_the_same("generic", SAME_TOLERANCE);
}

/// The differential tests compare each by itself with its twin; here a program is of any mix of them.
fn any_mix_computes_the_same(target: &str, tolerance: f64) {
    let (_folder, path) = artifact();
    let model = load(&path, target, None);
    let (expected, key) = (logits(&model), model.report().tuning.key);
    let kernels = kernels(&path, target);
    let most = kernels.pipelines.iter().map(|pipeline| pipeline.alternatives.len()).max();
    assert!(most >= Some(3), "{target} has {most:?} alternatives");
    let mixes = (0..MIXES).map(|mix| {
        let winner = |number: u32| {
            let ways = kernels.pipelines[number as usize].alternatives.len() as u32 + 1;
            Some((number, ((number + mix) % ways).checked_sub(1)?))
        };
        let winners: BTreeMap<u32, u32> = (0..kernels.pipelines.len() as u32).filter_map(winner).collect();
        let choice = |shape| Choice { version: u32::from(shape == ONE) * (mix % 2), winners: winners.clone() };
        shapes(&kernels).into_iter().map(|shape| (shape, choice(shape))).collect()
    });
    for choices in mixes {
        let choices: BTreeMap<StepShape, Choice> = choices;
        let (what, steps) = (format!("{target}, {:?}", choices.values().next()), choices.len() as u32);
        let tuned = load(&path, target, Some(Tuning { key, choices }));
        assert_eq!((tuned.report().tuning.note.as_ref(), tuned.report().tuning.tuned_steps), (None, steps));
        let found = logits(&tuned);
        assert_eq!(found.len(), expected.len());
        for (expected, found) in expected.iter().zip(&found) {
            let error = relative_error(expected, found);
            assert!(error <= tolerance, "{what}: {error:.1e}");
        }
    }
}

#[test]
fn candidates_are_timed_each() {
    let (_folder, path) = artifact();
    let options = load_options("generic", None).with(|options| options.candidates = true);
    let model = Model::load(&path, &options).unwrap_or_else(|error| panic!("{error}"));
    let kernels = kernels(&path, "generic");
    let tunable = model.tunable(40);
    let batch = |rows| StepShape { rows, batch: true, from_tokens: 0 };
    // Four sequences of 128 tokens permit no more.
    let prefill = |rows| StepShape { rows, batch: false, from_tokens: 0 };
    let expected = [(ONE, 2), (batch(2), 1), (batch(4), 1), (prefill(8), 1), (prefill(64), 1)];
    assert_eq!(tunable.iter().copied().collect::<BTreeMap<_, _>>(), BTreeMap::from(expected));
    let effort = Effort { rounds: 1, steps: 2, depth_tokens: 40, max_time: None };
    let norms = |pipeline: &Pipeline| pipeline.name == "norm";
    for (shape, versions) in tunable {
        for version in 0..versions {
            let mut turns = Vec::new();
            let mut turn = |done, all| {
                turns.push((done, all));
                ControlFlow::Continue(())
            };
            let timed = model
                .time_kernels(shape, version, effort, |one| shape == ONE || norms(one), &mut turn)
                .expect("the steps run");
            assert!(!timed.is_empty() && turns.last().is_some_and(|(done, all)| done == all), "{turns:?}");
            for pipeline in timed {
                let alternatives = &kernels.pipelines[pipeline.pipeline as usize].alternatives;
                assert_eq!(pipeline.candidates.len(), 1 + alternatives.len());
                assert!(pipeline.candidates.iter().all(|candidate| candidate.seconds > 0.0), "{pipeline:?}");
                assert!(shape == ONE || pipeline.candidates[0].name == "norm", "{pipeline:?}");
            }
        }
    }
    let choices = [Choice::default(), Choice { version: 1, ..Choice::default() }];
    let whole = model.time_steps(ONE, &choices, effort, &mut |_, _| ControlFlow::Continue(())).expect("the steps run");
    assert!(whole.len() == 2 && whole.iter().all(|&seconds| seconds > 0.0), "{whole:?}");
    // Without time, the first of many rounds is completed and no other begins.
    let hurried = Effort { rounds: 1000, max_time: Some(Duration::ZERO), ..effort };
    let mut rounds = 0;
    let mut count = |done, _| {
        rounds = done;
        ControlFlow::Continue(())
    };
    model.time_steps(ONE, &choices, hurried, &mut count).expect("the steps run");
    assert_eq!(rounds, choices.len() as u32);
    let ended = model.time_steps(ONE, &choices, effort, &mut |_, _| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(ended, TuneError::Run(RunError::Cancelled)), "{ended}");
    assert_eq!(logits(&model), logits(&load(&path, "generic", None)), "timing leaves the model as it was");
}

#[test]
fn winners_lie_beside_the_artifact_and_are_used_by_it_alone() {
    let (folder, path) = artifact();
    let arguments =
        ["-r", "1", "-n", "2", "-s", "2", "--depth", "20", "--target", "generic", "--only", "norm", "--json"];
    let tuned = run(Command::args(&mut run_command("tune", &path), arguments));
    let json: Value = serde_json::from_slice(&tuned.stdout).expect("it prints JSON");
    assert_eq!(json["target"], "generic");
    let measured = json["measured"].as_array().expect("steps");
    let names: Vec<&str> = measured.iter().filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(names, ["decode", "decode of 2 sequences", "prefill of 8 tokens", "prefill of 64 tokens"]);
    assert!(measured.iter().all(|step| step["versions"][0]["kernels"].as_array().is_some_and(|all| !all.is_empty())));
    let file = folder.path().join("model.unicorn.tune.json");
    assert!(file.is_file());

    let complaint = |target: &str| {
        let arguments = ["-p", "0", "-n", "1", "-r", "1", "--depth", "0", "--target", target];
        String::from_utf8_lossy(&run(Command::args(&mut run_command("bench", &path), arguments)).stderr).into_owned()
    };
    assert!(!complaint("generic").contains("tuning"));
    // Another target is another's.
    let of_another = complaint("rdna3");
    assert!(of_another.contains("tuning is not used") && of_another.contains("another artifact"), "{of_another}");
    let text = std::fs::read(&file).expect("it was just written");
    std::fs::write(&file, &text[..text.len() / 2]).expect("it can be written");
    assert!(complaint("generic").contains("tuning is not used"));
}

#[test]
fn a_report_has_the_time_of_each_kernel_and_each_step() {
    let (_folder, path) = artifact();
    let arguments = ["--quick", "-r", "1", "-n", "1", "--depth", "20", "--target", "generic", "--only", "combine"];
    let tuned = run(Command::args(&mut run_command("tune", &path), arguments));
    let page = String::from_utf8_lossy(&tuned.stdout);
    for part in ["decode\n", "prefill of 64 tokens\n", "before", "whole step: ", "written to"] {
        assert!(page.contains(part), "{part:?} is missing in {page}");
    }
    assert!(page.contains("combine") && !page.contains("8 tokens") && !page.contains("attention"), "{page}");
}

/// A terminal of 80 columns has room for it.
#[test]
fn a_tuning_shows_the_time_that_is_left() {
    let (_folder, path) = artifact();
    let mut tune = run_command("tune", &path);
    tune.args(["--quick", "-r", "40", "-n", "4", "--depth", "20", "--target", "generic", "--only", "combine"]);
    let mut terminal = Terminal::start(tune.env_remove("NO_COLOR"), NonZeroU16::new(80).expect("80"));
    let screen = terminal.wait_until("the time left", |screen| screen.contains(" left, decode"));
    let bar = screen.lines().find(|line| line.contains(" left, ")).expect("it is there");
    assert!(bar.starts_with("tuning ") && bar.contains(" %, about "), "{bar}");
    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
}

#[test]
fn without_alternatives_the_command_that_adds_them_is_named() {
    let (folder, path) = artifact_with(false);
    let tuned =
        run_command("tune", &path).args(["--quick", "--target", "generic"]).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&tuned.stderr);
    assert!(!tuned.status.success() && !folder.path().join("model.unicorn.tune.json").exists());
    let command = format!("unicorn-compile retarget {} --alternatives -o model.tunable.unicorn", path.display());
    assert!(stderr.contains(&command), "{stderr}");
}

#[test]
fn an_interrupted_tuning_keeps_what_was_measured() {
    let (folder, path) = artifact();
    let file = folder.path().join("model.unicorn.tune.json");
    // Enough rounds that it still runs when the first kind of step is done.
    let arguments = ["-r", "60", "-n", "1", "--depth", "20", "--target", "generic", "--json"];
    let mut tuning = Watched::start(run_command("tune", &path).args(arguments));
    let begin = Instant::now();
    while !file.is_file() {
        assert!(begin.elapsed() < Duration::from_secs(240), "nothing was measured");
        assert_eq!(tuning.child.try_wait().expect("it was started"), None, "it ended before it could be interrupted");
        std::thread::sleep(Duration::from_millis(10));
    }
    send_signal(&tuning.child, Signal::INT);
    let json: Value = serde_json::from_str(&tuning.stdout_line()).expect("it prints what was measured");
    let notes: String = std::iter::from_fn(|| Some(tuning.stderr_line()).filter(|line| !line.is_empty())).collect();
    assert!(notes.contains("interrupted: ") && notes.contains("winners are kept"), "{notes}");
    let status = tuning.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "{notes}");
    assert_eq!(json["interrupted"], true);
    let measured = json["measured"].as_array().expect("steps").len();
    assert!((1..7).contains(&measured), "{measured} kinds of steps");
    let bench = run_command("bench", &path).args(["-p", "0", "-n", "1", "-r", "1", "--target", "generic"]).output();
    let bench = bench.expect("the program starts");
    let stderr = String::from_utf8_lossy(&bench.stderr);
    assert!(bench.status.success() && !stderr.contains("tuning"), "{stderr}");
}

#[test]
fn alternatives_that_do_not_fit_are_refused() {
    let (folder, path) = artifact();
    let file = MappedFile::open(&path).expect("the artifact is there");
    let view = ArtifactView::parse(file.bytes()).expect("the artifact is sound");
    let refused = |change: &dyn Fn(&mut TargetKernels)| {
        let mut kernels = view.kernels.clone();
        change(&mut kernels.targets[0]);
        let changed = folder.path().join("changed.unicorn");
        let mut writer = ArtifactWriter::create(&changed, view.weights().len()).expect("the folder takes files");
        for section in view.weights() {
            writer.begin_slice().expect("room");
            writer.weight_bytes(section.bytes).expect("room");
        }
        let written = writer.finish(&view.meta, &view.plan, &kernels, &view.tokenizer);
        written.expect_err("it is parsed before it is put into place").to_string()
    };
    let with_alternatives = |target: &mut TargetKernels| {
        let number = target.pipelines.iter().position(|pipeline| !pipeline.alternatives.is_empty());
        number.expect("a matmul has alternatives")
    };
    let no_module = refused(&|target| {
        let number = with_alternatives(target);
        target.pipelines[number].alternatives[0].module = u32::MAX;
    });
    assert!(no_module.contains("module of a pipeline"), "{no_module}");
    let one_less = refused(&|target| {
        let number = with_alternatives(target);
        target.pipelines[number].alternatives.pop();
    });
    assert!(one_less.contains("alternatives of dispatch"), "{one_less}");
    let no_workgroups = refused(&|target| {
        let dispatches = target.programs.iter_mut().flat_map(|program| &mut program.dispatches);
        dispatches.flat_map(|dispatch| &mut dispatch.alternatives).for_each(|workgroups| workgroups[1] = 0);
    });
    assert!(no_workgroups.contains("workgroups of dispatch"), "{no_workgroups}");
}

/// A tiny model's artifact for any device with the subgroups of the one at hand, with integer activations and without;
/// wide enough for several tilings of its matrices.
fn artifact() -> (TempDir, PathBuf) {
    artifact_with(true)
}

fn artifact_with(alternatives: bool) -> (TempDir, PathBuf) {
    let model =
        TinyModel { hidden: 256, intermediate: 512, layers: 1, max_position_embeddings: 128, ..Default::default() };
    let options = with(options(targets().to_vec(), vec![]), |options| options.alternatives = alternatives);
    let compiled = Compiled::of(&model, &options);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, compiled.artifact()).expect("the folder takes files");
    (folder, path)
}

fn targets() -> [Target; 2] {
    ["rdna3", "generic"].map(|name| {
        let preset = target::by_name(name).expect("a preset");
        let subgroup_size = if preset.integer_dot { device().subgroup_size } else { preset.subgroup_size };
        let mut target = preset.for_any_device(subgroup_size);
        target.matrix = target.matrix.and(device_matrices());
        target
    })
}

fn kernels(path: &Path, target: &str) -> TargetKernels {
    let file = MappedFile::open(path).expect("the artifact is there");
    let view = ArtifactView::parse(file.bytes()).expect("the artifact is sound");
    view.kernels.targets.into_iter().find(|one| one.name == target).expect("it was compiled for it")
}

fn load_options(target: &str, tuning: Option<Tuning>) -> LoadOptions {
    let Ok(device) = device().name.parse();
    LoadOptions::default().with(|options| {
        options.device = device;
        options.target = Some(target.into());
        options.tuning = tuning;
        options.slots = 4;
    })
}

fn load(path: &Path, target: &str, tuning: Option<Tuning>) -> Model {
    Model::load(path, &load_options(target, tuning)).unwrap_or_else(|error| panic!("{error}"))
}

/// Logits of steps of one row, of a few, of many, and (the largest of each) of several sequences.
fn logits(model: &Model) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..70).map(|index| 60 + index).collect();
    let mut all: Vec<Vec<f32>> =
        [(1, 4), (8, 20), (64, 70)].map(|(rows, count)| fed(model, &tokens[..count], rows)).into();
    let sampling = Sampling::default();
    let mut sessions: Vec<_> = (0..4).map(|_| model.session().expect("a free slot")).collect();
    let requested = sessions.iter_mut().zip(&tokens);
    let rows = requested.map(|(session, &token)| BatchRow { session, token, sampling: &sampling });
    all.push(model.decode_batch(rows).expect("the step runs").iter().map(|sampled| sampled.logit).collect());
    all
}

/// Logits of every token, fed in steps of at most `rows` rows.
fn fed(model: &Model, tokens: &[u32], rows: u32) -> Vec<f32> {
    let mut session = model.session().expect("a free slot");
    session.set_chunk_tokens(rows);
    let mut all = Vec::new();
    session.feed_with_logits(tokens, &mut |_, row| all.extend_from_slice(row)).expect("the steps run");
    all
}

/// Every shape of the target's steps.
fn shapes(target: &TargetKernels) -> BTreeSet<StepShape> {
    let shape = |rows, batch, from_tokens| StepShape { rows, batch: batch && rows > 1, from_tokens };
    target.programs.iter().map(|program| shape(program.rows, program.batch, program.from_tokens)).collect()
}

fn run_command(command: &str, path: &Path) -> Command {
    let mut run = program("unicorn-run");
    run.arg(command).arg(path).arg("--device").arg(device().name);
    run
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}
