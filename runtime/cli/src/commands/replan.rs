//! `replan`: runs `unicorn-compile replan`, because the compiler plans the memory.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::args::ReplanArgs;
use crate::error::CliError;

const COMPILER: &str = "unicorn-compile";

/// Returns only if the compiler does not start.
pub fn run(args: &ReplanArgs) -> Result<(), CliError> {
    let error = Command::new(compiler()).arg("replan").args(&args.arguments).exec();
    Err(CliError::new(format!(
        "{COMPILER}, which plans the memory, does not start ({error}); expected it beside unicorn-run or in PATH"
    )))
}

/// Beside this program, or else wherever PATH has it.
fn compiler() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(COMPILER));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| COMPILER.into())
}
