//! `retarget`: kernels for more targets, as if the model had been compiled for them from the start, or nothing at all.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tests::compiled::{Compiled, Silent, options, with};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::rewrite::{self, NewKernels};
use unicorn_artifact::{ArtifactView, Budget, MappedFile};
use unicorn_compiler::{Machine, NpuOptions, NpuWork, ReplanOptions, replan};
use unicorn_spirv::{Target, target};

/// Llama with an embedding for slow memory and layers for fast memory, or a Gemma with every kind of layer.
fn artifact_of(family: Family, targets: &[&str]) -> (TempDir, PathBuf) {
    artifact_with(family, targets, true)
}

fn artifact_with(family: Family, targets: &[&str], alternatives: bool) -> (TempDir, PathBuf) {
    let model = match family {
        Family::Llama => {
            TinyModel { vocab_size: 17_500, hidden: 1024, intermediate: 64, layers: 1, ..Default::default() }
        }
        family => TinyModel { family, layers: 2, sliding_window: Some(64), ..Default::default() },
    };
    let targets: Vec<Target> = targets.iter().map(|name| target::by_name(name).expect("a preset")).collect();
    let options = with(options(targets, Vec::new()), |options| options.alternatives = alternatives);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, Compiled::of(&model, &options).artifact()).unwrap();
    (folder, path)
}

fn retarget(path: &Path, arguments: &[&str]) -> (bool, String, String) {
    let output = program("unicorn-compile").arg("retarget").arg(path).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn bytes_are_those_of_a_compile_for_all_targets() {
    for family in [Family::Llama, Family::Gemma3] {
        let (_kept, path) = artifact_of(family, &["generic", "llvmpipe"]);
        let (_kept_too, all) = artifact_of(family, &["rdna3", "gcn", "generic", "llvmpipe"]);
        let before = std::fs::read(&path).unwrap();
        let output = path.with_file_name("all.unicorn");
        let arguments = ["--target", "gcn", "--target", "rdna3", "-o"];
        let (succeeds, stdout, stderr) = retarget(&path, &[&arguments[..], &[output.to_str().unwrap()]].concat());
        assert!(succeeds, "{stderr}");
        assert!(stdout.contains("rdna3, gcn, llvmpipe, generic\n  new       rdna3, gcn\n"), "{stdout}");
        assert!(std::fs::read(&output).unwrap() == std::fs::read(&all).unwrap(), "{family:?}");
        assert!(std::fs::read(&path).unwrap() == before);
        // And in place, one after the other.
        assert!(retarget(&path, &["--target", "rdna3"]).0 && retarget(&path, &["--target", "gcn", "--quiet"]).0);
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&all).unwrap(), "{family:?}");
    }
}

#[test]
fn alternatives_are_those_of_a_compile_with_them() {
    let targets = ["rdna3", "generic", "llvmpipe"];
    let (_kept, path) = artifact_with(Family::Gemma3, &targets, false);
    let (_kept_too, all) = artifact_with(Family::Gemma3, &targets, true);
    let (before, expected) = (std::fs::read(&path).unwrap(), std::fs::read(&all).unwrap());
    assert!(before.len() < expected.len());
    let (succeeds, _, stderr) = retarget(&path, &["--alternatives"]);
    assert!(succeeds, "{stderr}");
    assert!(std::fs::read(&path).unwrap() == expected);
    // They stay when targets are added.
    assert!(retarget(&path, &["--target", "gcn"]).0);
    let (_kept, with_gcn) = artifact_of(Family::Gemma3, &["rdna3", "gcn", "generic", "llvmpipe"]);
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&with_gcn).unwrap());
}

/// What an earlier compiler made of the same model: other kernels for the same weights.
#[test]
fn upgrade_makes_everything_but_weights_again() {
    let (_kept, path) = artifact_of(Family::Gemma3, &["generic", "llvmpipe"]);
    let today = std::fs::read(&path).unwrap();
    let view = ArtifactView::parse(&today).unwrap();
    let (mut meta, mut kernels) = (view.meta.clone(), view.kernels.clone());
    meta.provenance.compiler_version = "0.0.9".into();
    for target in &mut kernels.targets {
        target.pipelines[0].name = "older".into();
        target.programs.iter_mut().for_each(|program| program.dispatches[0].label = "older".into());
    }
    let new = NewKernels { meta: &meta, plan: &view.plan, kernels: &kernels, npu: None };
    rewrite::rewrite(&path, &path, &new.into(), |_| ()).unwrap();
    assert!(std::fs::read(&path).unwrap() != today);
    let upgraded = program("unicorn-compile").arg("upgrade").arg(&path).output().unwrap();
    assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
    assert!(std::fs::read(&path).unwrap() == today);
}

