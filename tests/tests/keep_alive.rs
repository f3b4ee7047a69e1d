//! `--keep-alive`: a start finds the model that an earlier one has left loaded, and everything else is as without it.

use std::num::NonZeroU16;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tests::programs::send_signal;
use tests::terminal::Terminal;
use tests::typed::{artifact, run, stderr};

/// A start with `arguments` behind the model, whose keepers are in `runtime`.
fn start(runtime: &Path, arguments: &[&str]) -> Command {
    let artifact = artifact();
    let mut command = run(&[artifact.to_str().unwrap()]);
    command.args(arguments).args(["--temp", "0"]).env("XDG_RUNTIME_DIR", runtime);
    command
}

/// What a start prints; its stderr says whether it loaded the model, which is on a software device.
#[track_caller]
fn answer(command: &mut Command) -> (String, bool) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let has_loaded = stderr(&output).contains("software device");
    (String::from_utf8(output.stdout).unwrap(), has_loaded)
}

/// Sockets of keepers, also of one that was killed.
fn sockets(runtime: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(runtime.join("unicorn")).into_iter().flatten().map(Result::unwrap);
    entries.filter(|entry| entry.file_type().unwrap().is_socket()).map(|entry| entry.path()).collect()
}

/// Number of keepers that wait for a start.
fn keepers(runtime: &Path) -> usize {
    // Names of all sockets that a process has, proc_net(5).
    let open = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets(runtime).iter().filter(|socket| open.contains(socket.to_str().unwrap())).count()
}

/// Waits until so many keepers wait.
#[track_caller]
fn expect_keepers(runtime: &Path, count: usize) {
    let begun = Instant::now();
    while keepers(runtime) != count {
        assert!(begun.elapsed() < Duration::from_secs(30), "expected {count} keepers, found {}", keepers(runtime));
        thread::sleep(Duration::from_millis(10));
    }
}

