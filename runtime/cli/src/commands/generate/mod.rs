//! `unicorn-run MODEL`: one answer to one prompt, or a chat when there is a terminal and no prompt.

mod early_tokenizer;
mod images;
mod loaded;
mod prompt;

mod answer;
mod chat;
mod report;

mod task;

mod keep_alive;

pub use self::keep_alive::keep;
use self::loaded::Loaded;
use self::task::Task;
use crate::args::RunArgs;
use crate::error::CliError;
use crate::models::{self, Input};

pub fn run(args: &RunArgs) -> Result<(), CliError> {
    let model = args.artifact.as_deref().expect("clap requires it where there is no subcommand");
    models::check(model)?;
    // Read before the model is loaded: a missing prompt is reported before a minute of loading.
    let prompt = prompt::text(args)?;
    if prompt.is_none() && args.json {
        return Err(CliError::new("--json needs a prompt, as in: unicorn-run MODEL --json why is the sky blue"));
    }

    let task = Task::new(args, prompt)?;
    let artifact = models::artifact(model, &args.load, Input::Text)?;
    if let Some(code) = keep_alive::answer(args, &artifact, task.prompt.as_deref())? {
        return Err(CliError::Ended(code));
    }
    let loaded = Loaded::open(&artifact, args.ctx, args)?;
    task.carry_out(&mut Some(loaded), &artifact, args)
}
