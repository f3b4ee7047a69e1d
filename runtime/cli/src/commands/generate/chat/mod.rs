//! A conversation in the terminal, in the model's own chat template.
//!
//! ```text
//! input ──► line ──┬── message ──► answer: text on stdout, notes on the context on stderr
//! typed            └── command ──► settings, saved, show: what the command answers, on stdout
//! ```

mod answer;
mod input;
mod line;
mod saved;
mod settings;
mod show;
mod source;

use std::io;
use std::path::Path;

use unicorn_runtime::Image;
use unicorn_structure::Structure;
use unicorn_terminal::{columns, wrapped};
use unicorn_text::{Chat, ChatOptions, ChatTemplate, Message, Picture};

use self::input::{Input, Typed};
use self::line::{Line, Setting};
use self::saved::Saved;
use self::settings::{Format, Settings};
pub use self::source::Source;
use super::answer::Runner;
use super::images;
use super::loaded::{self, Loaded};
use crate::args::{ListArgs, RunArgs};
use crate::commands::store;
use crate::error::CliError;
use crate::report::text::{printable, printable_lines};
use crate::terminal::output::{Verbosity, note, print, print_error, verbosity};
use crate::terminal::{editor, interrupt};

/// Reads lines until /bye or Ctrl-D. Ctrl-C ends an answer; its text so far stays in the history. `loaded` is the model in which the chat
/// begins, and then the one in which it ends.
pub fn run(
    loaded: &mut Option<Loaded>,
    mut source: Source,
    structure: Option<Structure>,
    args: &RunArgs,
    pictures: &[Picture],
) -> Result<(), CliError> {
    let mut input = Input::new()?;
    let first = &loaded::current(loaded).model;
    let mut kept = Kept { images: images::encoded(first, pictures)?, ..Kept::new(structure, args) };
    let name = printable(&first.meta().model.name);
    note(format_args!("{name} · seed {} · /? lists the commands", kept.settings.sampling().seed));
    loop {
        let mut conversation = Conversation::new(loaded::current(loaded), &source, args, kept)?;
        let Some(change) = conversation.talk(&mut input)? else { return Ok(()) };
        kept = conversation.into_kept();
        let mut next = kept.clone();
        if change.is_new_conversation {
            next.history.clear();
        }
        // Images belong to the model that made their rows.
        next.images.clear();
        next.history = next.history.into_iter().map(|message| Message::new(&message.role, message.text())).collect();
        // Two models may not fit the memory.
        *loaded = None;
        match open(&change.source, args, &next) {
            Ok(opened) => {
                *loaded = Some(opened);
                (source, kept) = (change.source, next);
                answer_command(&change.answer)?;
            }
            Err(error @ CliError::Failed(_)) => {
                print_error(error);
                *loaded = Some(Loaded::open(&source.artifact, source.context_tokens, args)?);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Loads a model with which the chat can continue: its tokens can match the format of answers.
fn open(source: &Source, args: &RunArgs, kept: &Kept) -> Result<Loaded, CliError> {
    let loaded = Loaded::open(&source.artifact, source.context_tokens, args)?;
    Conversation::new(&loaded, source, args, kept.clone())?;
    Ok(loaded)
}

/// State that stays when another model is loaded.
#[derive(Clone)]
struct Kept {
    settings: Settings,
    options: ChatOptions,
    history: Vec<Message>,
    /// What the next message is about.
    images: Vec<Image>,
}

impl Kept {
    fn new(structure: Option<Structure>, args: &RunArgs) -> Kept {
        let mut options = ChatOptions::default();
        (options.system, options.max_tokens) = (args.system.clone(), args.n_predict);
        options.template_arguments = args.chat_template_kwargs.clone().unwrap_or_default();
        let settings = Settings::new(args.sampling.clone(), structure, verbosity() == Verbosity::Verbose);
        Kept { settings, options, history: Vec::new(), images: Vec::new() }
    }
}

/// A model to load instead.
struct Change {
    source: Source,
    is_new_conversation: bool,
    /// What the command answers once it is loaded.
    answer: String,
}

/// What happens after a line.
enum Next {
    Prompt,
    /// A prompt with this text in its line.
    Edit(String),
    Change(Change),
    End,
}

struct Conversation<'m> {
    loaded: &'m Loaded,
    source: &'m Source,
    args: &'m RunArgs,
    runner: Runner<'m>,
    chat: Chat,
    settings: Settings,
    /// The next message replaces the last question.
    edits_question: bool,
    /// What the next message is about.
    images: Vec<Image>,
}

impl<'m> Conversation<'m> {
    fn new(
        loaded: &'m Loaded,
        source: &'m Source,
        args: &'m RunArgs,
        kept: Kept,
    ) -> Result<Conversation<'m>, CliError> {
        let Loaded { model, tokenizer, speculation, .. } = loaded;
        let runner = Runner::new(loaded);
        let template = ChatTemplate::new(model.tokenizer_section(), model.context_tokens())?;
        let mut chat = Chat::with_parsed(model, tokenizer.clone(), template, kept.options)?;
        chat.set_history(kept.history);
        chat.set_cancel(interrupt::token());
        chat.set_speculation(speculation.as_ref())?;
        chat.set_feed_progress(Some(runner.prefill_progress()));
        let settings = Settings { context_tokens: model.context_tokens(), ..kept.settings };
        let (edits_question, images) = (false, kept.images);
        let mut conversation = Conversation { loaded, source, args, runner, chat, settings, edits_question, images };
        let format = conversation.settings.format.clone();
        conversation.constrain(format)?;
        Ok(conversation)
    }

    fn into_kept(self) -> Kept {
        let (options, history) = (self.chat.options().clone(), self.chat.history().to_vec());
        Kept { settings: self.settings, options, history, images: self.images }
    }

    /// Reads lines until the chat ends, or continues with another model.
    fn talk(&mut self, input: &mut Input) -> Result<Option<Change>, CliError> {
        // Text that is in the next line already.
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
                    let edited = std::mem::take(&mut self.edits_question);
                    if line_was_empty && !edited {
                        note("(/bye or Ctrl-D ends the chat)");
                    }
                    continue;
                }
                Typed::End => return Ok(None),
            };
            match self.take(&line, input) {
                Ok(Next::Prompt) => {}
                Ok(Next::Edit(question)) => begun = question,
                Ok(Next::Change(change)) => return Ok(Some(change)),
                Ok(Next::End) => return Ok(None),
                // The conversation can continue after most errors: /clear, a shorter question.
                Err(error @ CliError::Failed(_)) if !self.runner.model.is_broken() => {
                    print_error(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Executes a line.
    fn take(&mut self, line: &str, input: &mut Input) -> Result<Next, CliError> {
        let edits_question = std::mem::take(&mut self.edits_question);
        let line = Line::parse(line, |path| Path::new(path).exists()).map_err(CliError::new)?;
        match line {
            Line::Nothing => {}
            Line::Message(text) if edits_question => self.ask_instead(Some(text))?,
            Line::Message(text) => {
                let (text, images) = self.with_images(text)?;
                self.ask(&text, images)?;
            }
            Line::Retry => {
                self.settings.retries += 1;
                if self.settings.sampling().temperature == 0.0 {
                    note("(temp is 0, which gives the same answer; /set temp 0.8 gives others)");
                }
                self.ask_instead(None)?;
            }
            Line::Edit => {
                self.edits_question = true;
                return self.last_question().map(|question| Next::Edit(line::as_message(&question.text())));
            }
            Line::Bye => return Ok(Next::End),
            Line::Help(topic) => print(&line::help_text(topic, columns(io::stdout())))?,
            Line::Show(subject) => {
                print(&show::show(subject, self.runner.model, self.source, &self.chat, &self.settings))?;
            }
            Line::List => store::list(&ListArgs { json: false })?,
            Line::Clear => {
                self.chat.clear();
                answer_command("new conversation")?;
            }
            Line::System(text) => {
                self.chat.options_mut().system = (!text.is_empty()).then(|| text.to_owned());
                answer_command(if text.is_empty() { "no system message" } else { "system message is set" })?;
            }
            Line::Set(Setting::Parameter(name, value)) if line::parameter_name(name) == "ctx" => {
                return self.with_context(value).map(Next::Change);
            }
            Line::Set(Setting::Parameter(name, value)) if line::parameter_name(name) == "format" => {
                self.constrain(Format::parse(value).map_err(CliError::new)?)?;
                answer_command(&format!("format is {value}"))?;
            }
            Line::Set(setting) => self.set(setting, input)?,
            Line::Think(mode) => {
                let mut options = self.chat.options().clone();
                let template = self.chat.template();
                let (switch, reads_effort) = (template.reasoning_switch(), template.reads(settings::EFFORT));
                let changed = settings::think(&mut options, mode, switch, reads_effort);
                answer_command(&changed.map_err(CliError::new)?)?;
                *self.chat.options_mut() = options;
            }
            Line::Save(name) => self.save(name)?,
            Line::Load(None) => self.list_saved()?,
            Line::Load(Some(name)) => return self.load(name),
        }
        Ok(Next::Prompt)
    }

    fn ask(&mut self, question: &str, images: Vec<Image>) -> Result<(), CliError> {
        self.chat.options_mut().sampling = self.settings.sampling();
        answer::ask(&mut self.runner, &mut self.chat, (question, images), &self.settings)
    }

    /// A message, and what it is about: the images that are waiting for one, and those whose files it names.
    fn with_images(&mut self, message: &str) -> Result<(String, Vec<Image>), CliError> {
        if self.loaded.model.image().is_none() {
            return Ok((message.to_owned(), Vec::new()));
        }
        let (paths, text) = images::named_in(message, Path::is_file);
        let pictures = images::read(&paths)?;
        let mut images = std::mem::take(&mut self.images);
        images.extend(images::encoded(&self.loaded.model, &pictures)?);
        paths.iter().for_each(|path| note(format_args!("({} is added)", path.display())));
        Ok((text, images))
    }

    /// Asks `question`, or else the last one again, in place of the last one. With an error, the history stays as it was.
    fn ask_instead(&mut self, question: Option<&str>) -> Result<(), CliError> {
        let last = self.last_question()?.clone();
        let (question, images) = match question {
            None => (last.text(), last.images),
            Some(text) => {
                let (text, images) = self.with_images(text)?;
                (text, last.images.into_iter().chain(images).collect())
            }
        };
        let history = self.chat.history().to_vec();
        self.chat.take_last_question();
        let asked = self.ask(&question, images);
        if asked.is_err() {
            self.chat.set_history(history);
        }
        asked
    }

    fn last_question(&self) -> Result<&Message, CliError> {
        let mut questions = self.chat.history().iter().filter(|message| message.role == "user");
        questions.next_back().ok_or_else(|| CliError::new("nothing was asked yet"))
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

    fn list_saved(&self) -> Result<(), CliError> {
        let names = saved::names()?;
        answer_command(&match names.is_empty() {
            true => "no conversation is saved; /save NAME saves this one".to_owned(),
            false => names.join("\n"),
        })
    }

    /// Continues the conversation that is saved as `name`, or changes to the model at `name`.
    fn load(&mut self, name: &str) -> Result<Next, CliError> {
        if !saved::exists(name) && source::may_be_model(name) {
            let source = Source::of(Path::new(name), None, &self.args.load)?;
            let answer = format!("{name} is loaded; new conversation");
            return Ok(Next::Change(Change { source, is_new_conversation: true, answer }));
        }
        let saved = saved::load(name)?;
        self.chat.set_history(saved.history());
        self.chat.options_mut().system.clone_from(&saved.system);
        answer_command(&show::loaded(name, &saved.model, &self.chat))?;
        Ok(Next::Prompt)
    }

    /// The same model with another context.
    fn with_context(&self, value: &str) -> Result<Change, CliError> {
        let context_tokens = settings::context(value, self.runner.model).map_err(CliError::new)?;
        let source = Source { context_tokens: Some(context_tokens), ..self.source.clone() };
        Ok(Change { source, is_new_conversation: false, answer: format!("ctx is {context_tokens}") })
    }

    /// Makes answers match `format`. After an error, the earlier format applies.
    fn constrain(&mut self, format: Format) -> Result<(), CliError> {
        let structure = format.structure.as_ref();
        let constraint = structure.map(|structure| self.loaded.constraint(structure)).transpose()?;
        self.chat.options_mut().constraint = constraint;
        self.settings.format = format;
        Ok(())
    }
}

/// Prints what a command did, without control characters: files and models may contain any.
fn answer_command(text: &str) -> Result<(), CliError> {
    print(&(wrapped(&printable_lines(text), columns(io::stdout())) + "\n"))
}
