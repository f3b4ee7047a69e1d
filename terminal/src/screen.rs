//! What a stream leads to: a terminal, its width, and whether it takes more than plain text.

use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Narrower terminals break lines themselves: broken lines would be harder to read.
const MIN_COLUMNS: usize = 20;

/// Width at which lines are broken: that of the terminal which `stream` leads to, or without limit where there is none, or a very
/// narrow one.
pub fn columns(stream: impl AsFd) -> usize {
    let columns = tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
    if columns < MIN_COLUMNS { usize::MAX } else { columns }
}

/// Whether stderr takes progress bars: it leads to a terminal that moves its cursor, and NO_COLOR, which requests plain text, is not
/// set.
pub fn shows_bars() -> bool {
    let wants_plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    io::stderr().is_terminal() && !wants_plain && !is_dumb
}
