//! Generated text on stdout, piece by piece.

use std::io::{self, IsTerminal, StdoutLock, Write};

use ratatui::crossterm::terminal;

use super::wrap::Wrapper;
use crate::error::CliError;

/// Writes text to stdout: as it is to a pipe or a file, wrapped at words on a terminal.
pub struct TextOutput {
    stdout: StdoutLock<'static>,
    /// `None`: stdout is no terminal.
    wrapper: Option<Wrapper>,
    breaks_lines: bool,
}

impl TextOutput {
    /// Locks stdout. Without `wordwrap`, breaking lines is left to the terminal.
    pub fn new(wordwrap: bool) -> TextOutput {
        let stdout = io::stdout().lock();
        let wrapper = stdout.is_terminal().then(Wrapper::default);
        TextOutput { stdout, wrapper, breaks_lines: wordwrap }
    }

    /// Writes a piece at once.
    ///
    /// # Errors
    /// As of stdout.
    pub fn write(&mut self, piece: &str) -> Result<(), CliError> {
        match &mut self.wrapper {
            None => self.put(piece),
            Some(wrapper) => {
                // Read for each piece: the window may have another size by now.
                let columns = terminal::size().map_or(usize::MAX, |(columns, _)| columns.into());
                // Narrower than this, wrapping at words makes text harder to read.
                let columns = if columns < 20 || !self.breaks_lines { usize::MAX } else { columns };
                let wrapped = wrapper.wrap(piece, columns);
                self.put(&wrapped)
            }
        }
    }

    /// Ends the text. On a terminal, what follows begins on a line of its own; a pipe gets the text as it is.
    ///
    /// # Errors
    /// As of stdout.
    pub fn end(mut self) -> Result<(), CliError> {
        let is_open = self.wrapper.as_ref().is_some_and(Wrapper::is_within_line);
        if is_open { self.put("\n") } else { Ok(()) }
    }

    fn put(&mut self, text: &str) -> Result<(), CliError> {
        self.stdout.write_all(text.as_bytes()).and_then(|()| self.stdout.flush()).map_err(CliError::output)
    }
}
