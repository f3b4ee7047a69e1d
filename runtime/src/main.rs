//! `unicorn-run`.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::cli::main()
}
