//! What goes to stdout as a whole.

use std::io::{self, Write};

use serde::Serialize;

use super::error::CliError;

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