fn runtime() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_later_start_finds_the_model_loaded() {
    let runtime = runtime();
    let runtime = runtime.path();
    let question = ["-n", "8", "-p", "Where is the island?"];
    let (alone, _) = answer(&mut start(runtime, &question));
    assert_eq!(keepers(runtime), 0, "nothing is kept unasked");

    let kept = [&question[..], &["--keep-alive", "60"]].concat();
    assert_eq!(answer(&mut start(runtime, &kept)), (alone.clone(), true));
    expect_keepers(runtime, 1);
    let top = run(&["top", "--json", "--count", "1"]).env("XDG_RUNTIME_DIR", runtime).output().unwrap();
    assert!(String::from_utf8_lossy(&top.stdout).contains(r#""doing":"idle""#), "{top:?}");
    // Whether the option is given again or not; `--raw`, JSON and other questions change nothing about the model.
    assert_eq!(answer(&mut start(runtime, &question)), (alone.clone(), false));
    assert_eq!(answer(&mut start(runtime, &kept)), (alone.clone(), false));
    let (json, has_loaded) = answer(&mut start(runtime, &[&question[..], &["--json"]].concat()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["text"].as_str().map(str::trim), has_loaded), (Some(alone.trim()), false));

    // Another context is another model; its start leaves the first one where it is.
    assert!(answer(&mut start(runtime, &[&question[..], &["-c", "128"]].concat())).1);
    expect_keepers(runtime, 1);
    assert_eq!(answer(&mut start(runtime, &[&question[..], &["--keep-alive", "0"]].concat())), (alone.clone(), false));
    expect_keepers(runtime, 0);
    assert_eq!(answer(&mut start(runtime, &question)), (alone, true));
}

#[test]
fn a_start_meanwhile_loads_the_model_itself() {
    let runtime = runtime();
    let runtime = runtime.path();
    let mut long = start(runtime, &["-n", "400", "--raw", "-p", "Once", "--keep-alive", "60"]);
    let long = long.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first one has no socket while it answers.
    let (_, has_loaded) = answer(&mut start(runtime, &["-n", "2", "-p", "Hello"]));
    assert!(has_loaded);
    let output = long.wait_with_output().unwrap();
    assert!(output.status.success());
    expect_keepers(runtime, 1);
    answer(&mut start(runtime, &["-n", "2", "-p", "Hello", "--keep-alive", "0"]));
    expect_keepers(runtime, 0);
}

#[test]
fn nothing_is_kept_for_longer_than_asked() {
    let runtime = runtime();
    let runtime = runtime.path();
    answer(&mut start(runtime, &["-n", "2", "-p", "Hello", "--keep-alive", "3s"]));
    expect_keepers(runtime, 1);
    expect_keepers(runtime, 0);
    let begun = Instant::now();
    assert!(answer(&mut start(runtime, &["-n", "2", "-p", "Hello"])).1);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn errors_and_their_exit_codes_are_those_of_the_start() {
    let runtime = runtime();
    let runtime = runtime.path();
    let keep = ["--keep-alive", "60"];
    answer(&mut start(runtime, &[&["-n", "2", "-p", "Hello"][..], &keep].concat()));
    let words = "word ".repeat(20_000);
    for known in [true, false] {
        let output = start(runtime, &["-p", &words]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("is too long for the context of"), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("software device"), !known, "{}", stderr(&output));
        // A keeper that is killed is noticed by the next start, which finds its socket.
        if known {
            expect_keepers(runtime, 1);
            kill_keepers(runtime);
        }
    }
    assert_eq!(sockets(runtime).len(), 1, "that of the killed keeper");
    let (_, has_loaded) = answer(&mut start(runtime, &[&["-n", "2", "-p", "Hello"][..], &keep].concat()));
    assert!(has_loaded);
    expect_keepers(runtime, 1);
    assert!(!answer(&mut start(runtime, &["-n", "2", "-p", "Hello", "--keep-alive", "0"])).1);
    expect_keepers(runtime, 0);
}

/// Kills every process that has a status file.
fn kill_keepers(runtime: &Path) {
    for entry in std::fs::read_dir(runtime.join("unicorn")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(pid) = name.strip_suffix(".json") {
            let killed = Command::new("kill").args(["-9", pid]).status().unwrap();
            assert!(killed.success());
        }
    }
}

#[test]
fn ctrl_c_ends_the_answer_and_not_the_keeper() {
    let runtime = runtime();
    let runtime = runtime.path();
    answer(&mut start(runtime, &["-n", "2", "-p", "Hello", "--keep-alive", "60"]));
    let mut command = start(runtime, &["-n", "4000", "--raw", "-p", "Once upon a time"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_millis(1500));
    send_signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    expect_keepers(runtime, 1);
    assert!(!answer(&mut start(runtime, &["-n", "2", "-p", "Hello", "--keep-alive", "0"])).1);
}

#[test]
fn a_chat_works_on_the_terminal_of_its_start() {
    let runtime = runtime();
    let runtime = runtime.path();
    let state = tempfile::tempdir().unwrap();
    let columns = NonZeroU16::new(80).unwrap();
    for has_to_load in [true, false] {
        let mut command = start(runtime, &["-n", "6", "--keep-alive", "60"]);
        command.env("XDG_STATE_HOME", state.path());
        let mut terminal = Terminal::start(&command, columns);
        let screen = terminal.wait_until("the prompt", |screen| screen.contains("/? lists the commands"));
        assert_eq!(screen.contains("software device"), has_to_load, "{screen}");
        terminal.press("/set verbose\r");
        terminal.wait_until("its answer", |screen| screen.contains("figures follow an answer"));
        terminal.press("Where is it?\r");
        terminal.wait_until("figures", |screen| screen.contains("decode "));
        // Ctrl-C at the prompt is a key; the line before is in the history.
        terminal.press("\x03");
        terminal.wait_until("how to leave", |screen| screen.contains("/bye or Ctrl-D ends the chat"));
        terminal.press("/bye\r");
        assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
        expect_keepers(runtime, 1);
    }
    // A start that is killed ends the chat, and not the keeper.
    let mut command = start(runtime, &[]);
    command.env("XDG_STATE_HOME", state.path());
    let mut terminal = Terminal::start(&command, columns);
    terminal.wait_until("the prompt", |screen| screen.contains("/? lists the commands"));
    drop(terminal);
    expect_keepers(runtime, 1);
    let mut last = start(runtime, &["-n", "2", "-p", "Hello", "--keep-alive", "0"]);
    // The environment of starts that share a keeper is the same.
    last.env("XDG_STATE_HOME", state.path()).env("TERM", "xterm-256color");
    assert!(!answer(&mut last).1);
    expect_keepers(runtime, 0);
}
