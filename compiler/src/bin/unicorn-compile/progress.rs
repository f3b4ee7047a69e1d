//! A progress bar per stage on a terminal, a plain line per stage elsewhere and with NO_COLOR.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use unicorn_artifact::account::size;
use unicorn_compiler::{Prediction, Progress, Stage};
use unicorn_terminal::{columns, shows_bars, wrapped};

use crate::interrupt::Partial;

/// Shows stages on stderr. An interrupt ends the process and removes its half-written files.
pub struct Bars {
    quiet: bool,
    /// Whether a model without a tokenizer is worth a note.
    pub expects_text: bool,
    bar: Option<ProgressBar>,
    partial: Partial,
}

impl Bars {
    pub fn new(quiet: bool) -> Bars {
        Bars { quiet, expects_text: true, bar: None, partial: Partial::removed_by_signals() }
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
        if !shows_bars() {
            note(name);
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

    fn planned(&mut self, prediction: &Prediction) -> ControlFlow<()> {
        self.finish();
        if self.quiet {
            return ControlFlow::Continue(());
        }
        let free = prediction.free_bytes.map_or(String::new(), |free| format!(", of {} free", size(free)));
        note(&format!("artifact: about {}{free}", size(prediction.artifact_bytes)));
        match prediction {
            _ if !self.expects_text => (),
            Prediction { has_tokenizer: false, .. } => note(
                "warning: model has no tokenizer, so the artifact runs on token ids alone; where there is one, put tokenizer.json \
                 beside its config.json",
            ),
            Prediction { has_chat_template: false, .. } => note(
                "warning: model has no chat template, so the artifact continues texts and cannot chat; where there is one, put \
                 chat_template.jinja beside its config.json",
            ),
            _ => (),
        }
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

/// Prints a line to stderr, broken at the width of a terminal. A stderr that cannot be written (a log on a full disk) ends nothing.
pub fn note(line: &str) {
    let stderr = std::io::stderr();
    let line = wrapped(line, columns(&stderr));
    let _ = writeln!(stderr.lock(), "{line}");
}
