//! Places that cannot be written to or that the model itself has, disks that run full, and compiles that are interrupted.

use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tests::programs::{program, send_signal};
use tests::skip;
use tests::tiny_model::TinyModel;

use crate::refusal::{assert_refused, compile_command};

fn sound_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::default().write(folder.path());
    folder
}

#[test]
fn a_folder_that_does_not_exist() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let output = out.path().join("missing/model.unicorn");
    assert_refused(&mut compile_command(model.path(), &output), out.path(), &["missing/model.unicorn"]);
}

#[test]
fn a_name_that_a_folder_has() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let output = out.path().join("model.unicorn");
    std::fs::create_dir(&output).unwrap();
    assert_refused(&mut compile_command(model.path(), &output), out.path(), &["model.unicorn", "not a regular file"]);
}

/// A rename would replace a device or a pipe.
#[test]
fn a_name_that_a_pipe_has() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let output = out.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&output).status().unwrap().success());
    assert_refused(&mut compile_command(model.path(), &output), out.path(), &["pipe", "not a regular file"]);
}

/// The model that is compiled must not be replaced, by whatever path the output names it.
#[test]
fn a_name_that_the_model_has() {
    let model = sound_folder();
    for output in ["model.safetensors", "config.json", "tokenizer.json", "../LINK/model.safetensors"] {
        let link = model.path().with_extension("link");
        std::os::unix::fs::symlink(model.path(), &link).unwrap();
        let output = model.path().join(output.replace("LINK", &link.file_name().unwrap().to_string_lossy()));
        assert_refused(&mut compile_command(model.path(), &output), model.path(), &["belongs to the model"]);
        std::fs::remove_file(link).unwrap();
    }
    let mut plan = compile_command(model.path(), &model.path().join("config.json"));
    assert_refused(plan.arg("--plan-only"), model.path(), &["config.json", "belongs to the model"]);
}

#[test]
fn a_name_that_the_config_of_synthetic_weights_has() {
    let model = sound_folder();
    let config = model.path().join("config.json");
    let mut compile = program("unicorn-compile");
    compile.arg("--synthetic").arg(&config).arg("-o").arg(&config);
    assert_refused(&mut compile, model.path(), &["config.json", "belongs to the model"]);
}

#[test]
fn an_export_into_the_models_own_folder() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let weights = std::fs::read(model.path().join("model.safetensors")).unwrap();
    let mut compile = compile_command(model.path(), &out.path().join("model.unicorn"));
    compile.arg("--export-dequantized").arg(model.path());
    assert_refused(&mut compile, out.path(), &["belongs to the model"]);
    assert!(weights == std::fs::read(model.path().join("model.safetensors")).unwrap(), "the weights are as they were");
}

#[test]
fn an_export_to_a_name_that_a_file_has() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    std::fs::write(out.path().join("exported"), "a file").unwrap();
    let mut compile = compile_command(model.path(), &out.path().join("model.unicorn"));
    compile.arg("--export-dequantized").arg(out.path().join("exported"));
    assert_refused(&mut compile, out.path(), &["exported", "not a folder"]);
}

/// What `unicorn-run` writes must not replace what it reads, either.
#[test]
fn a_name_that_an_artifact_or_an_input_has() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let artifact = out.path().join("model.unicorn");
    assert!(compile_command(model.path(), &artifact).status().unwrap().success());
    let text = out.path().join("text");
    std::fs::write(&text, "a text, or tokens").unwrap();
    let run = |command: &str, options: &[(&str, &Path)]| {
        let mut run = program("unicorn-run");
        run.arg(command).arg(&artifact).args(options.iter().flat_map(|(name, path)| [Path::new(name), *path]));
        run
    };
    let missing = out.path().join("missing/file");
    for (output, expected) in [
        (artifact.as_path(), "file is an artifact"),
        (&text, "file is read by this command"),
        (out.path(), "not a regular file"),
        (&missing, "No such file or directory"),
    ] {
        assert_refused(&mut run("logits", &[("--tokens", &text), ("-o", output)]), out.path(), &[expected]);
        assert_refused(&mut run("perplexity", &[("-f", &text), ("--save-logits", output)]), out.path(), &[expected]);
    }
    assert_refused(&mut run("profile", &[("--trace", &artifact)]), out.path(), &["file is an artifact"]);
}

