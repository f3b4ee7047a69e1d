//! The workspace's own programs, run as a user runs them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// `unicorn-compile` or `unicorn-run` of this build, without the settings that this process was given for them, and with
/// caches beside the build instead of the user's.
///
/// # Panics
/// If the program was not built beside the tests.
pub fn program(name: &str) -> Command {
    let path = program_path(name);
    let how = "cargo xtask test builds it; by hand: cargo build -p unicorn-compiler -p unicorn-run";
    assert!(path.is_file(), "program {} is missing: {how}", path.display());
    let mut command = Command::new(path);
    command.env_remove("UNICORN_DEVICE").env_remove("UNICORN_VALIDATE").env_remove("RUST_BACKTRACE");
    command.env("XDG_CACHE_HOME", program_path("test-caches"));
    command
}

/// Sends a signal to a program that was not waited for yet. Not by `kill`: a minimal Debian does not have that program.
///
/// # Panics
/// If the system refuses.
pub fn send_signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process has a positive number");
    kill_process(pid, signal).unwrap_or_else(|error| panic!("signal {signal:?} is not sent to {pid:?}: {error}"));
}

/// Test programs are in `deps/`, the workspace's own beside it.
fn program_path(name: &str) -> PathBuf {
    let this_test = std::env::current_exe().expect("the running program has a path");
    let profile = this_test.ancestors().nth(2).expect("a test program lies two folders deep");
    profile.join(name)
}

/// A running program, which is ended when the value is dropped.
pub struct Watched {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Watched {
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Watched {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
        Watched { child, stdout, stderr }
    }

    /// The next line of its stdout; empty when there are no more.
    pub fn stdout_line(&mut self) -> String {
        line(&mut self.stdout)
    }

    /// Waits until something is on its stdout, and leaves it there.
    pub fn wait_for_stdout(&mut self) {
        self.stdout.fill_buf().expect("the program's pipe");
    }

    /// The next line of its stderr; empty when there are no more.
    pub fn stderr_line(&mut self) -> String {
        line(&mut self.stderr)
    }
}

fn line(pipe: &mut impl BufRead) -> String {
    let mut line = String::new();
    pipe.read_line(&mut line).expect("the program's pipe");
    line
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
