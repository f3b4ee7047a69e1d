//! Generated text on stdout, piece by piece.

use std::io::{self, IsTerminal, StdoutLock, Write};

use unicorn_terminal::columns;

use super::wrap::Wrapper;
use crate::error::CliError;

/// Writes text to stdout: unchanged to a pipe or a file, wrapped at words on a terminal. What follows begins on a line of its own.
pub struct TextOutput {
    stdout: StdoutLock<'static>,
    /// `None`: stdout is no terminal.
    wrapper: Option<Wrapper>,
    breaks_lines: bool,
    /// Whether the last line that was written has no break yet.
    is_within_line: bool,
}

impl TextOutput {
    /// Locks stdout. Without `wordwrap`, breaking lines is left to the terminal.
    pub fn new(wordwrap: bool) -> TextOutput {
        let stdout = io::stdout().lock();
        let wrapper = stdout.is_terminal().then(Wrapper::default);
        TextOutput { stdout, wrapper, breaks_lines: wordwrap, is_within_line: false }
    }

    /// Writes a piece at once.
    ///
    /// # Errors
    /// Errors of writing to stdout.
    pub fn write(&mut self, piece: &str) -> Result<(), CliError> {
        match &mut self.wrapper {
            None => self.put(piece),
            Some(wrapper) => {
                // Read for each piece: the window may have another size by now.
                let columns = if self.breaks_lines { columns(io::stdout()) } else { usize::MAX };
                let wrapped = wrapper.wrap(piece, columns);
                self.put(&wrapped)
            }
        }
    }

    /// Ends the text, and the line that it left open.
    ///
    /// # Errors
    /// Errors of writing to stdout.
    pub fn end(mut self) -> Result<(), CliError> {
        if self.is_within_line { self.put("\n") } else { Ok(()) }
    }

    fn put(&mut self, text: &str) -> Result<(), CliError> {
        if !text.is_empty() {
            self.is_within_line = !text.ends_with('\n');
        }
        self.stdout.write_all(text.as_bytes()).and_then(|()| self.stdout.flush()).map_err(CliError::output)
    }
}