/// Ctrl-C, `kill` and a closed terminal.
#[test]
fn an_interrupt_leaves_nothing_half_written() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let out = tempfile::tempdir().unwrap();
        let slow = slow_compile(out.path());
        // A program inherits which signals are ignored, and under `nohup` these tests ignore HUP.
        let mut heeding = Command::new("env");
        heeding.arg("--default-signal=INT,TERM,HUP").arg(slow.get_program()).args(slow.get_args());
        let mut compile = heeding.stderr(Stdio::piped()).spawn().unwrap();
        wait_for_half_written(out.path(), &mut compile);
        send_signal(&compile, signal);
        let output = compile.wait_with_output().unwrap();
        let status = (output.status.code(), output.status.signal());
        assert_eq!(status, (Some(128 + signal.as_raw()), None), "status after {signal:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "error: interrupted\n");
        assert_eq!(names(out.path()), Vec::<String>::new(), "left after {signal:?}");
    }
}

/// Nothing can be removed by then: nothing was there.
#[test]
fn a_killed_compile_leaves_nothing_half_written() {
    let out = tempfile::tempdir().unwrap();
    let mut compile = slow_compile(out.path()).spawn().unwrap();
    wait_for_half_written(out.path(), &mut compile);
    let named = names(out.path());
    compile.kill().unwrap();
    compile.wait().unwrap();
    if !named.is_empty() {
        return skip("unnamed files", format_args!("{named:?} has a name on this file system"));
    }
    assert_eq!(names(out.path()), Vec::<String>::new(), "left after SIGKILL");
}

/// `nohup` starts programs with such signals ignored.
#[test]
fn a_signal_that_was_to_be_ignored_is() {
    let out = tempfile::tempdir().unwrap();
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", &format!("trap '' HUP; exec {}", shell_line(&slow_compile(out.path())))]);
    let mut compile = ignoring.stderr(Stdio::piped()).spawn().unwrap();
    wait_for_half_written(out.path(), &mut compile);
    send_signal(&compile, Signal::HUP);
    let output = compile.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(out.path()), ["model.unicorn"]);
}

/// 135 million weights: enough for an interrupt to come while they are written.
fn slow_compile(folder: &Path) -> Command {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/shapes/smollm2-135m.json");
    let mut compile = program("unicorn-compile");
    compile.args(["--synthetic", config, "--target", "generic", "--quiet", "-o"]).arg(folder.join("model.unicorn"));
    compile.stderr(Stdio::piped());
    compile
}

/// Returns once there are weights in a file, named or not, in the folder of the artifact to be; `compile` must not have ended
/// by then.
pub fn wait_for_half_written(folder: &Path, compile: &mut Child) {
    let given_up = Instant::now() + Duration::from_secs(120);
    let open_files = format!("/proc/{}/fd", compile.id());
    let is_written = |file: &Path| {
        let below = std::fs::read_link(file).is_ok_and(|target| target.starts_with(folder));
        below && std::fs::metadata(file).is_ok_and(|found| found.len() > 0)
    };
    let written =
        || std::fs::read_dir(&open_files).is_ok_and(|mut files| files.any(|one| is_written(&one.unwrap().path())));
    while !written() {
        assert_eq!(compile.try_wait().unwrap(), None, "the compile ended before it was interrupted");
        assert!(Instant::now() < given_up, "no weights were written");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// A limit on file sizes stands in for a full disk: writes fail half-way, with another error number.
#[test]
fn a_disk_that_runs_full() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let compile = compile_command(model.path(), &out.path().join("model.unicorn"));
    assert_refused(&mut with_file_limit(&compile), out.path(), &["model.unicorn", "File too large"]);
}

#[test]
fn an_earlier_artifact_outlives_a_failure() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let output = out.path().join("model.unicorn");
    std::fs::write(&output, "the artifact of yesterday").unwrap();
    let mut compile = compile_command(model.path(), &output);
    compile.arg("--force");
    assert_refused(&mut with_file_limit(&compile), out.path(), &["model.unicorn", "File too large"]);
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "the artifact of yesterday");
}

