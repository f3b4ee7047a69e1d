//! A progress bar per stage on a terminal, a plain line per stage otherwise.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use unicorn_compiler::{Progress, Stage};

use crate::interrupt::Partial;

/// Shows stages on stderr. An interrupt ends the process and what it had half written.
pub struct Bars {
    quiet: bool,
    bar: Option<ProgressBar>,
    partial: Partial,
}

impl Bars {
    pub fn new(quiet: bool) -> Bars {
        Bars { quiet, bar: None, partial: Partial::removed_by_signals() }
    }

    /// Ends the last stage's bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bars {
    fn stage(&mut self, stage: Stage, total: u64) -> ControlFlow<()> {
        let name = stage.name();
        self.finish();
        if self.quiet {
            return ControlFlow::Continue(());
        }
        if !std::io::stderr().is_terminal() {
            // Progress that cannot be shown is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{name}");
            return ControlFlow::Continue(());
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
        ControlFlow::Continue(())
    }

    fn advance(&mut self, amount: u64) -> ControlFlow<()> {
        if let Some(bar) = &self.bar {
            bar.inc(amount);
        }
        ControlFlow::Continue(())
    }

    fn partial(&mut self, path: Option<&Path>) {
        self.partial.set(path);
    }
}
