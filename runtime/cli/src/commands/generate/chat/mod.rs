//! A conversation in the terminal, in the model's own chat template.
//!
//! ```text
//! input ──► line ──┬── message ──► answer: text on stdout, what became of the context on stderr
//! typed            └── command ──► settings, saved, show: what the command answers, on stdout
//! ```

mod answer;
mod input;
mod line;
mod saved;
mod settings;
mod show;

use std::path::Path;

use unicorn_text::{Chat, ChatOptions, ChatTemplate, Tokenizer};

use self::input::{Input, Typed};
use self::line::{Line, Setting};
use self::saved::Saved;
use self::settings::Settings;
use super::answer::Runner;
use crate::args::RunArgs;
use crate::error::CliError;
use crate::report::text::{printable, printable_lines};
use crate::terminal::output::{Verbosity, note, print, print_error, verbosity};
use crate::terminal::text::{columns, wrapped};
use crate::terminal::{editor, interrupt};

/// Reads lines until /bye or Ctrl-D. Ctrl-C ends an answer; its text so far stays in the history.
pub fn run(runner: Runner<'_>, tokenizer: Tokenizer, args: &RunArgs) -> Result<(), CliError> {
    let mut input = Input::new()?;
    let mut conversation = Conversation::new(runner, tokenizer, args)?;
    let name = printable(&conversation.runner.model.meta().model.name);
    note(format_args!("{name} · seed {} · /? lists the commands", conversation.settings.sampling().seed));
    // What stands in the next line already.
    let mut begun = String::new();
    loop {
        let line = match input.read(&std::mem::take(&mut begun))? {
            Typed::Line(line) => line,
            Typed::Compose(line) => {
                begun = editor::edit(&line).unwrap_or_else(|error| {
                    print_error(error);
                    line
                });
                continue;
            }
            Typed::Interrupt { line_was_empty } => {
                let edited = std::mem::take(&mut conversation.edits_question);
                if line_was_empty && !edited {
                    note("(/bye or Ctrl-D ends the chat)");
                }
                continue;
            }
            Typed::End => return Ok(()),
        };
        match conversation.take(&line, &mut input) {
            Ok(Next::Prompt) => {}
            Ok(Next::Edit(question)) => begun = question,
            Ok(Next::End) => return Ok(()),
            // The conversation can continue after most errors: /clear, a shorter question.
            Err(error @ CliError::Failed(_)) if !conversation.runner.model.is_broken() => {
                print_error(wrapped(&error.to_string(), "error: ".len()));
            }
            Err(error) => return Err(error),
        }
    }
}

/// What follows a line.
enum Next {
    Prompt,
    /// A prompt with this text in its line.
    Edit(String),
    End,
}

struct Conversation<'m> {
    runner: Runner<'m>,
    chat: Chat,
    settings: Settings,
    /// The next message replaces the last question.
    edits_question: bool,
}

