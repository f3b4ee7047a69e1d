//! `unicorn-run tune`: every alternative computes what the compiler's choice computes, and winners are used by later starts
//! and by nobody else's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use artifacts::{ArtifactView, ArtifactWriter, MappedFile, TargetKernels};
use runtime::{LoadOptions, Model, Tuning};
use serde_json::Value;
use shaders_gen::{Target, target};
use tempfile::TempDir;
use tests::compiled::{Compiled, options};
use tests::launch::device;
use tests::programs::program;
use tests::reference::relative_error;
use tests::tiny_model::TinyModel;

/// Only the order of sums differs; with integer activations a code may move to its neighbour for that.
const SAME_TOLERANCE: f64 = 1e-3;
const INTEGER_TOLERANCE: f64 = 3e-2;

#[test]
fn every_alternative_computes_the_same() {
    let (_folder, path) = artifact();
    for (target, tolerance) in [("phoenix", INTEGER_TOLERANCE), ("generic", SAME_TOLERANCE)] {
        let model = load(&path, target, None);
        let (expected, key) = (logits(&model), model.report().tuning.key);
        let kernels = kernels(&path, target);
        let most = kernels.pipelines.iter().map(|pipeline| pipeline.alternatives.len()).max();
        assert!(most >= Some(3), "{target} has {most:?} alternatives");
        for alternative in 0..most.unwrap_or_default() {
            let holds = |number: &u32| kernels.pipelines[*number as usize].alternatives.len() > alternative;
            let numbers = (0..kernels.pipelines.len() as u32).filter(holds);
            let winners = numbers.map(|number| (number, alternative as u32)).collect();
            let tuned = load(&path, target, Some(Tuning { key, winners }));
            assert_eq!(tuned.report().tuning.note, None);
            assert!(tuned.report().tuning.winners > 0);
            let error = relative_error(&expected, &logits(&tuned));
            assert!(error <= tolerance, "{target}, alternative {alternative}: {error:.1e}");
        }
    }
}

#[test]
fn candidates_are_timed_each() {
    let (_folder, path) = artifact();
    let options = LoadOptions { candidates: true, ..load_options("generic", None) };
    let model = Model::load(&path, &options, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
    let kernels = kernels(&path, "generic");
    // A second time gives a second answer: nothing was used up.
    for _ in 0..2 {
        let timed = model.time_candidates(1, 2).expect("the steps run");
        assert!(!timed.is_empty());
        for pipeline in timed {
            let alternatives = &kernels.pipelines[pipeline.pipeline as usize].alternatives;
            assert_eq!(pipeline.candidates.len(), 1 + alternatives.len());
            assert!(pipeline.candidates.iter().all(|candidate| candidate.seconds > 0.0), "{pipeline:?}");
        }
    }
    assert_eq!(logits(&model), logits(&load(&path, "generic", None)), "timing leaves the model as it was");
}

#[test]
fn winners_lie_beside_the_artifact_and_are_used_by_it_alone() {
    let (folder, path) = artifact();
    let tuned =
        run(Command::args(&mut run_command("tune", &path), ["-r", "1", "-n", "2", "--target", "generic", "--json"]));
    let json: Value = serde_json::from_slice(&tuned.stdout).expect("it prints JSON");
    assert_eq!(json["target"], "generic");
    assert!(json["pipelines"].as_array().is_some_and(|pipelines| !pipelines.is_empty()), "{json}");
    let file = folder.path().join("model.unicorn.tune.json");
    assert!(file.is_file());

    let complaint = |target: &str| {
        let arguments = ["-p", "0", "-n", "1", "-r", "1", "--depth", "0", "--target", target];
        String::from_utf8_lossy(&run(Command::args(&mut run_command("bench", &path), arguments)).stderr).into_owned()
    };
    assert!(!complaint("generic").contains("tuning"));
    // Another target is another's.
    let of_another = complaint("phoenix");
    assert!(of_another.contains("tuning is not used") && of_another.contains("another artifact"), "{of_another}");
    let text = std::fs::read_to_string(&file).expect("it was just written");
    std::fs::write(&file, &text[..text.len() / 2]).expect("it can be written");
    assert!(complaint("generic").contains("tuning is not used"));
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
/// wide enough for several ways to cut its matrices.
fn artifact() -> (TempDir, PathBuf) {
    let model =
        TinyModel { hidden: 256, intermediate: 512, layers: 1, max_position_embeddings: 128, ..Default::default() };
    let compiled = Compiled::of(&model, &options(targets().to_vec(), vec![]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, compiled.artifact()).expect("the folder takes files");
    (folder, path)
}

fn targets() -> [Target; 2] {
    ["phoenix", "generic"].map(|name| {
        let preset = target::by_name(name).expect("a preset");
        let subgroup_size = if preset.integer_dot { device().subgroup_size } else { preset.subgroup_size };
        let mut target = preset.for_any_device(subgroup_size);
        target.matrix = None;
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
    LoadOptions { device, target: Some(target.into()), tuning, ..LoadOptions::default() }
}

fn load(path: &Path, target: &str, tuning: Option<Tuning>) -> Model {
    Model::load(path, &load_options(target, tuning), &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"))
}

/// Of a few tokens, one step each.
fn logits(model: &Model) -> Vec<f32> {
    let mut session = model.session().expect("a free slot");
    session.set_chunk_tokens(1);
    let mut all = Vec::new();
    session.feed_with_logits(&[1, 65, 66, 67], &mut |_, row| all.extend_from_slice(row)).expect("the steps run");
    all
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
