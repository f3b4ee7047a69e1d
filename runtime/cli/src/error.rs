//! How a command ends when it does not end well.

use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::memory_limit;
use unicorn_runtime::{LoadError, RunError};
use unicorn_serve::ServeError;
use unicorn_text::TextError;

#[derive(Debug)]
pub enum CliError {
    /// One message for the person at the terminal, without a leading `error:`.
    Failed(String),
    /// Whoever read our stdout has gone: nobody is left to tell.
    OutputClosed,
}

impl CliError {
    pub fn new(message: impl Display) -> CliError {
        CliError::Failed(message.to_string())
    }

    /// For an operation on a file: the path, then what went wrong.
    pub fn at(path: &Path, error: impl Display) -> CliError {
        CliError::Failed(format!("{}: {error}", path.display()))
    }

    /// For a write to stdout.
    pub fn output(error: io::Error) -> CliError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::OutputClosed,
            _ => CliError::Failed(format!("stdout does not take the output: {error}")),
        }
    }
}

impl From<LoadError> for CliError {
    fn from(error: LoadError) -> CliError {
        CliError::Failed(memory_limit::explain_load(&error))
    }
}

impl From<TextError> for CliError {
    fn from(error: TextError) -> CliError {
        match error {
            TextError::NoTokenizer => CliError::new(format!("{error}; `logits` and `bench` work without")),
            TextError::NoChatTemplate => CliError::new(format!("{error}; -p continues a plain prompt")),
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

impl From<&RunError> for CliError {
    fn from(error: &RunError) -> CliError {
        CliError::Failed(memory_limit::explain_run(error))
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> CliError {
        (&error).into()
    }
}
