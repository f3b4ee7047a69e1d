//! Results on stdout, notes on stderr.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::error::CliError;

/// Prints text that ends its own lines.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::output)
}

/// Prints one JSON value on one line.
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let json = serde_json::to_string(value).expect("reports are plain data with text keys");
    print(&(json + "\n"))
}

/// Prints a line on stderr. Errors of stderr, such as a full disk behind a log, are ignored.
pub fn note(line: impl Display) {
    note_part(format_args!("{line}\n"));
}

/// The same without a line break.
pub fn note_part(text: impl Display) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}
