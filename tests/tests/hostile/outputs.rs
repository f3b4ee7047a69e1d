//! Places that cannot be written to, and disks that run full.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
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

/// Renaming over a device or a pipe would take it away from everybody.
#[test]
fn a_name_that_a_pipe_has() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let output = out.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&output).status().unwrap().success());
    assert_refused(&mut compile_command(model.path(), &output), out.path(), &["pipe", "not a regular file"]);
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
    let compile = compile_command(model.path(), &output);
    assert_refused(&mut with_file_limit(&compile), out.path(), &["model.unicorn"]);
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "the artifact of yesterday");
}

/// The real thing, where this user may mount: a disk of 64 KiB.
#[test]
fn a_full_disk() {
    let (model, out) = (sound_folder(), tempfile::tempdir().unwrap());
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        println!("not run: this user may not mount");
        return;
    }
    let compile = compile_command(model.path(), &out.path().join("model.unicorn"));
    let script = format!("mount -t tmpfs -o size=64k none {} && exec {}", quoted(out.path()), shell_line(&compile));
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).env_remove("RUST_BACKTRACE");
    assert_refused(&mut command, out.path(), &["model.unicorn", "No space left on device"]);
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
