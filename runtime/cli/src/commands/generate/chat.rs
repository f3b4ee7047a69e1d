//! A conversation in the terminal, in the model's own chat template.

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use unicorn_text::{Chat, ChatOptions, EndReason};

use super::answer::{Generated, Runner};
use super::report::latency;
use crate::args::RunArgs;
use crate::error::CliError;
use crate::report::statistics::LoadStatistics;
use crate::terminal::interrupt;
use crate::terminal::output::{note, print_error};
use crate::terminal::text::TextOutput;

/// Reads lines until /quit or Ctrl-D. Ctrl-C ends an answer; its text so far stays in the history.
pub fn run(mut runner: Runner<'_>, args: &RunArgs) -> Result<(), CliError> {
    let terminal = |error| CliError::new(format!("terminal cannot be read: {error}"));
    let mut editor = DefaultEditor::new().map_err(terminal)?;
    let mut sampling = args.sampling.clone();
    // One seed for the whole conversation, unless /set changes it.
    let seed = *sampling.seed.get_or_insert(sampling.resolve().seed);
    let mut options = ChatOptions::default();
    (options.system, options.max_tokens) = (args.system.clone(), args.n_predict);
    options.template_arguments = args.chat_template_kwargs.clone().unwrap_or_default();
    let mut chat = Chat::new(runner.model, options)?;
    chat.set_cancel(interrupt::token());
    chat.set_feed_progress(Some(runner.prefill_progress()));

    note(format_args!("{} · seed {seed} · /help lists the commands", runner.model.meta().model.name));
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                note("(/quit or Ctrl-D ends the chat)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(terminal(error)),
        };
        editor.add_history_entry(line.as_str()).map_err(terminal)?;
        match Line::parse(&line) {
            Ok(Line::Nothing) => {}
            Ok(Line::Help) => note(HELP),
            Ok(Line::Clear) => chat.clear(),
            Ok(Line::System(text)) => chat.options_mut().system = (!text.is_empty()).then(|| text.to_owned()),
            Ok(Line::Set(name, value)) => {
                if let Err(error) = sampling.set(name, value) {
                    print_error(&error);
                }
            }
            Ok(Line::Quit) => return Ok(()),
            Ok(Line::Message(text)) => {
                chat.options_mut().sampling = sampling.resolve();
                match answer(&mut runner, &mut chat, text, args.lazy) {
                    Ok(()) => {}
                    // The conversation can go on after most errors: /clear, a shorter question.
                    Err(CliError::Failed(error)) if !runner.model.is_broken() => print_error(&error),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => print_error(&error),
        }
    }
}

/// Prints the answer on stdout. With an error, the history stays as it was.
fn answer(runner: &mut Runner<'_>, chat: &mut Chat, question: &str, lazy: bool) -> Result<(), CliError> {
    let is_first = chat.history().is_empty();
    let mut output = TextOutput::new();
    let generated = runner.run(move || chat.ask(question), &mut |piece| output.write(piece));
    output.end()?;
    let generated = generated?;

    if let Some(rate) = generated.decode.tokens_per_s() {
        let Generated { prompt_tokens, cached_tokens, tokens, .. } = &generated;
        note(format_args!(
            "({cached_tokens} of {prompt_tokens} prompt tokens were cached; {} tokens, {rate:.2} tokens/s)",
            tokens.len()
        ));
    }
    if let Some(first_token) = generated.first_token.filter(|_| is_first && lazy) {
        note(format_args!(
            "({})",
            latency(first_token.as_secs_f64(), LoadStatistics::new(runner.model).load_resident_s)
        ));
    }
    if generated.end_reason == EndReason::ContextFull {
        let tokens = runner.model.context_tokens();
        note(format_args!("(context is full: {tokens} tokens; /clear starts a new conversation)"));
    }
    Ok(())
}

const HELP: &str = "\
/clear            start a new conversation
/system TEXT      set the system message; without TEXT, none
/set NAME VALUE   temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, seed
/help             this list
/quit             end, as does Ctrl-D; Ctrl-C stops an answer";

/// A line typed in a chat.
#[derive(Debug, PartialEq, Eq)]
enum Line<'l> {
    Nothing,
    Help,
    Clear,
    System(&'l str),
    /// Name and value of a sampling option.
    Set(&'l str, &'l str),
    Quit,
    Message(&'l str),
}

impl Line<'_> {
    fn parse(line: &str) -> Result<Line<'_>, String> {
        let line = line.trim();
        if line.is_empty() {
            return Ok(Line::Nothing);
        }
        if !line.starts_with('/') {
            return Ok(Line::Message(line));
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match (command, rest) {
            ("/help", "") => Ok(Line::Help),
            ("/clear", "") => Ok(Line::Clear),
            ("/system", text) => Ok(Line::System(text)),
            ("/set", setting) => match setting.split_once(char::is_whitespace) {
                Some((name, value)) => Ok(Line::Set(name, value.trim())),
                None => Err("/set needs a name and a value, as in: /set temp 0.7".into()),
            },
            ("/quit", "") => Ok(Line::Quit),
            ("/help" | "/clear" | "/quit", _) => Err(format!("{command} takes no text, found {rest:?} after it")),
            _ => Err(format!("unknown command {command}; /help lists them")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        assert_eq!(Line::parse("  hello there "), Ok(Line::Message("hello there")));
        assert_eq!(Line::parse(" "), Ok(Line::Nothing));
        assert_eq!(Line::parse("/quit"), Ok(Line::Quit));
        assert_eq!(Line::parse("/system Be brief. "), Ok(Line::System("Be brief.")));
        assert_eq!(Line::parse("/system"), Ok(Line::System("")));
        assert_eq!(Line::parse("/set  temp 0.7"), Ok(Line::Set("temp", "0.7")));
        assert!(Line::parse("/set temp").unwrap_err().starts_with("/set needs"));
        assert!(Line::parse("/clear all").is_err());
        assert_eq!(Line::parse("/frobnicate").unwrap_err(), "unknown command /frobnicate; /help lists them");
    }
}
