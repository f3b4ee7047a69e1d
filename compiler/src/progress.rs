//! A progress bar per stage on a terminal, a plain line per stage otherwise; and what an interrupt removes.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use compiler::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Exit status after Ctrl-C, as shells count signals.
const INTERRUPTED: i32 = 130;

/// Shows stages on stderr. Ctrl-C removes the half-written artifact and ends the process.
pub struct Bars {
    quiet: bool,
    bar: Option<ProgressBar>,
    partial: Arc<Mutex<Option<PathBuf>>>,
}

impl Bars {
    pub fn new(quiet: bool) -> Bars {
        let partial: Arc<Mutex<Option<PathBuf>>> = Arc::default();
        let removed = Arc::clone(&partial);
        // Without a handler an interrupt would leave the temporary file; failing to set one changes nothing else.
        let handler = ctrlc::set_handler(move || {
            if let Ok(Some(path)) = removed.lock().as_deref() {
                let _ = std::fs::remove_file(path);
            }
            eprintln!("error: interrupted");
            std::process::exit(INTERRUPTED);
        });
        if let Err(error) = handler {
            eprintln!("warning: an interrupt may leave a temporary file: {error}");
        }
        Bars { quiet, bar: None, partial }
    }

    /// Ends the last stage's bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bars {
    fn stage(&mut self, name: &'static str, total: u64) {
        self.finish();
        if self.quiet {
            return;
        }
        if !std::io::stderr().is_terminal() {
            eprintln!("{name}");
            return;
        }
        let template = if total > u64::from(u16::MAX) {
            "{prefix:<8} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        } else {
            "{prefix:<8} {wide_bar} {pos}/{len}"
        };
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
        bar.set_prefix(name);
        self.bar = Some(bar);
    }

    fn advance(&mut self, amount: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(amount);
        }
    }

    fn partial(&mut self, path: Option<&Path>) {
        if let Ok(mut partial) = self.partial.lock() {
            *partial = path.map(Path::to_owned);
        }
    }
}
