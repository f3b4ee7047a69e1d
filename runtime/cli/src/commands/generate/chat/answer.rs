//! One question and its answer: printed while it is generated, and continued where the context is full.

use unicorn_runtime::Image;
use unicorn_text::{Chat, EndReason, TextError};

use super::super::answer::{Generated, Pieces, Runner};
use super::settings::Settings;
use crate::error::CliError;
use crate::load::longer_context;
use crate::terminal::output::note;
use crate::terminal::text::TextOutput;

/// Prints the answer to `question`, which is about these images, on stdout, and notes on stderr. With an error, the history stays as it was.
///
/// # Errors
/// Errors of [`Chat::ask`] and of stdout.
pub fn ask(
    runner: &mut Runner<'_>,
    chat: &mut Chat,
    question: (&str, Vec<Image>),
    settings: &Settings,
) -> Result<(), CliError> {
    let model = runner.model;
    let all_turns_fitted = chat.turns_left_out() == 0;
    let mut output = TextOutput::new(settings.wordwrap);
    let generated = print_whole(runner, chat, question, &mut output);
    output.end()?;
    let generated = generated?;

    if settings.verbose {
        note(generated.summary(Some(generated.prefill.elapsed)));
    }
    let full = || format!("context of {} tokens is full; {}", model.context_tokens(), longer_context(model));
    if generated.end_reason == EndReason::ContextFull {
        note(format_args!("(the answer ends here: {})", full()));
    } else if all_turns_fitted && chat.turns_left_out() > 0 {
        note(format_args!("(the oldest turns are left out from now on: {})", full()));
    }
    Ok(())
}

/// An answer that does not fit the context continues without the oldest turns.
fn print_whole(
    runner: &mut Runner<'_>,
    chat: &mut Chat,
    (question, images): (&str, Vec<Image>),
    output: &mut TextOutput,
) -> Result<Generated, CliError> {
    let mut generated = print(runner, output, || chat.ask_about(question, images))?;
    while generated.end_reason == EndReason::ContextFull && chat.can_resume() {
        generated = print(runner, output, || chat.resume().map(|answer| answer.expect("it can be resumed")))?;
    }
    Ok(Generated { drafts: chat.take_draft_counts(), ..generated })
}

fn print<P: Pieces>(
    runner: &mut Runner<'_>,
    output: &mut TextOutput,
    start: impl FnOnce() -> Result<P, TextError>,
) -> Result<Generated, CliError> {
    runner.run(start, &mut |piece| output.write(piece))
}
