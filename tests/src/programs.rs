//! The workspace's own programs, run as a user runs them.

use std::path::PathBuf;
use std::process::Command;

/// `unicorn-compile` or `unicorn-run` of this build, without the settings that this process was given for them, and with
/// caches beside the build instead of the user's.
///
/// # Panics
/// If the program was not built beside the tests.
pub fn program(name: &str) -> Command {
    let path = program_path(name);
    let how = "cargo xtask test builds it; by hand: cargo build -p compiler -p runtime";
    assert!(path.is_file(), "program {} is missing: {how}", path.display());
    let mut command = Command::new(path);
    command.env_remove("UNICORN_DEVICE").env_remove("UNICORN_VALIDATE").env_remove("RUST_BACKTRACE");
    command.env("XDG_CACHE_HOME", program_path("test-caches"));
    command
}

/// Test programs lie in `deps/`, the workspace's own beside it.
fn program_path(name: &str) -> PathBuf {
    let this_test = std::env::current_exe().expect("the running program has a path");
    let profile = this_test.ancestors().nth(2).expect("a test program lies two folders deep");
    profile.join(name)
}
