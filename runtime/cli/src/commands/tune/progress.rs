//! One progress bar for a whole tuning, with an estimate of the time left. Ctrl-C ends the current measurement.

use std::ops::ControlFlow;

use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use unicorn_runtime::CancelToken;

use crate::terminal::interrupt;
use crate::terminal::output::progress_bar;

/// Positions of the bar in one phase: how many rounds a phase has is known when it begins.
const PHASE: u64 = 1000;

/// Phases are the measurements of one version of a program's kernels, or of its whole steps.
pub struct Progress {
    bar: ProgressBar,
    begin: Instant,
    /// Number of phases that have begun.
    phases: u64,
    cancel: CancelToken,
}

impl Progress {
    pub fn new(phases: u32) -> Progress {
        // What is timed comes last: a narrow terminal cuts it off, and not the time left.
        let style = "tuning {bar:16} {percent:>3} %{prefix}, {msg}";
        let bar = progress_bar().with_style(ProgressStyle::with_template(style).expect("the template is a constant"));
        bar.set_length(PHASE * u64::from(phases));
        Progress { bar, begin: Instant::now(), phases: 0, cancel: interrupt::token() }
    }

    /// Begins the next phase.
    pub fn begin(&mut self, what: String) {
        self.bar.set_message(what);
        self.bar.set_position(PHASE * self.phases);
        self.phases += 1;
    }

    /// Reports that `done` of `all` rounds of the phase are done.
    pub fn at(&self, done: u32, all: u32) -> ControlFlow<()> {
        let before = PHASE * self.phases.saturating_sub(1);
        let position = before + PHASE * u64::from(done) / u64::from(all.max(1));
        if let Some(left) = time_left(self.begin.elapsed(), position, self.bar.length().unwrap_or_default()) {
            self.bar.set_prefix(format!(", about {} left", HumanDuration(left)));
        }
        self.bar.set_position(position);
        if self.cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Time left, in proportion to the time of the work so far; `None` before anything is done.
fn time_left(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(all.saturating_sub(done) as f64 / done as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_share_one_bar_and_a_cancel_ends_them() {
        let mut progress = Progress { cancel: CancelToken::new(), ..Progress::new(4) };
        progress.begin("kernels".into());
        assert!(progress.at(1, 4).is_continue());
        assert_eq!((progress.bar.position(), progress.bar.length()), (250, Some(4000)));
        assert!(progress.bar.prefix().starts_with(", about ") && progress.bar.prefix().ends_with(" left"));
        progress.begin("whole steps".into());
        assert_eq!(progress.bar.position(), 1000);
        progress.cancel.cancel();
        assert!(progress.at(2, 4).is_break());
        assert_eq!(progress.bar.position(), 1500);
    }

    #[test]
    fn the_time_left_is_that_of_the_work_so_far() {
        let minute = Duration::from_secs(60);
        assert_eq!(time_left(minute, 250, 1000), Some(3 * minute));
        assert_eq!((time_left(minute, 1000, 1000), time_left(minute, 0, 1000)), (Some(Duration::ZERO), None));
    }
}
