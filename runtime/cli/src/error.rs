//! Errors of commands. Here the errors of libraries get the names of options and commands that help.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;

use crate::explain;
use crate::report::text::printable;
use unicorn_registry::RegistryError;
use unicorn_runtime::{LoadError, RunError};
use unicorn_serve::ServeError;
use unicorn_text::TextError;

#[derive(Debug)]
pub enum CliError {
    /// The message to print, without a leading `error:`.
    Failed(String),
    /// The reader of stdout has closed it: nothing more is printed.
    OutputClosed,
    /// Ctrl-C ended the work.
    Interrupted,
    /// Another process did the work, printed what there was to print, and ended with this code.
    Ended(u8),
}

impl CliError {
    pub fn new(message: impl Display) -> CliError {
        CliError::Failed(message.to_string())
    }

    /// An error of an operation on a file: the path, then the cause.
    pub fn at(path: &Path, error: impl Display) -> CliError {
        CliError::Failed(format!("{}: {error}", printable(&path.display().to_string())))
    }

    /// An error of a write to stdout.
    pub fn output(error: io::Error) -> CliError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::OutputClosed,
            _ => CliError::Failed(format!("cannot write to stdout: {error}")),
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CliError::Failed(message) => message,
            CliError::OutputClosed => "stdout is closed",
            CliError::Interrupted => "interrupted",
            CliError::Ended(_) => "ended in another process",
        })
    }
}

impl From<LoadError> for CliError {
    fn from(error: LoadError) -> CliError {
        CliError::Failed(explain::load_error(&error))
    }
}

impl From<TextError> for CliError {
    fn from(error: TextError) -> CliError {
        match error {
            TextError::NoTokenizer => CliError::new(format!("{error}; `logits` and `bench` work without")),
            TextError::NoChatTemplate => CliError::new(format!(
                "{error}; --raw continues a text, as in: unicorn-run MODEL --raw -p \"Once upon a time\""
            )),
            TextError::Run(error) => error.into(),
            error => CliError::new(error),
        }
    }
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> CliError {
        match error {
            ServeError::Text(error) => error.into(),
            ServeError::Run(error) => error.into(),
            error => CliError::new(error),
        }
    }
}

impl From<RegistryError> for CliError {
    fn from(error: RegistryError) -> CliError {
        CliError::Failed(explain::registry_error(&error))
    }
}

impl From<&RunError> for CliError {
    fn from(error: &RunError) -> CliError {
        CliError::Failed(explain::run_error(error))
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> CliError {
        (&error).into()
    }
}
