//! `unicorn-run`: the command line around unicorn-runtime, unicorn-text and unicorn-serve. Arguments, terminals, files and
//! signals are handled here and nowhere else.
//!
//! ```text
//! args ──► load ──► Model ──► commands::generate      text on stdout, statistics on stderr
//!                      ├────► commands::serve         the same over HTTP, many at once
//!                      └────► bench, profile, tune, perplexity, logits
//!          commands::devices, doctor, inspect, replan, top        (no model is loaded)
//!
//! monitor: status files of running processes ──► system samples ──► top, metrics
//! report: statistics and tables · files: what is read and written · terminal: stdout, stderr, Ctrl-C
//! ```

mod args;
mod load;

mod commands;

mod files;
mod monitor;
mod report;
mod sandbox;
mod terminal;

mod error;
mod explain;

use std::process::ExitCode;

use crate::args::{Args, Command};
use crate::commands::{
    bench, devices, doctor, generate, inspect, logits, perplexity, profile, replan, serve, top, tune,
};
use crate::error::CliError;
use crate::terminal::interrupt::EXIT_INTERRUPTED;
use crate::terminal::output::{Verbosity, print_error, set_verbosity};
use clap::Parser;

/// Exit code 0, 1 after `error: …` on stderr, 2 from clap for a command line that it rejects, or 130 after Ctrl-C. A closed stdout
/// (`| head`) is no error.
fn main() -> ExitCode {
    explain::keep_to_one_heap();
    explain::crashes();
    match run(Args::parse()).and_then(|()| check_validation()) {
        Ok(()) | Err(CliError::OutputClosed) => ExitCode::SUCCESS,
        Err(CliError::Failed(message)) => {
            print_error(message);
            ExitCode::FAILURE
        }
        Err(CliError::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
    }
}

fn run(args: Args) -> Result<(), CliError> {
    set_verbosity(match (args.output.quiet, args.output.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    });
    match args.command {
        None => generate::run(&args.run),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Devices(args)) => devices::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Top(args)) => top::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Replan(args)) => replan::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Profile(args)) => profile::run(&args),
        Some(Command::Tune(args)) => tune::run(&args),
        Some(Command::Perplexity(args)) => perplexity::run(&args),
        Some(Command::Logits(args)) => logits::run(&args),
    }
}

/// With UNICORN_VALIDATE set, an error that the validation layers reported makes the command fail.
fn check_validation() -> Result<(), CliError> {
    match unicorn_runtime::validation_errors() {
        0 => Ok(()),
        count => Err(CliError::new(format!("Vulkan validation reported {count} errors, expected none"))),
    }
}
