//! Results on stdout; notes and errors on stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;

use crate::error::CliError;
use crate::report::text::printable_lines;

/// How much is printed in addition to results and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Nothing.
    Quiet,
    /// Notes, progress, and a summary.
    Normal,
    /// Everything that was measured.
    Verbose,
}

/// Sets the verbosity of this process. The first call counts.
pub fn set_verbosity(verbosity: Verbosity) {
    let _ = VERBOSITY.set(verbosity);
}

/// The verbosity of this process.
pub fn verbosity() -> Verbosity {
    VERBOSITY.get().copied().unwrap_or(Verbosity::Normal)
}

static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

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

/// Prints a line on stderr, unless `--quiet` is given. Control characters of names in it are escaped. Errors of stderr, such as a full disk
/// behind a log, are ignored.
pub fn note(line: impl Display) {
    note_part(format_args!("{line}\n"));
}

/// The same without a line break.
pub fn note_part(text: impl Display) {
    if verbosity() != Verbosity::Quiet {
        write_stderr(printable_lines(&text.to_string()));
    }
}

/// Prints `error: …` on stderr, even with `--quiet`. Control characters of names in the message are escaped.
pub fn print_error(message: impl Display) {
    write_stderr(format_args!("error: {}\n", printable_lines(&message.to_string())));
}

/// A progress bar on stderr; hidden with `--quiet`, where stderr is not a terminal that moves its cursor, and with NO_COLOR, which
/// requests plain text.
pub fn progress_bar() -> ProgressBar {
    let is_set = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    let is_plain = is_set("NO_COLOR") || is_dumb || !io::stderr().is_terminal();
    let is_shown = verbosity() != Verbosity::Quiet && !is_plain;
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(None, target)
}

fn write_stderr(text: impl Display) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}
