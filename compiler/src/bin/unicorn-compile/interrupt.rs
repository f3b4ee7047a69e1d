//! What an interrupt removes: Ctrl-C, a closed terminal and `kill` end a compile, and its half-written files with it.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use signal_hook::consts::{SIGABRT, SIGBUS, SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use unicorn_artifact::{map, printable};
use unicorn_compiler::TRIAL_THREAD;

/// The half-written file or folder, while there is one.
#[derive(Clone, Default)]
pub struct Partial(Arc<Mutex<Option<PathBuf>>>);

impl Partial {
    /// From now on a signal that ends the process removes the path that [`Partial::set`] received last.
    pub fn removed_by_signals() -> Partial {
        let partial = Partial::default();
        // Without a handler an interrupt would leave the temporary file; failing to set one changes nothing else.
        if let Err(error) = partial.watch() {
            tell(format_args!("warning: an interrupt may leave a temporary file: {error}"));
        }
        partial
    }

    /// Sets the path that an interrupt removes.
    pub fn set(&self, path: Option<&Path>) {
        if let Ok(mut partial) = self.0.lock() {
            *partial = path.map(Path::to_owned);
        }
    }

    /// Returns when signals are handled.
    fn watch(&self) -> io::Result<()> {
        let ignored = ignored_signals();
        let heeded =
            [SIGINT, SIGTERM, SIGHUP, SIGBUS].into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0);
        let (sender, begun) = mpsc::channel();
        let partial = self.clone();
        map::release_sigbus();
        // The thread comes first: signals that are caught and reach no thread could not end the process.
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
        // Held until the process has ended, so that no half-written file begins or gets its name meanwhile.
        let path = self.0.lock();
        if let Ok(Some(path)) = path.as_deref() {
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
        if signal == SIGBUS {
            // The thread that read after a file's end repeats this until the process has ended.
            tell(format_args!("error: {}", unreadable_file()));
            std::process::exit(1);
        }
        tell(format_args!("error: interrupted"));
        std::process::exit(SIGNALLED + signal);
    }
}

/// Why a mapped file could not be read: the first that is shorter than what is mapped of it.
fn unreadable_file() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    match maps.lines().filter_map(mapped_file).find(|(path, end)| file_bytes(path).is_some_and(|bytes| bytes < *end)) {
        Some((path, _)) => {
            format!(
                "{}: file was cut while it was read; nothing was written, start again when it is whole",
                printable(&path)
            )
        }
        None => "a file or its disk could not be read any more; nothing was written".into(),
    }
}

/// Path and last page of a line of `/proc/self/maps`: `from-to rwxp offset dev inode path`. The name of a deleted file is followed
/// by ` (deleted)`.
fn mapped_file(line: &str) -> Option<(String, u64)> {
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let offset = hexadecimal(words.nth(1)?)?;
    let path = words.nth(2)?.trim_start();
    // The last page of a whole file begins before its end.
    const PAGE_BYTES: u64 = 4096;
    let end = (offset + hexadecimal(to)? - hexadecimal(from)?).checked_sub(PAGE_BYTES)? + 1;
    path.starts_with('/').then(|| (path.replace("\\012", "\n"), end))
}

fn file_bytes(path: &str) -> Option<u64> {
    std::fs::metadata(path).ok().filter(|found| found.is_file()).map(|found| found.len())
}

/// When memory is exhausted, the standard library prints an error and aborts. From now on it ends the process as any error
/// does: with status 1 and no core.
pub fn fail_when_memory_runs_out() {
    // Without a handler the same line is printed, with another status.
    let _ = flag::register_conditional_shutdown(SIGABRT, 1, Arc::new(AtomicBool::new(true)));
}

/// From now on a panic while a model's tokenizer is tried is an error of the compile and nothing else on stderr.
pub fn leave_out_panics_of_trials() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |found| {
        if thread::current().name() != Some(TRIAL_THREAD) {
            tell(found);
        }
    }));
}

/// Prints a line to stderr, if it can be written.
fn tell(line: Arguments) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Offset that shells add to a signal's number for the status of a process that it ended.
const SIGNALLED: i32 = 128;

/// Signals that the parent process ignores, as `nohup` does with the closing of the terminal: a bit each, the first
/// for signal 1. None, where the kernel does not report them.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
