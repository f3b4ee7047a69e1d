//! `replan`: places an artifact's bytes in other tiers, as `unicorn-compile replan` does.

use std::ops::ControlFlow;
use std::path::Path;

use unicorn_compiler::{CompileError, Machine, Progress, ReplanOptions, replan};

use crate::args::ReplanArgs;
use crate::error::CliError;
use crate::explain::compile_error;
use crate::terminal::interrupt;
use crate::terminal::output::{Verbosity, print, print_json, verbosity};

pub fn run(args: &ReplanArgs) -> Result<(), CliError> {
    let failed = |error: CompileError| CliError::new(compile_error(&error));
    let mut options = ReplanOptions::default();
    options.machine = args
        .machine
        .as_deref()
        .map(Machine::named)
        .transpose()
        .map_err(|error| failed(CompileError::of_machine(error)))?;
    options.budget = args.budget.clone().unwrap_or_default();
    options.context_tokens = args.context;
    let account = replan(&args.artifact, &options, &mut RemovePartial).map_err(failed)?;
    match (args.json, verbosity()) {
        (true, _) => print_json(&account),
        (false, Verbosity::Quiet) => Ok(()),
        (false, _) => print(&format!("{account}\n")),
    }
}

/// Ctrl-C removes what is half written.
struct RemovePartial;

impl Progress for RemovePartial {
    fn partial(&mut self, path: Option<&Path>) {
        match path {
            Some(path) => interrupt::remove_partial(path.to_owned()),
            None => interrupt::release(),
        }
    }

    fn advance(&mut self, _amount: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
