//! What goes to stdout as a whole, and what is told on stderr.

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

/// Tells the person at the terminal a line on stderr. A stderr that takes nothing (a log on a full disk) stops nothing.
pub fn note(line: impl Display) {
    tell(format_args!("{line}\n"));
}

/// The same without an end of the line.
pub fn tell(text: impl Display) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}
