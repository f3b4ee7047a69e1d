//! A progress bar that appears only if the work takes a while.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::progress_bar;

/// Shorter work has no bar.
const DELAY: Duration = Duration::from_millis(500);

/// A bar on stderr that appears half a second after it was made and is cleared when it is dropped.
pub struct LateBar {
    bar: ProgressBar,
    /// Ends the thread that waits to show the bar; `None`: there is none, and no bar.
    waiting: Option<(Sender<()>, JoinHandle<()>)>,
}

impl LateBar {
    /// A bar with a template of indicatif.
    ///
    /// # Panics
    /// If the template has an error.
    pub fn new(template: &str) -> LateBar {
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        let bar = progress_bar().with_style(style);
        // Hidden anyway: stderr is no terminal, or the user requested quiet.
        let waiting = if bar.is_hidden() { None } else { show_later(&bar) };
        LateBar { bar, waiting }
    }

    /// A handle for another thread or a callback.
    pub fn handle(&self) -> ProgressBar {
        self.bar.clone()
    }
}

fn show_later(bar: &ProgressBar) -> Option<(Sender<()>, JoinHandle<()>)> {
    bar.set_draw_target(ProgressDrawTarget::hidden());
    let (ended, is_ended) = mpsc::channel();
    let bar = bar.clone();
    let show = move || {
        if is_ended.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
        }
    };
    // Without a thread, there is no bar.
    let thread = thread::Builder::new().name("progress".into()).spawn(show).ok()?;
    Some((ended, thread))
}

impl Drop for LateBar {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.waiting.take() {
            drop(ended);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
