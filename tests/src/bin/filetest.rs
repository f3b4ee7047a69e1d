//! `cargo run -p tests --bin filetest -- [FILTER] [--bless]`: the filetests whose path contains FILTER.

use std::process::ExitCode;

use tests::filetest::{Mode, run};

fn main() -> ExitCode {
    let mut mode = Mode::Compare;
    let mut filter = String::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--bless" => mode = Mode::Bless,
            option if option.starts_with('-') => {
                eprintln!("error: option {option} is unknown, expected [FILTER] [--bless]");
                return ExitCode::FAILURE;
            }
            _ => filter = argument,
        }
    }
    let outcome = run(&filter, mode);
    for path in &outcome.blessed {
        println!("blessed {}", path.display());
    }
    for failure in &outcome.failures {
        println!("{failure}");
    }
    println!("{} files, {} failed", outcome.files, outcome.failures.len());
    if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
