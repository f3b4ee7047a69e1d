//! `unicorn-run`: the command line around unicorn-runtime, unicorn-text and unicorn-serve. Arguments, terminals, files and
//! signals are handled here and nowhere else.
//!
//! ```text
//! args ──► models ──► load ──► Model ──► commands::generate      text on stdout, statistics on stderr
//!          artifact of MODEL      ├────► commands::serve         the same over HTTP, many at once
//!                                 └────► bench, profile, tune, selftest, perplexity, logits
//!          commands::devices, doctor, inspect, replan, top        (no model is loaded)
//!
//! monitor: status files of running processes ──► system samples ──► top, metrics
//! report: statistics and tables · files: what is read and written · terminal: stdout, stderr, Ctrl-C
//! ```

mod args;
mod load;
mod models;

mod commands;

mod files;
mod monitor;
mod report;
mod sandbox;
#[cfg_attr(not(feature = "npu-simulator"), path = "simulated_npu_disabled.rs")]
mod simulated_npu;
mod terminal;

mod error;
mod explain;
mod restart;

use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(all(feature = "npu-simulator", not(debug_assertions)))]
compile_error!("feature npu-simulator is for tests, not for a release build");

use crate::args::{Args, Command, LoadArgs};
use crate::commands::{
    bench, completions, devices, doctor, generate, inspect, logits, man, npu_selftest, perplexity, profile, replan,
    selftest, serve, store, top, tune,
};
use crate::error::CliError;
use crate::models::Input;
use crate::terminal::interrupt::EXIT_INTERRUPTED;
use crate::terminal::output::{Verbosity, print_error, set_verbosity};

/// Exit code 0, 1 after `error: …` on stderr, 2 from clap for a command line that it rejects, or 130 after Ctrl-C. A closed stdout
/// (`| head`) is not an error.
fn main() -> ExitCode {
    restart::keep_to_one_heap();
    explain::crashes();
    if std::env::args_os().len() == 1 {
        // Shows what can be typed. Where a variable gives an option, clap takes it for an argument and names the missing model instead.
        Args::shown().mut_args(|argument| argument.env(None::<&str>)).get_matches();
    }
    ExitCode::from(exit_code(run(Args::parsed())))
}

/// The exit code of a command; its error is printed.
fn exit_code(result: Result<(), CliError>) -> u8 {
    match result.and_then(|()| check_validation()) {
        Ok(()) | Err(CliError::OutputClosed) => 0,
        Err(CliError::Failed(message)) => {
            print_error(message);
            1
        }
        Err(CliError::Interrupted) => EXIT_INTERRUPTED,
        Err(CliError::Ended(code)) => code,
    }
}

fn run(args: Args) -> Result<(), CliError> {
    set_verbosity(Verbosity::of(&args.output));
    let needs_device = !matches!(
        args.command,
        Some(
            Command::Inspect(_)
                | Command::Replan(_)
                | Command::Top(_)
                | Command::Verify(_)
                | Command::List(_)
                | Command::Rm(_)
                | Command::Gc(_)
                | Command::Completions(_)
                | Command::Man(_)
        )
    );
    if needs_device {
        restart::keep_mesa_off_a_full_disk();
    }
    match args.command {
        None => generate::run(&args.run),
        Some(Command::Run(args)) => generate::run(&args),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Pull(args)) => store::pull(&args),
        Some(Command::Verify(args)) => store::verify(&args),
        Some(Command::List(args)) => store::list(&args),
        Some(Command::Rm(args)) => store::rm(&args),
        Some(Command::Gc(args)) => store::gc(&args),
        Some(Command::Devices(args)) => {
            args.artifact.as_deref().map_or(Ok(()), models::check_is_artifact)?;
            devices::run(&args)
        }
        Some(Command::Doctor(args)) => {
            args.artifact.as_deref().map_or(Ok(()), models::check_is_artifact)?;
            doctor::run(&args)
        }
        Some(Command::Top(args)) => top::run(&args),
        Some(Command::Inspect(args)) => {
            models::check_is_artifact(&args.artifact)?;
            args.diff.as_deref().map_or(Ok(()), models::check_is_artifact)?;
            inspect::run(&args)
        }
        Some(Command::Replan(args)) => models::check_is_artifact(&args.artifact).and_then(|()| replan::run(&args)),
        Some(Command::Bench(mut args)) => {
            compiled(&mut args.artifact, &args.load, Input::Tokens).and_then(|()| bench::run(&args))
        }
        Some(Command::Profile(mut args)) => {
            compiled(&mut args.artifact, &args.load, Input::Tokens).and_then(|()| profile::run(&args))
        }
        Some(Command::Tune(mut args)) => {
            compiled(&mut args.artifact, &args.load, Input::Tokens).and_then(|()| tune::run(&args))
        }
        Some(Command::Selftest(mut args)) => {
            compiled(&mut args.artifact, &args.load, Input::Tokens).and_then(|()| selftest::run(&args))
        }
        Some(Command::NpuSelftest(args)) => {
            models::check_is_artifact(&args.artifact).and_then(|()| npu_selftest::run(&args))
        }
        Some(Command::Perplexity(mut args)) => {
            compiled(&mut args.artifact, &args.load, Input::Text).and_then(|()| perplexity::run(&args))
        }
        Some(Command::Completions(args)) => completions::run(&args),
        Some(Command::Man(args)) => man::run(&args),
        Some(Command::Keep(args)) => generate::keep(&args),
        Some(Command::Logits(mut args)) => {
            compiled(&mut args.artifact, &args.load, Input::Tokens).and_then(|()| logits::run(&args))
        }
    }
}

/// Replaces a model that is not compiled by its artifact.
fn compiled(model: &mut PathBuf, load: &LoadArgs, input: Input) -> Result<(), CliError> {
    *model = models::artifact(model, load, input)?;
    Ok(())
}

/// With UNICORN_VALIDATE set, an error that the validation layers reported makes the command fail.
fn check_validation() -> Result<(), CliError> {
    match unicorn_runtime::validation_errors() {
        0 => Ok(()),
        count => Err(CliError::new(format!("Vulkan validation reported {count} errors, expected none"))),
    }
}