/// The real thing, where this user may mount: a disk of 64 KiB.
#[test]
fn a_full_disk() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    // Root needs no user namespace, and in a chroot none can be created.
    let is_permitted =
        |flag: &&str| Command::new("unshare").args([flag, "true"]).output().is_ok_and(|ran| ran.status.success());
    let Some(flag) = ["-m", "-rm"].into_iter().find(is_permitted) else {
        return skip("full disk", "unshare is missing or not permitted");
    };
    let compile = compile_command(model.path(), &out.path().join("model.unicorn"));
    let script = format!("mount -t tmpfs -o size=64k none {} && exec {}", quoted(out.path()), shell_line(&compile));
    let mut command = Command::new("unshare");
    command.args([flag, "sh", "-c", &script]).env_remove("RUST_BACKTRACE");
    assert_refused(
        &mut command,
        out.path(),
        &["model.unicorn", "disk is too full, artifact needs about", "free; ", "write to another disk: -o "],
    );
}

/// Text beside the artifact, and a page: whole or not at all, as the artifact is.
#[test]
fn a_text_that_does_not_fit() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let artifact = out.path().join("model.unicorn");
    assert!(compile_command(model.path(), &artifact).status().unwrap().success());
    let mut plan = compile_command(model.path(), &out.path().join("planned"));
    plan.args(["--plan-only", "--emit", "kernels"]);
    let mut inspect = program("unicorn-run");
    inspect.arg("inspect").arg(&artifact).arg("--html").arg(out.path().join("page.html"));
    for command in [&plan, &inspect] {
        let before = names(out.path());
        let output = with_file_limit(command).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.contains("File too large")), (Some(1), true), "{stderr}");
        let half: Vec<String> = names(out.path()).into_iter().filter(|name| !before.contains(name)).collect();
        assert!(half.is_empty() || half == ["planned"], "left: {half:?}");
    }
}

/// A log on a full disk: what cannot be logged stops nothing.
#[test]
fn a_stderr_that_takes_nothing() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let artifact = out.path().join("model.unicorn");
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut compile = program("unicorn-compile");
    compile.arg(model.path()).arg("-o").arg(&artifact).args(["--target", "generic"]);
    assert_eq!(compile.stderr(full()).stdout(Stdio::null()).status().unwrap().code(), Some(0));
    let mut missing = program("unicorn-run");
    assert_eq!(missing.args(["inspect", "missing"]).stderr(full()).status().unwrap().code(), Some(1));
    let mut run = program("unicorn-run");
    run.arg(&artifact).args(["-p", "a", "-n", "2", "--device", "llvmpipe"]);
    assert_eq!(run.stderr(full()).stdout(Stdio::null()).status().unwrap().code(), Some(0));
}

/// The same command with files of at most 32 KiB (64 blocks of 512 bytes in POSIX shells, 64 KiB in others).
fn with_file_limit(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f 64; exec {}", shell_line(command))]);
    limited.env_remove("RUST_BACKTRACE");
    limited
}

fn shell_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quoted(Path::new(word))).collect::<Vec<_>>().join(" ")
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

#[test]
fn an_artifact_has_the_permissions_that_the_umask_leaves() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    for (umask, mode) in [("077", 0o600), ("000", 0o666)] {
        let path = out.path().join(umask);
        let compile = compile_command(model.path(), &path);
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("umask {umask} && exec \"$0\" \"$@\"")]);
        let output = limited.arg(compile.get_program()).args(compile.get_args()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "umask {umask}");
    }
}
