//! `unicorn-run`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unicorn_cli::main()
}
