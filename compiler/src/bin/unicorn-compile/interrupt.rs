//! What an interrupt removes: Ctrl-C, a closed terminal and `kill` end a compile, and its half-written files with it.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use signal_hook::consts::{SIGABRT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// The half-written file or folder, while there is one.
#[derive(Clone, Default)]
pub struct Partial(Arc<Mutex<Option<PathBuf>>>);

impl Partial {
    /// From now on a signal that ends the process removes what [`Partial::set`] named last.
    pub fn removed_by_signals() -> Partial {
        let partial = Partial::default();
        // Without a handler an interrupt would leave the temporary file; failing to set one changes nothing else.
        if let Err(error) = partial.watch() {
            tell(format_args!("warning: an interrupt may leave a temporary file: {error}"));
        }
        partial
    }

    /// Replaces what an interrupt removes.
    pub fn set(&self, path: Option<&Path>) {
        if let Ok(mut partial) = self.0.lock() {
            *partial = path.map(Path::to_owned);
        }
    }

    /// Returns when signals are heeded.
    fn watch(&self) -> io::Result<()> {
        let ignored = ignored_signals();
        let heeded = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0);
        let (sender, begun) = mpsc::channel();
        let partial = self.clone();
        // The thread comes first: signals that are caught and reach nobody could not end the process.
        thread::Builder::new().spawn(move || match Signals::new(heeded) {
            Ok(signals) => {
                let _ = sender.send(Ok(()));
                partial.removed_by(signals);
            }
            Err(error) => drop(sender.send(Err(error))),
        })?;
        begun.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Ends the process at the first signal.
    fn removed_by(&self, mut signals: Signals) {
        let Some(signal) = signals.forever().next() else { return };
        // Held until the process is gone, so that no half-written file begins or gets its name meanwhile.
        let path = self.0.lock();
        if let Ok(Some(path)) = path.as_deref() {
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
        tell(format_args!("error: interrupted"));
        std::process::exit(SIGNALLED + signal);
    }
}

/// Memory that cannot be had makes the standard library say so and abort. From now on that ends the process as any error
/// does: with status 1 and no core.
pub fn fail_when_memory_runs_out() {
    // Without a handler the same line is there, with another status.
    let _ = flag::register_conditional_shutdown(SIGABRT, 1, Arc::new(AtomicBool::new(true)));
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
