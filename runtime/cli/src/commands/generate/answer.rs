//! Runs one continuation: emits its pieces, and measures prefill and decode.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use unicorn_runtime::{FeedProgress, Model};
use unicorn_text::{Answer, Continuation, EndReason, TextError};

use crate::error::CliError;
use crate::load::note_recoveries;
use crate::monitor::status::{State, StatusWriter};
use crate::report::statistics::Throughput;
use crate::terminal::interrupt;
use crate::terminal::late_bar::LateBar;

/// A model with its status file.
pub struct Runner<'m> {
    pub model: &'m Model,
    pub status: StatusWriter,
    /// Bar of the prefill that is running.
    prefill_bar: Arc<Mutex<Option<ProgressBar>>>,
}

/// What was generated, and how long it took.
pub struct Generated {
    pub prompt_tokens: u32,
    /// Prompt tokens that were in the cache.
    pub cached_tokens: u32,
    pub text: String,
    /// Without the stop token.
    pub tokens: Vec<u32>,
    pub end_reason: EndReason,
    pub prefill: Throughput,
    pub decode: Throughput,
    /// Time from the start of the load to the first token.
    pub first_token: Option<Duration>,
}

/// The pieces of a continuation or of a chat's answer.
pub trait Pieces: Iterator<Item = Result<String, TextError>> {
    fn continuation(&self) -> &Continuation<'_>;
}

impl Pieces for Continuation<'_> {
    fn continuation(&self) -> &Continuation<'_> {
        self
    }
}

impl Pieces for Answer<'_> {
    fn continuation(&self) -> &Continuation<'_> {
        Answer::continuation(self)
    }
}

impl<'m> Runner<'m> {
    pub fn new(model: &'m Model) -> Runner<'m> {
        let status = StatusWriter::new(model);
        Runner { model, status, prefill_bar: Arc::default() }
    }

    /// For the session that runs: shows the progress of its prefill.
    pub fn prefill_progress(&self) -> FeedProgress {
        let bar = Arc::clone(&self.prefill_bar);
        Box::new(move |done, total| {
            if let Some(bar) = &*bar.lock().unwrap_or_else(PoisonError::into_inner) {
                bar.set_length(total.into());
                bar.set_position(done.into());
            }
        })
    }

    /// Calls `start`, which feeds the prompt, and `emit` with each piece of text. Ctrl-C ends the text, not the program.
    pub fn run<P: Pieces>(
        &mut self,
        start: impl FnOnce() -> Result<P, TextError>,
        emit: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Generated, CliError> {
        // A Ctrl-C that came between two texts.
        interrupt::take_pressed();
        let generated = self.measure(start, emit);
        interrupt::take_pressed();
        self.status.set(State::Idle, 0, self.model);
        note_recoveries(self.model);
        generated
    }

    fn with_prefill_bar<P>(&self, start: impl FnOnce() -> P) -> P {
        let bar = LateBar::new("prefill {bar:40} {pos} of {len} tokens, {elapsed}");
        let set = |bar| *self.prefill_bar.lock().unwrap_or_else(PoisonError::into_inner) = bar;
        set(Some(bar.handle()));
        let started = start();
        set(None);
        started
    }

    fn measure<P: Pieces>(
        &mut self,
        start: impl FnOnce() -> Result<P, TextError>,
        emit: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Generated, CliError> {
        self.status.set(State::Prefill, 0, self.model);
        let started = Instant::now();
        let mut pieces = self.with_prefill_bar(start)?;
        let mut prefill = Throughput::default();
        let mut first_token = None;
        if pieces.continuation().end_reason() != Some(EndReason::Cancelled) {
            let computed = pieces.continuation().prompt_tokens() - pieces.continuation().cached_tokens();
            prefill = Throughput { tokens: computed.into(), elapsed: started.elapsed() };
            first_token = Some(self.model.age());
            self.status.set(State::Decode, 0, self.model);
        }

        let started = Instant::now();
        let mut text = String::new();
        let mut noted_tokens = 1;
        while let Some(piece) = pieces.next() {
            let piece = piece?;
            let n_sampled = pieces.continuation().n_sampled();
            if n_sampled > noted_tokens {
                self.status.add_tokens((n_sampled - noted_tokens).into(), self.model);
                noted_tokens = n_sampled;
            }
            text += &piece;
            emit(&piece)?;
        }
        let continuation = pieces.continuation();
        let decode = match continuation.n_sampled().saturating_sub(1) {
            0 => Throughput::default(),
            tokens => Throughput { tokens: tokens.into(), elapsed: started.elapsed() },
        };
        let tokens = continuation.tokens().to_vec();
        let end_reason = continuation.end_reason().expect("a text that did not fail has ended");
        let (prompt_tokens, cached_tokens) = (continuation.prompt_tokens(), continuation.cached_tokens());
        Ok(Generated { prompt_tokens, cached_tokens, text, tokens, end_reason, prefill, decode, first_token })
    }
}
