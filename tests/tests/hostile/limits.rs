//! Limits that the system sets a process: too little address space (`ulimit -v`), and no thread but the first. A program
//! works nevertheless, or prints one message with the reason.
//!
//! Every signal counts as a failure here, one from the driver as well: of llvmpipe, LLVM ends the process where an allocation
//! fails, which `unicorn-run` explains.

use std::path::Path;
use std::process::{Command, Output};

use tests::programs::program;
use tests::skip;
use tests::tiny_model::TinyModel;
use unicorn_artifact::ArtifactView;

use crate::artifact_files::changed_artifact;
use crate::devices::device_name;
use crate::refusal::{assert_refused, compile_command, listing};

/// With less, the system cannot even load the programs, or they lack the memory for a message.
const MIN_MIB: u64 = 48;

/// The same command with `mib` MiB of address space; `None`: this system cannot limit it.
fn with_address_space(command: &Command, mib: u64) -> Option<Command> {
    let is_there = Command::new("prlimit").arg("--version").output().is_ok_and(|found| found.status.success());
    if !is_there {
        skip("address space", "prlimit is missing");
        return None;
    }
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--as={}", mib << 20)).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    Some(limited)
}

/// The same command where no thread can be started: none has room for a stack of 64 TiB. A driver's threads ask for less.
fn without_threads(command: &mut Command) -> &mut Command {
    command.env("RUST_MIN_STACK", (1_u64 << 46).to_string())
}

fn generate(artifact: &Path) -> Command {
    let mut command = program("unicorn-run");
    command.arg(artifact).args(["-p", "a", "-n", "2", "--temp", "0", "--no-cache", "--device", &device_name()]);
    command
}

#[track_caller]
fn assert_no_panic(output: &Output, what: &str) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{what}: {}; stderr: {stderr}", output.status);
    assert!(!stderr.contains("panicked"), "{what}: {stderr}");
    assert!(code == Some(0) || !stderr.is_empty(), "{what} failed without a word");
    stderr
}

#[test]
fn a_compile_with_little_address_space() {
    let model = tempfile::tempdir().unwrap();
    TinyModel::default().write(model.path());
    let mut succeeded = Vec::new();
    for mib in [MIN_MIB, 60, 80, 300] {
        let out = tempfile::tempdir().unwrap();
        let artifact = out.path().join("model.unicorn");
        let Some(mut compile) = with_address_space(&compile_command(model.path(), &artifact), mib) else { return };
        let output = compile.output().unwrap();
        assert_no_panic(&output, &format!("a compile within {mib} MiB"));
        if output.status.success() {
            let bytes = std::fs::read(&artifact).unwrap();
            ArtifactView::parse(&bytes).unwrap().weights().iter().for_each(|section| section.verify().unwrap());
            succeeded.push(mib);
        } else {
            assert!(listing(out.path()).is_empty(), "left within {mib} MiB: {:?}", listing(out.path()));
        }
    }
    assert!(succeeded.contains(&300), "no compile was done, within {succeeded:?} MiB neither");
}

#[test]
fn a_run_with_little_address_space() {
    let (_folder, path) = changed_artifact(|_| ());
    for mib in [MIN_MIB, 60, 100, 200, 260, 300, 340, 380, 600] {
        let Some(mut run) = with_address_space(&generate(&path), mib) else { return };
        let output = run.output().unwrap();
        let stderr = assert_no_panic(&output, &format!("a run within {mib} MiB"));
        // The standard library's line about a failed allocation precedes the explanation, which is the program's message.
        let allocation = |line: &&str| line.contains("memory allocation of");
        let messages = stderr.lines().filter(|line| line.starts_with("error: "));
        let errors = messages.filter(|line| !allocation(line)).count();
        assert_eq!(errors, usize::from(!output.status.success()), "messages within {mib} MiB: {stderr}");
        assert!(errors == 0 || stderr.contains("(ulimit -v)"), "no word of the limit of {mib} MiB: {stderr}");
    }
}

#[test]
fn a_compile_without_threads() {
    let model = tempfile::tempdir().unwrap();
    TinyModel::default().write(model.path());
    let artifacts = ["one.unicorn", "many.unicorn"].map(|name| model.path().join(name));
    let one = without_threads(&mut compile_command(model.path(), &artifacts[0])).output().unwrap();
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert!(compile_command(model.path(), &artifacts[1]).status().unwrap().success());
    let [one, many] = artifacts.map(|path| std::fs::read(path).unwrap());
    assert!(one == many, "the artifact depends on the number of threads");
}

#[test]
fn a_run_without_threads() {
    let (folder, path) = changed_artifact(|_| ());
    let one = without_threads(&mut generate(&path)).output().unwrap();
    let many = generate(&path).output().unwrap();
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stdout, many.stdout);
    let mut lazy = generate(&path);
    assert_refused(without_threads(lazy.arg("--lazy")), folder.path(), &["thread", "--lazy"]);
}
