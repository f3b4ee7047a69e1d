//! Lines typed at the prompt: editing, history across starts, completion, and keys that are not text.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::{Hint, Hinter};
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext, EventHandler, Helper,
    KeyEvent, RepeatCount,
};

use super::line::{Line, completions};
use super::saved;
use crate::error::CliError;
use crate::files::state_folder;
use crate::terminal::output::{note, print};

/// What the user typed at the prompt.
pub enum Typed {
    Line(String),
    /// Ctrl-G: the line so far, to be edited in an editor.
    Compose(String),
    /// Ctrl-C.
    Interrupt {
        /// There was nothing to discard.
        line_was_empty: bool,
    },
    /// Ctrl-D.
    End,
}

/// The prompt of a chat.
pub struct Input {
    editor: Editor<Assistance, FileHistory>,
    /// `None`: lines are not kept for the next start.
    history: Option<PathBuf>,
    pressed: Arc<Mutex<Option<Pressed>>>,
}

impl Input {
    /// A prompt with the lines of earlier chats, from the user's folder for state.
    ///
    /// # Errors
    /// When the terminal cannot be set up.
    pub fn new() -> Result<Input, CliError> {
        let config = Config::builder().completion_type(CompletionType::List).history_ignore_dups(true);
        let config = config.and_then(|config| config.max_history_size(MAX_HISTORY)).map_err(terminal)?.build();
        let mut editor = Editor::with_config(config).map_err(terminal)?;
        editor.set_helper(Some(Assistance));
        let pressed = Arc::new(Mutex::new(None));
        for (letter, key) in [('C', Key::Interrupt), ('G', Key::Compose)] {
            let handler = Handler { key, pressed: Arc::clone(&pressed) };
            editor.bind_sequence(KeyEvent::ctrl(letter), EventHandler::Conditional(Box::new(handler)));
        }
        let mut input = Input { editor, history: None, pressed };
        input.keep_history(true);
        Ok(input)
    }

    /// Whether lines are kept for the next start from now on.
    pub fn keep_history(&mut self, keep: bool) {
        self.history = None;
        if !keep {
            return;
        }
        match state_folder::create() {
            Ok(folder) => {
                let path = folder.join("history");
                // The first start has none.
                let _ = self.editor.load_history(&path);
                self.history = Some(path);
            }
            Err(error) => note(format_args!("lines are not kept for the next start: {error}")),
        }
    }

    /// Reads a line that begins with `initial`, which can be edited.
    ///
    /// # Errors
    /// When the terminal cannot be read.
    pub fn read(&mut self, initial: &str) -> Result<Typed, CliError> {
        *self.pressed.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let line = match self.editor.readline_with_initial("> ", (initial, "")) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                let typed = self.typed_until_interrupt();
                if matches!(typed, Typed::Interrupt { line_was_empty: true }) {
                    // The placeholder stays in an interrupted line.
                    print("\x1b[A\r\x1b[K> \n")?;
                }
                return Ok(typed);
            }
            Err(ReadlineError::Eof) => return Ok(Typed::End),
            Err(error) => return Err(terminal(error)),
        };
        self.remember(&line);
        Ok(Typed::Line(line))
    }

    /// What ended the line: Ctrl-C, or a key that is bound to the same.
    fn typed_until_interrupt(&self) -> Typed {
        match self.pressed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(Pressed { key: Key::Compose, line }) => Typed::Compose(line),
            Some(Pressed { key: Key::Interrupt, line }) => Typed::Interrupt { line_was_empty: line.trim().is_empty() },
            None => Typed::Interrupt { line_was_empty: true },
        }
    }

    fn remember(&mut self, line: &str) {
        let is_new = self.editor.add_history_entry(line).unwrap_or(false);
        if let Some(path) = self.history.as_ref().filter(|_| is_new)
            && let Err(error) = self.editor.append_history(path)
        {
            note(format_args!("lines are not kept for the next start: {}: {error}", path.display()));
            self.history = None;
        }
    }
}

/// Most lines that are kept.
const MAX_HISTORY: usize = 1000;

fn terminal(error: ReadlineError) -> CliError {
    CliError::new(format!("terminal cannot be read: {error}"))
}

#[derive(Clone, Copy)]
enum Key {
    Interrupt,
    Compose,
}

/// A key that ended the line, and the line.
struct Pressed {
    key: Key,
    line: String,
}

/// Records the line when its key is pressed, and ends it.
struct Handler {
    key: Key,
    pressed: Arc<Mutex<Option<Pressed>>>,
}

impl ConditionalEventHandler for Handler {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let pressed = Pressed { key: self.key, line: context.line().to_owned() };
        *self.pressed.lock().unwrap_or_else(PoisonError::into_inner) = Some(pressed);
        Some(Cmd::Interrupt)
    }
}

/// Completion and hints while a line is typed.
struct Assistance;

impl Helper for Assistance {}

impl Completer for Assistance {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completions(&line[..position], || saved::names().unwrap_or_default()))
    }
}

impl Validator for Assistance {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match Line::is_incomplete(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Hinter for Assistance {
    type Hint = Placeholder;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<Placeholder> {
        line.is_empty().then_some(Placeholder)
    }
}

impl Highlighter for Assistance {
    /// Dimmed; rustyline does not call it with NO_COLOR.
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[2m{hint}\x1b[0m"))
    }
}

/// Shown in an empty line.
struct Placeholder;

impl Hint for Placeholder {
    fn display(&self) -> &str {
        "Send a message (/? for help)"
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}
