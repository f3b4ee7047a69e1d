//! Adds to the runtime's errors what the command line has for them: options and commands that help, and the limit on address space
//! (`ulimit -v`) where it may be the cause, because drivers need a lot of address space and their errors do not name it.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use unicorn_artifact::account::size;
use unicorn_runtime::crash;
use unicorn_runtime::machine::address_space_bytes;
use unicorn_runtime::{LoadError, Replan, RunError};

/// Under a limit on address space, runs this program anew in its place, with one heap for all of its threads: glibc reserves 64 MiB
/// of address space for each heap. Returns if there is no limit, or if the program cannot be run anew.
pub fn keep_to_one_heap() {
    /// Read by glibc when a program begins.
    const HEAPS: &str = "MALLOC_ARENA_MAX";
    if address_space_bytes().is_none() || env::var_os(HEAPS).is_some() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut arguments = env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    let _ = again.args(arguments).env(HEAPS, "1").exec();
}

/// Under a limit, a crash prints a line that names it, and the program ends with status 1.
pub fn crashes() {
    if let Some(limit) = address_space_bytes() {
        crash::exit_on_crash(format!(
            "error: address space is limited to {} (ulimit -v), and the program or a driver crashed, most likely because \
             that is too little; expected a higher limit, or none\n",
            size(limit)
        ));
    }
}

/// The message of `error`, with the limit where it may be the cause.
pub fn load_error(error: &LoadError) -> String {
    with_limit(error.to_string(), lacks_memory(error)) + &commands(error)
}

/// What to type next after a load that failed.
fn commands(error: &LoadError) -> String {
    match error {
        LoadError::InsufficientMemory(report) => {
            let mut commands = String::new();
            if report.fitting_context_tokens > 0 {
                commands += &format!("\n  a shorter context: --ctx {}", report.fitting_context_tokens);
            }
            if let Some(Replan { tier_bytes, context_tokens }) = &report.replan {
                let tiers = tier_bytes.iter().map(|(tier, bytes)| format!("{}={}MiB", tier.name(), bytes >> 20));
                let tiers = tiers.collect::<Vec<_>>().join(",");
                let artifact = quoted(&report.artifact.display().to_string());
                commands += &format!(
                    "\n  a new plan: unicorn-run replan {artifact} --budget {tiers} --context {context_tokens}"
                );
            }
            commands
        }
        LoadError::NoDevice { found, .. } if !found.is_empty() => ": --device NAME, or UNICORN_DEVICE".into(),
        LoadError::NoThread { .. } => ": leave out --lazy".into(),
        LoadError::NotResident { .. } => ": unicorn-run replan ARTIFACT --budget vram=SIZE,gtt=SIZE".into(),
        _ => String::new(),
    }
}

/// As one word of a shell command.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "._-/+=:@%".contains(letter);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The same of a step.
pub fn run_error(error: &RunError) -> String {
    let lacks = match error {
        RunError::OutOfMemory { .. } | RunError::Vulkan { .. } => true,
        RunError::Loading { source } => lacks_memory(source),
        RunError::NotRecovered { source, .. } => lacks_memory(source),
        _ => false,
    };
    with_limit(error.to_string(), lacks)
}

/// Whether too little memory may be the cause. A driver that cannot be loaded for lack of memory is missing.
fn lacks_memory(error: &LoadError) -> bool {
    match error {
        LoadError::File { source, .. } => source.kind() == io::ErrorKind::OutOfMemory,
        LoadError::NoDevice { found, .. } => found.is_empty(),
        LoadError::Pipeline { source, .. } => lacks_memory(source),
        LoadError::Loading { source } => lacks_memory(source),
        LoadError::NoLoader { .. }
        | LoadError::NoDriver
        | LoadError::OutOfMemory { .. }
        | LoadError::Residency { .. }
        | LoadError::NoThread { .. }
        | LoadError::Vulkan { .. } => true,
        _ => false,
    }
}

fn with_limit(error: String, lacks_memory: bool) -> String {
    match address_space_bytes().filter(|_| lacks_memory) {
        Some(limit) => format!("{error}; address space of this process is limited to {} (ulimit -v)", size(limit)),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted("/models/m-1.unicorn"), "/models/m-1.unicorn");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
