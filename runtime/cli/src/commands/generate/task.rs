//! What a start does with a model: it answers a prompt, or chats.

use std::path::Path;

use unicorn_runtime::{Image, Model, Sampling};
use unicorn_structure::Structure;
use unicorn_text::{Continuation, EndReason, Picture, StopConditions, TextError};

use super::answer::{Generated, Runner};
use super::chat::{self, Source};
use super::images;
use super::loaded::{self, Loaded};
use super::prompt::{self, Prompt};
use super::report::{RunReport, why_empty};
use crate::args::RunArgs;
use crate::error::CliError;
use crate::report::statistics::RunStatistics;
use crate::terminal::interrupt;
use crate::terminal::output::{Verbosity, note, print_json, verbosity};
use crate::terminal::text::TextOutput;

/// What to do with a model, read before it is loaded.
pub struct Task {
    /// `None`: a chat.
    pub prompt: Option<String>,
    pictures: Vec<Picture>,
    structure: Option<Structure>,
}

impl Task {
    pub fn new(args: &RunArgs, prompt: Option<String>) -> Result<Task, CliError> {
        let pictures = images::read(&args.images)?;
        args.speculation.resolve(None)?;
        Ok(Task { prompt, pictures, structure: args.structure.resolve()? })
    }

    /// Answers, or chats, with the model that is loaded from `artifact`; a chat may leave another one in its place, or none after an error.
    pub fn carry_out(self, loaded: &mut Option<Loaded>, artifact: &Path, args: &RunArgs) -> Result<(), CliError> {
        interrupt::catch()?;
        let Task { prompt, pictures, structure } = self;
        match prompt {
            Some(text) => {
                let loaded = loaded::current(loaded);
                let images = images::encoded(&loaded.model, &pictures)?;
                answer(loaded, args, (text, images), structure)
            }
            None => {
                let model = args.artifact.clone().unwrap_or_else(|| artifact.to_owned());
                let source = Source { model, artifact: artifact.to_owned(), context_tokens: args.ctx };
                chat::run(loaded, source, structure, args, &pictures)
            }
        }
    }
}

/// Prints the answer to one prompt on stdout, and its figures on stderr.
fn answer(
    loaded: &Loaded,
    args: &RunArgs,
    question: (String, Vec<Image>),
    structure: Option<Structure>,
) -> Result<(), CliError> {
    let model = &loaded.model;
    let sampling = args.sampling.resolve();
    let generated = generate(loaded, args, question, &sampling, structure)?;
    let (end_reason, empty) = (generated.end_reason, why_empty(&generated.text, generated.end_reason, args.raw));
    // With --lazy, the text may come from weights that turn out to be wrong.
    if end_reason != EndReason::Cancelled {
        model.wait_for_weights()?;
    }
    match verbosity() {
        _ if args.json => print_json(&report(model, &sampling, generated))?,
        Verbosity::Verbose => note(report(model, &sampling, generated)),
        _ => note(generated.summary(generated.first_token)),
    }
    empty.iter().for_each(note);
    if end_reason == EndReason::Cancelled { Err(CliError::Interrupted) } else { Ok(()) }
}

/// All figures; the read bandwidth with `--verbose` alone, as measuring it takes as long as many tokens do.
fn report(model: &Model, sampling: &Sampling, generated: Generated) -> RunReport {
    let statistics = match verbosity() {
        Verbosity::Verbose => RunStatistics::new(model, generated.prefill, generated.decode),
        _ => RunStatistics::without_bandwidth(model, generated.prefill, generated.decode),
    };
    RunReport::new(statistics, sampling.seed, generated)
}

/// Generates the answer; with `--json`, nothing is printed meanwhile.
fn generate(
    loaded: &Loaded,
    args: &RunArgs,
    (text, images): (String, Vec<Image>),
    sampling: &Sampling,
    structure: Option<Structure>,
) -> Result<Generated, CliError> {
    let Loaded { model, tokenizer, .. } = loaded;
    let mut runner = Runner::new(loaded);
    let Prompt { tokens, format } = prompt::encoded(args, text, images, model, tokenizer)?;
    let constraint = structure.map(|structure| loaded.constraint(&structure)).transpose()?;
    let mut conditions = StopConditions::default();
    (conditions.max_tokens, conditions.stop_tokens) = (args.n_predict, model.tokenizer_section().stop_ids.clone());
    let mut session = model.session().map_err(TextError::from)?;
    session.set_cancel(interrupt::token());
    session.set_speculation(runner.speculation.as_ref())?;
    session.set_feed_progress(Some(runner.prefill_progress()));
    let start = || match constraint {
        None => Continuation::new(&mut session, tokenizer, &tokens, sampling, conditions),
        Some(constraint) => {
            let sampler = constraint.sampler(sampling, &format);
            Continuation::with_sampler(&mut session, tokenizer, &tokens, sampling, conditions, sampler)
        }
    };
    let generated = if args.json {
        runner.run(start, &mut |_| Ok(()))?
    } else {
        let mut output = TextOutput::new(true);
        let generated = runner.run(start, &mut |piece| output.write(piece))?;
        output.end()?;
        generated
    };
    Ok(Generated { drafts: session.take_draft_counts(), ..generated })
}
