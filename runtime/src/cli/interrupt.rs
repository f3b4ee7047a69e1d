//! Ctrl-C stops an answer, not the program; pressed again before anyone noticed, it ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

use super::error::CliError;

/// From now on, Ctrl-C is a flag that [`pressed`] reads. Called once the model is loaded: until then, Ctrl-C ends the
/// program at once.
pub fn catch() -> Result<(), CliError> {
    let on_press = || {
        if PRESSED.swap(true, Ordering::Relaxed) {
            std::process::exit(EXIT_INTERRUPTED);
        }
    };
    ctrlc::set_handler(on_press).map_err(|error| CliError::new(format!("Ctrl-C cannot be caught: {error}")))
}

/// Whether Ctrl-C was pressed since the last call.
pub fn pressed() -> bool {
    PRESSED.swap(false, Ordering::Relaxed)
}

static PRESSED: AtomicBool = AtomicBool::new(false);

/// What shells report for a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;
