//! Generated text on stdout, piece by piece.

use std::io::{self, IsTerminal, StdoutLock, Write};

use ratatui::crossterm::terminal;
use unicode_width::UnicodeWidthStr;

use super::wrap::Wrapper;
use crate::error::CliError;

/// Width at which lines are broken: the terminal's, or without limit where there is none, or one so narrow that broken lines are harder
/// to read.
pub fn columns() -> usize {
    let columns = terminal::size().map_or(usize::MAX, |(columns, _)| columns.into());
    if columns < 20 { usize::MAX } else { columns }
}

/// `text`, which is not on the terminal yet, with its lines broken between words. `indent` columns precede it.
pub fn wrapped(text: &str, indent: usize) -> String {
    let columns = columns();
    let line = |(number, line): (usize, &str)| broken(line, columns, if number == 0 { indent } else { 0 });
    text.split('\n').enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// One line as several of less than `columns` columns each, where no word is longer; `indent` columns precede it.
pub fn broken(line: &str, columns: usize, indent: usize) -> String {
    let (mut written, mut column) = (String::with_capacity(line.len()), indent);
    for word in line.split_inclusive(' ') {
        let width = word.trim_end().width();
        if column > 0 && column + width >= columns {
            written.truncate(written.trim_end().len());
            written.push('\n');
            column = 0;
        }
        written += word;
        column += word.width();
    }
    written
}

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
                let columns = if self.breaks_lines { columns() } else { usize::MAX };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(broken("one two three", 9, 0), "one two\nthree");
        assert_eq!(broken("one two three", 9, 4), "one\ntwo\nthree");
        assert_eq!(broken("  indented  text", 100, 0), "  indented  text");
        assert_eq!(broken("日本語 日本語", 10, 0), "日本語\n日本語");
    }
}
