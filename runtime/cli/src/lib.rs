//! `unicorn-run`: everything that a person or a shell needs around the core. Text, terminals, files of tokens and JSON
//! are known here and nowhere else in the runtime; Vulkan is not known here.
//!
//! ```text
//! args ──► load ──► Model ──► generate | chat ──► answer ──► stdout: text      stderr: figures
//!                      ├────► serve: the same over HTTP, many at once
//!                      └────► bench, profile, tune, perplexity, logits
//!          devices, doctor, inspect, top                     (no model is loaded)
//!          status ──► watch ──► top, metrics
//! ```

mod args;
mod load;
mod tuning_file;

mod date;
mod template;
mod text;

mod answer;
mod chat;
mod figures;
mod generate;

mod bench;
mod likelihood;
mod logits;
mod logits_file;
mod perplexity;
mod profile;
mod tune;

pub mod serve;

mod devices;
mod doctor;
mod inspect;
mod metrics;
mod replan;
mod status;
mod top;
mod watch;

mod error;
mod http;
mod interrupt;
mod output;
mod output_file;
mod shortage;
mod table;

use std::process::ExitCode;

use clap::Parser;
use unicorn_artifact::limits;

pub use args::SamplingArgs;
use args::{Args, Command};
use error::CliError;
use output::note;

/// Runs the command line: exit code 0, 1 after `error: …` on stderr, or 2 from clap for a command line that it does not
/// understand. A closed stdout (`| head`) ends quietly.
pub fn main() -> ExitCode {
    limits::keep_to_one_heap();
    shortage::explain_crashes();
    match dispatch(Args::parse()).and_then(|()| check_validation()) {
        Ok(()) | Err(CliError::OutputClosed) => ExitCode::SUCCESS,
        Err(CliError::Failed(message)) => {
            note(format_args!("error: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// Under UNICORN_VALIDATE, whatever the validation layers found wrong makes the whole run wrong.
fn check_validation() -> Result<(), CliError> {
    match unicorn_runtime::validation_errors() {
        0 => Ok(()),
        count => Err(CliError::new(format!("Vulkan validation reported {count} errors, expected none"))),
    }
}

fn dispatch(args: Args) -> Result<(), CliError> {
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
