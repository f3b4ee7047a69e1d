//! What an interrupt removes: Ctrl-C, a closed terminal and `kill` end a compile, and its half-written files with it.

use std::fmt::Arguments;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The half-written file or folder, while there is one.
#[derive(Clone, Default)]
pub struct Partial(Arc<Mutex<Option<PathBuf>>>);

impl Partial {
    /// From now on a signal that ends the process removes what [`Partial::set`] named last.
    pub fn removed_by_signals() -> Partial {
        let partial = Partial::default();
        let ignored = ignored_signals();
        let heeded = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        // Without a handler an interrupt would leave the temporary file; failing to set one changes nothing else.
        match Signals::new(heeded) {
            Ok(signals) => partial.watch(signals),
            Err(error) => tell(format_args!("warning: an interrupt may leave a temporary file: {error}")),
        }
        partial
    }

    /// Replaces what an interrupt removes.
    pub fn set(&self, path: Option<&Path>) {
        if let Ok(mut partial) = self.0.lock() {
            *partial = path.map(Path::to_owned);
        }
    }

    fn watch(&self, mut signals: Signals) {
        let partial = self.clone();
        std::thread::spawn(move || {
            let Some(signal) = signals.forever().next() else { return };
            // Held until the process is gone, so that no half-written file begins or gets its name meanwhile.
            let path = partial.0.lock();
            if let Ok(Some(path)) = path.as_deref() {
                let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            }
            tell(format_args!("error: interrupted"));
            std::process::exit(SIGNALLED + signal);
        });
    }
}

/// A line on stderr, if it takes one.
fn tell(line: Arguments) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What shells add to a signal's number for the status of a process that it ended.
const SIGNALLED: i32 = 128;

/// Signals that whoever started us wants ignored, as `nohup` does with the closing of the terminal: a bit each, the first
/// for signal 1. None, where the kernel does not tell.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
