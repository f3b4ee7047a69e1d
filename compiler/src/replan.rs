//! `unicorn-compile replan`: other places for the bytes of an artifact, whose weights stay as they are.

use std::path::Path;

use unicorn_artifact::rewrite::replace_plan;
use unicorn_artifact::{Account, ArtifactView, Budget, MappedFile};

use crate::Progress;
use crate::error::{CompileError, Result};
use crate::machine::{Machine, budget};
use crate::place::replace::replace;
use crate::planned_context;

/// What is to change; what is not given stays as the artifact has it.
#[derive(Clone, Debug, Default)]
pub struct ReplanOptions {
    pub machine: Option<Machine>,
    pub budget: Budget,
    pub context_tokens: Option<u32>,
}

/// Plans the artifact at `path` anew and replaces its plan section.
///
/// # Errors
/// When it is no artifact, when the machine has no room for it, and when the file cannot be written. The artifact is then
/// as it was.
pub fn replan(path: &Path, options: &ReplanOptions, progress: &mut dyn Progress) -> Result<Account> {
    let file = MappedFile::open(path).map_err(CompileError::io(path))?;
    let view = ArtifactView::parse(file.bytes())
        .map_err(|error| CompileError::Malformed { path: path.to_owned(), what: error.to_string() })?;
    let machine = match &options.machine {
        Some(machine) => machine.plan(&options.budget)?,
        None => budget::apply(&options.budget, view.plan.machine.clone())?,
    };
    let context_tokens = match options.context_tokens {
        Some(asked) => planned_context(Some(asked), view.meta.model.max_positions)?,
        None => view.plan.planned_context_tokens,
    };
    let plan = replace(&view.plan, &machine, context_tokens)?;
    progress.stage("write", 1);
    replace_plan(path, &plan, |partial| progress.partial(Some(partial))).map_err(CompileError::io(path))?;
    progress.partial(None);
    progress.advance(1);
    Ok(Account::of(&plan))
}
