//! `replan`: another plan for the same weights, in place of the old one or not at all.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;
use tests::compiled::{Compiled, options};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::header::{Section, SectionKind, decode_header};
use unicorn_artifact::{ArtifactView, Tier};
use unicorn_spirv::target;

struct Artifact {
    folder: TempDir,
}

impl Artifact {
    /// An artifact of two slices: an embedding for slow memory and layers for fast memory.
    fn new() -> Artifact {
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        let bytes = BYTES.get_or_init(|| {
            let shape =
                TinyModel { vocab_size: 17_500, hidden: 1024, intermediate: 64, layers: 1, ..Default::default() };
            let targets = vec![target::by_name("llvmpipe").unwrap(), target::by_name("generic").unwrap()];
            Compiled::of(&TinyModel { family: Family::Llama, ..shape }, &options(targets, Vec::new())).artifact()
        });
        let artifact = Artifact { folder: tempfile::tempdir().unwrap() };
        std::fs::write(artifact.path(), bytes).unwrap();
        artifact
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model.unicorn")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }
}

fn replan(program_name: &str, artifact: &Path, arguments: &[&str]) -> Output {
    program(program_name).arg("replan").arg(artifact).args(arguments).output().unwrap()
}

fn weight_sections(bytes: &[u8]) -> Vec<Section> {
    let sections = decode_header(bytes).unwrap();
    sections.into_iter().filter(|section| section.kind == SectionKind::Weights as u32).collect()
}

#[test]
fn tiers_change_and_weights_do_not() {
    let artifact = Artifact::new();
    let before = artifact.bytes();
    let old = ArtifactView::parse(&before).unwrap();
    let tiers = |view: &ArtifactView| view.plan.slices.iter().map(|slice| slice.tier).collect::<Vec<_>>();
    assert_eq!(tiers(&old), [Tier::Vram, Tier::Gtt]);

    let output = replan("unicorn-compile", &artifact.path(), &["--budget", "vram=1MiB,gtt=2GiB", "--context", "64"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains(" of 1.00 MiB") && stdout.contains(" of 2.00 GiB"), "{stdout}");
    let after = artifact.bytes();
    let new = ArtifactView::parse(&after).unwrap();
    assert_eq!(tiers(&new), [Tier::Gtt, Tier::Gtt]);
    assert!(new.plan.weights.iter().all(|weight| weight.slice == 1 || weight.reason.ends_with("; no room in vram")));
    assert_eq!((new.plan.planned_context_tokens, new.plan.machine.name.as_str()), (64, "generic"));
    assert_eq!((&new.meta, &new.kernels, &new.tokenizer), (&old.meta, &old.kernels, &old.tokenizer));
    assert_eq!(weight_sections(&after), weight_sections(&before));
    new.weights().iter().for_each(|section| section.verify().unwrap());
    assert_eq!(artifact.files(), 1);

    // And back, by the other program, through a link that stays one.
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link.unicorn");
    std::os::unix::fs::symlink(artifact.path(), &link).unwrap();
    std::fs::set_permissions(artifact.path(), Permissions::from_mode(0o600)).unwrap();
    let output = replan("unicorn-run", &link, &["--machine", "generic", "--context", "512", "--quiet"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(artifact.bytes(), before);
    assert!(link.is_symlink());
    assert_eq!(std::fs::metadata(artifact.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

/// The tokens do not depend on where the weights are placed.
#[test]
fn a_replanned_artifact_runs() {
    let artifact = Artifact::new();
    let tokens = || {
        let mut run = program("unicorn-run");
        run.arg(artifact.path()).args(["-p", "abc", "-n", "8", "--temp", "0", "--json", "--device"]);
        let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
        let output = run.arg(device).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["text"].clone()
    };
    let before = tokens();
    let output = replan("unicorn-compile", &artifact.path(), &["--budget", "vram=1MiB,gtt=2GiB", "--context", "64"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(tokens(), before);
}

#[test]
fn what_cannot_be_done_leaves_the_artifact_as_it_was() {
    let artifact = Artifact::new();
    let before = artifact.bytes();
    let refused = |arguments: &[&str], expected: &str| {
        let output = replan("unicorn-compile", &artifact.path(), arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
        assert!(artifact.bytes() == before && artifact.files() == 1);
    };
    refused(&["--budget", "vram=1MiB,gtt=130MiB"], "artifact does not fit generic: weights ");
    refused(&["--budget", "npu=1MiB"], "machine generic has no npu to budget");
    refused(&["--context", "9999999"], "context is 9999999 tokens, expected 1 to 512");
    refused(&["--machine", "toaster"], "machine toaster is unknown");

    // A limit on file sizes stands in for a full disk.
    let compiler = program("unicorn-compile").get_program().to_owned();
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]).arg(compiler).arg("replan");
    let output = limited.arg(artifact.path()).args(["--budget", "vram=1MiB,gtt=2GiB"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("File too large"));
    assert!(artifact.bytes() == before && artifact.files() == 1);
}

#[test]
fn no_compiler_needs_to_be_there() {
    let artifact = Artifact::new();
    let alone = tempfile::tempdir().unwrap();
    let runner = alone.path().join("unicorn-run");
    std::fs::copy(program("unicorn-run").get_program(), &runner).unwrap();
    let mut replan = Command::new(runner);
    let output = replan.arg("replan").arg(artifact.path()).args(["--context", "64"]).env("PATH", "").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A device with another split of memory than the plan's: the refusal names a command that makes a new plan, and that fits.
#[test]
fn the_remedy_that_a_refusal_names_works() {
    let artifact = Artifact::new();
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let run = || {
        let mut run = program("unicorn-run");
        run.arg(artifact.path()).args(["-p", "a", "-n", "2", "-c", "64", "--device", &device]);
        run.args(["--budget", "vram=8MiB,gtt=400MiB"]).output().unwrap()
    };
    let refused = run();
    let complaint = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{complaint}");
    assert!(complaint.starts_with("error: model does not fit "), "before anything else: {complaint}");
    assert!(
        complaint.contains("; available 8.00 MiB by the caller's budget; ") && complaint.contains(" missing\n"),
        "{complaint}"
    );
    assert!(complaint.contains("no shorter context fits"), "{complaint}");

    let line = complaint.lines().find_map(|line| line.split_once("a new plan: unicorn-run ")).expect("a line to run").1;
    assert!(line.ends_with("--budget vram=8MiB,gtt=400MiB --context 64"), "{line}");
    let replanned = program("unicorn-run").args(line.split(' ')).output().unwrap();
    assert!(replanned.status.success(), "{}", String::from_utf8_lossy(&replanned.stderr));
    let loaded = run();
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
}