/// Steps in which an NPU takes part are made for new targets, too; they are refused where this version has another layout of the
/// NPU's weights.
#[test]
fn an_npus_steps_are_those_of_a_compile_for_all_targets() {
    let compiled = |targets: &[&str]| {
        let targets = targets.iter().map(|name| target::by_name(name).expect("a preset")).collect();
        let options = with(options(targets, Vec::new()), |options| {
            let work = Some(vec![NpuWork::Qkv, NpuWork::Ffn]);
            options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (64, work)));
        });
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/llama3-rope");
        Compiled::of_folder(&model, &options).artifact()
    };
    let (one, both) = (compiled(&["generic"]), compiled(&["rdna3", "generic"]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, &one).unwrap();
    let (succeeds, _, stderr) = retarget(&path, &["--target", "rdna3"]);
    assert!(succeeds, "{stderr}");
    let found = std::fs::read(&path).unwrap();
    let steps = |bytes: &[u8]| ArtifactView::parse(bytes).unwrap().npu.unwrap().steps;
    let names: Vec<String> = steps(&found).iter().map(|steps| steps.kernels.name.clone()).collect();
    assert_eq!(names, ["rdna3", "generic"]);
    assert!(steps(&found).iter().all(|steps| steps.commands.iter().any(|commands| !commands.is_empty())));
    assert!(found == both, "other bytes than those of a compile");

    // Weights of a version that did not record their layout.
    let view = ArtifactView::parse(&one).unwrap();
    let mut meta = view.meta.clone();
    meta.provenance.options.retain(|(name, _)| name != "npu-layout");
    let new = NewKernels { meta: &meta, plan: &view.plan, kernels: &view.kernels, npu: None };
    std::fs::write(&path, &one).unwrap();
    rewrite::rewrite(&path, &path, &new.into(), |_| ()).unwrap();
    let (succeeds, _, stderr) = retarget(&path, &["--target", "rdna3"]);
    let next = format!("unicorn-compile replan {} --no-npu", path.display());
    assert!(!succeeds && stderr.contains(&next), "{stderr}");
}

#[test]
fn a_plan_for_another_machine_is_kept() {
    let (_kept, path) = artifact_of(Family::Llama, &["generic"]);
    let (_kept_too, all) = artifact_of(Family::Llama, &["rdna3", "generic"]);
    let mut small = ReplanOptions::default();
    small.machine = Some(Machine::named("generic").unwrap());
    small.budget = "vram=1MiB,gtt=2GiB".parse::<Budget>().unwrap();
    small.context_tokens = Some(64);
    for path in [&path, &all] {
        replan(path, &small, &mut Silent).unwrap();
    }
    let (succeeds, _, stderr) = retarget(&path, &["--target", "rdna3"]);
    assert!(succeeds, "{stderr}");
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&all).unwrap());
}

#[test]
fn what_cannot_be_done_leaves_the_artifact_as_it_was() {
    let (folder, path) = artifact_of(Family::Gemma3, &["generic"]);
    let before = std::fs::read(&path).unwrap();
    let refused = |arguments: &[&str], expected: &str| {
        let (succeeds, _, stderr) = retarget(&path, arguments);
        assert!(!succeeds && stderr.contains(expected), "{stderr}");
        assert!(std::fs::read(&path).unwrap() == before);
    };
    refused(&["--target", "toaster"], "toaster");
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "a text").unwrap();
    refused(&["--target", "rdna3", "-o", text.to_str().unwrap()], "--force");
    assert!(!retarget(&text, &["--target", "rdna3"]).0);
    std::fs::remove_file(&text).unwrap();

    // A limit on file sizes stands in for a full disk.
    let compiler = program("unicorn-compile").get_program().to_owned();
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]).arg(compiler).arg("retarget");
    let output = limited.arg(&path).args(["--target", "rdna3"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("File too large"));
    assert!(std::fs::read(&path).unwrap() == before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The record of the model's numbers is refused where it is of no model, or of another one.
#[test]
fn numbers_that_are_of_no_model_or_another_are_refused() {
    let (_kept, path) = artifact_of(Family::Gemma3, &["generic"]);
    let change = |change: &dyn Fn(&mut Vec<u8>)| {
        let file = MappedFile::open(&path).unwrap();
        let view = ArtifactView::parse(file.bytes()).unwrap();
        let mut meta = view.meta.clone();
        change(&mut meta.provenance.config);
        let changed = path.with_file_name("changed.unicorn");
        let new = NewKernels { meta: &meta, plan: &view.plan, kernels: &view.kernels, npu: None };
        rewrite::rewrite(&path, &changed, &new.into(), |_| ()).unwrap();
        let (succeeds, _, stderr) = retarget(&changed, &["--target", "rdna3"]);
        assert!(!succeeds, "{stderr}");
        stderr
    };
    assert!(change(&|config| config.clear()).contains("config"));
    // No version ended in the middle.
    assert!(change(&|config| config.truncate(config.len() / 2)).contains("config"));
    // The hidden size follows the architecture's name, which follows its length.
    let hidden_at = |config: &[u8]| 8 + u64::from_le_bytes(config[..8].try_into().unwrap()) as usize;
    let error = change(&|config| {
        let at = hidden_at(config);
        config[at..at + 8].fill(0xff);
    });
    assert!(error.contains("hidden size is "), "{error}");
    let error = change(&|config| {
        let at = hidden_at(config);
        let hidden = u64::from_le_bytes(config[at..at + 8].try_into().unwrap());
        config[at..at + 8].copy_from_slice(&(2 * hidden).to_le_bytes());
    });
    assert!(error.contains("compile the model again"), "{error}");
}