impl<'m> Conversation<'m> {
    fn new(runner: Runner<'m>, tokenizer: Tokenizer, args: &RunArgs) -> Result<Conversation<'m>, CliError> {
        let mut options = ChatOptions::default();
        (options.system, options.max_tokens) = (args.system.clone(), args.n_predict);
        options.template_arguments = args.chat_template_kwargs.clone().unwrap_or_default();
        let template = ChatTemplate::new(runner.model.tokenizer_section(), runner.model.context_tokens())?;
        let mut chat = Chat::with_parsed(runner.model, tokenizer, template, options)?;
        chat.set_cancel(interrupt::token());
        chat.set_speculation(runner.speculation.as_ref())?;
        chat.set_feed_progress(Some(runner.prefill_progress()));
        let settings = Settings::new(args.sampling.clone(), verbosity() == Verbosity::Verbose);
        Ok(Conversation { runner, chat, settings, edits_question: false })
    }

    /// Carries out a line.
    fn take(&mut self, line: &str, input: &mut Input) -> Result<Next, CliError> {
        let edits_question = std::mem::take(&mut self.edits_question);
        let line = Line::parse(line, |path| Path::new(path).exists()).map_err(CliError::new)?;
        match line {
            Line::Nothing => {}
            Line::Message(text) if edits_question => self.ask_instead(Some(text))?,
            Line::Message(text) => self.ask(text)?,
            Line::Retry => {
                self.settings.retries += 1;
                if self.settings.sampling().temperature == 0.0 {
                    note("(temp is 0, which gives the same answer; /set temp 0.8 gives others)");
                }
                self.ask_instead(None)?;
            }
            Line::Edit => {
                self.edits_question = true;
                return self.last_question().map(|question| Next::Edit(line::as_message(question)));
            }
            Line::Bye => return Ok(Next::End),
            Line::Help(topic) => print(&line::help_text(topic, columns()))?,
            Line::Show(subject) => print(&show::show(subject, self.runner.model, &self.chat, &self.settings))?,
            Line::Clear => {
                self.chat.clear();
                answer_command("new conversation")?;
            }
            Line::System(text) => {
                self.chat.options_mut().system = (!text.is_empty()).then(|| text.to_owned());
                answer_command(if text.is_empty() { "no system message" } else { "system message is set" })?;
            }
            Line::Set(setting) => self.set(setting, input)?,
            Line::Think(mode) => {
                let mut options = self.chat.options().clone();
                let changed = settings::think(&mut options, mode, |name| self.chat.template().reads(name));
                answer_command(&changed.map_err(CliError::new)?)?;
                *self.chat.options_mut() = options;
            }
            Line::Save(name) => self.save(name)?,
            Line::Load(name) => self.load(name)?,
        }
        Ok(Next::Prompt)
    }

    fn ask(&mut self, question: &str) -> Result<(), CliError> {
        self.chat.options_mut().sampling = self.settings.sampling();
        answer::ask(&mut self.runner, &mut self.chat, question, &self.settings)
    }

    /// Asks `question`, or else the last one again, in place of the last one. With an error, the history stays as it was.
    fn ask_instead(&mut self, question: Option<&str>) -> Result<(), CliError> {
        let question = question.map_or_else(|| self.last_question().map(str::to_owned), |text| Ok(text.to_owned()))?;
        let history = self.chat.history().to_vec();
        self.chat.take_last_question();
        let asked = self.ask(&question);
        if asked.is_err() {
            self.chat.set_history(history);
        }
        asked
    }

    fn last_question(&self) -> Result<&str, CliError> {
        let mut questions = self.chat.history().iter().filter(|message| message.role == "user");
        questions
            .next_back()
            .map(|question| question.content.as_str())
            .ok_or_else(|| CliError::new("nothing was asked yet"))
    }

    fn set(&mut self, setting: Setting<'_>, input: &mut Input) -> Result<(), CliError> {
        let answer = match setting {
            Setting::Parameter(name, value) => {
                self.settings.set(self.chat.options_mut(), name, value).map_err(CliError::new)?
            }
            Setting::History(keep) => {
                input.keep_history(keep);
                format!("lines are {}kept for the next start", if keep { "" } else { "not " })
            }
            Setting::Verbose(verbose) => {
                self.settings.verbose = verbose;
                format!("{} follow an answer", if verbose { "figures" } else { "no figures" })
            }
            Setting::Wordwrap(wordwrap) => {
                self.settings.wordwrap = wordwrap;
                format!("answers are {}wrapped between words", if wordwrap { "" } else { "not " })
            }
        };
        answer_command(&answer)
    }

    fn save(&self, name: &str) -> Result<(), CliError> {
        let (model, system) = (&self.runner.model.meta().model.name, self.chat.options().system.as_deref());
        let path = saved::save(name, &Saved::new(model, system, self.chat.history()))?;
        answer_command(&format!("saved: {}; /load {name} continues it", path.display()))
    }

    fn load(&mut self, name: Option<&str>) -> Result<(), CliError> {
        let Some(name) = name else {
            let names = saved::names()?;
            return answer_command(&match names.is_empty() {
                true => "no conversation is saved; /save NAME saves this one".to_owned(),
                false => names.join("\n"),
            });
        };
        let saved = saved::load(name)?;
        self.chat.set_history(saved.history());
        self.chat.options_mut().system.clone_from(&saved.system);
        answer_command(&show::loaded(name, &saved.model, &self.chat))
    }
}

/// Prints what a command did, without control characters: files and models may hold any.
fn answer_command(text: &str) -> Result<(), CliError> {
    print(&(wrapped(&printable_lines(text), 0) + "\n"))
}
