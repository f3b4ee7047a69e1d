//! A conversation in the terminal, in the model's own chat template.

use std::io::{self, Write};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::args::RunArgs;
use crate::commands::generate::answer::{Answerer, StopReason};
use crate::commands::generate::begun;
use crate::error::CliError;
use crate::terminal::output::note;
use unicorn_runtime::Sampling;
use unicorn_text::{ChatTemplate, Message};

/// Reads lines until /quit or Ctrl-D. Ctrl-C stops an answer; what was said of it stays in the history.
pub fn run(answerer: Answerer<'_>, template: ChatTemplate, args: &RunArgs) -> Result<(), CliError> {
    let terminal = |error| CliError::new(format!("terminal cannot be read: {error}"));
    let mut editor = DefaultEditor::new().map_err(terminal)?;
    let mut sampling = args.sampling.clone();
    // One seed for the whole conversation, unless /set changes it.
    let seed = *sampling.seed.get_or_insert(sampling.resolve().seed);
    let mut chat = Chat { answerer, template, system: args.system.clone(), lazy: args.lazy, history: Vec::new() };

    note(format_args!("{} · seed {seed} · /help lists the commands", chat.answerer.model.meta().model.name));
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
            Ok(Line::Clear) => chat.history.clear(),
            Ok(Line::System(text)) => chat.system = (!text.is_empty()).then(|| text.to_owned()),
            Ok(Line::Set(name, value)) => {
                if let Err(error) = sampling.set(name, value) {
                    note(format_args!("error: {error}"));
                }
            }
            Ok(Line::Quit) => return Ok(()),
            Ok(Line::Message(text)) => match chat.answer(text, &sampling.resolve(), args.n_predict) {
                Ok(()) => {}
                // The conversation can go on after most of what goes wrong: /clear, a shorter question.
                Err(CliError::Failed(error)) if !chat.answerer.model.is_broken() => {
                    note(format_args!("error: {error}"))
                }
                Err(failed @ CliError::Failed(_)) => return Err(failed),
                Err(CliError::OutputClosed) => return Err(CliError::OutputClosed),
            },
            Err(error) => note(format_args!("error: {error}")),
        }
    }
}

struct Chat<'m> {
    answerer: Answerer<'m>,
    template: ChatTemplate,
    system: Option<String>,
    /// Weights may still be on their way.
    lazy: bool,
    /// Turns of user and assistant, without the system message.
    history: Vec<Message>,
}

impl Chat<'_> {
    /// Answers on stdout and remembers both turns; if that fails, the history stays as it was.
    fn answer(&mut self, question: &str, sampling: &Sampling, max_tokens: Option<u32>) -> Result<(), CliError> {
        let question = Message::new("user", question);
        let system = self.system.clone().map(|content| Message::new("system", content));
        let messages: Vec<Message> =
            system.into_iter().chain(self.history.iter().cloned()).chain([question.clone()]).collect();
        let prompt = self.answerer.text.encode(&self.template.render(&messages)?)?;

        let mut stdout = io::stdout().lock();
        let mut within_line = false;
        let mut emit = |piece: &str| {
            within_line = true;
            stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::output)
        };
        let answered = self.answerer.answer(&prompt, sampling, max_tokens, &mut emit);
        if within_line {
            writeln!(stdout).map_err(CliError::output)?;
        }
        let answer = answered?;

        if let Some(rate) = answer.decode.tokens_per_s() {
            let kept = prompt.len() as u64 - answer.prefill.tokens;
            note(format_args!(
                "({} of {} prompt tokens were still in the cache; {} tokens, {rate:.2} tokens/s)",
                kept,
                prompt.len(),
                answer.tokens.len()
            ));
        }
        if let Some(first_token) = answer.first_token.filter(|_| self.history.is_empty() && self.lazy) {
            let resident = self.answerer.model.report().upload.map(|upload| upload.seconds_resident);
            note(format_args!("({})", begun(first_token.as_secs_f64(), resident)));
        }
        if answer.stop_reason == StopReason::ContextFull {
            note(format_args!(
                "(context is full: {} tokens; /clear begins anew)",
                self.answerer.model.context_tokens()
            ));
        }
        self.history.extend([question, Message::new("assistant", answer.text)]);
        Ok(())
    }
}

const HELP: &str = "\
/clear            forget the conversation
/system TEXT      set the system message; without TEXT, none
/set NAME VALUE   temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n, seed
/help             this list
/quit             end, as does Ctrl-D; Ctrl-C stops an answer";

/// What a line typed in a chat asks for.
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
            ("/help" | "/clear" | "/quit", _) => Err(format!("{command} stands alone, found {rest:?} behind it")),
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
