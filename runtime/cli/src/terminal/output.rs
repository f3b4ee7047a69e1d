//! Results on stdout; notes and errors on stderr.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{PoisonError, RwLock};

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use unicorn_terminal::{columns, shows_bars, wrapped};

use crate::args::OutputArgs;
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

impl Verbosity {
    /// What the command line asks for.
    pub fn of(args: &OutputArgs) -> Verbosity {
        match (args.quiet, args.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }
}

/// Sets the verbosity of this process.
pub fn set_verbosity(verbosity: Verbosity) {
    *VERBOSITY.write().unwrap_or_else(PoisonError::into_inner) = verbosity;
}

/// The verbosity of this process.
pub fn verbosity() -> Verbosity {
    *VERBOSITY.read().unwrap_or_else(PoisonError::into_inner)
}

static VERBOSITY: RwLock<Verbosity> = RwLock::new(Verbosity::Normal);

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

/// Prints a line on stderr, unless `--quiet` is given. Control characters of names in it are escaped, and on a terminal it is broken at
/// the terminal's width. Errors of stderr, such as a full disk behind a log, are ignored.
pub fn note(line: impl Display) {
    if verbosity() != Verbosity::Quiet {
        write_line(line);
    }
}

/// The same without a line break, for a line that is written in parts.
pub fn note_part(text: impl Display) {
    if verbosity() != Verbosity::Quiet {
        write_stderr(printable_lines(&text.to_string()));
    }
}

/// Prints `error: …` on stderr as [`note`] does, even with `--quiet`.
pub fn print_error(message: impl Display) {
    write_line(format_args!("error: {message}"));
}

/// A progress bar on stderr; hidden with `--quiet`, where stderr is not a terminal that moves its cursor, and with NO_COLOR, which
/// requests plain text.
pub fn progress_bar() -> ProgressBar {
    let is_shown = verbosity() != Verbosity::Quiet && shows_bars();
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(None, target)
}

fn write_line(line: impl Display) {
    let line = printable_lines(&line.to_string());
    write_stderr(format_args!("{}\n", wrapped(&line, columns(io::stderr()))));
}

fn write_stderr(text: impl Display) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}
