//! Runs one continuation: emits its pieces, and measures prefill and decode.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use unicorn_runtime::{DraftCounts, FeedProgress, Model, RunError, Speculation};
use unicorn_text::{Answer, Continuation, EndReason, TextError};

use super::loaded::Loaded;
use crate::error::CliError;
use crate::load::{longer_context, note_recoveries};
use crate::monitor::status::{State, StatusWriter};
use crate::report::statistics::Throughput;
use crate::terminal::interrupt;
use crate::terminal::late_bar::LateBar;

/// A model with its status file.
pub struct Runner<'m> {
    pub model: &'m Model,
    pub status: StatusWriter,
    /// How its sessions speculate.
    pub speculation: Option<Speculation>,
    /// See [`Loaded::started`].
    started: Instant,
    /// Bar of the prefill that is running.
    prefill_bar: Arc<Mutex<Option<ProgressBar>>>,
}

/// What was generated, and how long it took.
pub struct Generated {
    /// Prompt tokens that were in the cache.
    pub cached_tokens: u32,
    pub text: String,
    /// Generated tokens, without the stop token.
    pub tokens: Vec<u32>,
    pub end_reason: EndReason,
    pub prefill: Throughput,
    pub decode: Throughput,
    /// Time from [`Loaded::started`] to the first token.
    pub first_token: Option<Duration>,
    /// Drafts of speculation.
    pub drafts: DraftCounts,
}

impl Generated {
    /// Two lines: prefill, with the time to the first token if there was one, and decode, with the drafts if there were some.
    pub fn summary(&self, first_token: Option<Duration>) -> String {
        let rate = |work: Throughput| match work.tokens_per_s() {
            Some(rate) => format!("{} tokens, {rate:.2} tokens/s", work.tokens),
            None => format!("{} tokens", work.tokens),
        };
        let cached = match self.cached_tokens {
            0 => String::new(),
            cached => format!(", {cached} more were cached"),
        };
        let drafted = match self.drafts {
            DraftCounts { drafts: 0, .. } => String::new(),
            DraftCounts { proposed, accepted, .. } => format!(", {accepted} of {proposed} drafted tokens accepted"),
        };
        let first = first_token.map(|time| format!(", first token after {:.2} s", time.as_secs_f64()));
        let (prefill, decode) = (rate(self.prefill), rate(self.decode));
        format!("prefill  {prefill}{cached}{}\ndecode   {decode}{drafted}", first.unwrap_or_default())
    }
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
    pub fn new(loaded: &'m Loaded) -> Runner<'m> {
        let Loaded { model, speculation, started, .. } = loaded;
        let (status, speculation) = (StatusWriter::new(model), speculation.clone());
        Runner { model, status, speculation, started: *started, prefill_bar: Arc::default() }
    }

    /// A callback for the session that runs, which shows the progress of its prefill.
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

    /// The error, with the length that the context could have if it is too short.
    fn explained(&self, error: TextError) -> CliError {
        match error {
            TextError::Run(RunError::ContextFull { context_tokens, needed_tokens }) => CliError::new(format!(
                "prompt of {needed_tokens} tokens is too long for the context of {context_tokens}; {}",
                longer_context(self.model)
            )),
            TextError::TemplateOutput { .. } => CliError::new(format!("{error}; {}", longer_context(self.model))),
            error => error.into(),
        }
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
        let mut pieces = self.with_prefill_bar(start).map_err(|error| self.explained(error))?;
        let mut prefill = Throughput::default();
        let mut first_token = None;
        if pieces.continuation().end_reason() != Some(EndReason::Cancelled) {
            let computed = pieces.continuation().prompt_tokens() - pieces.continuation().cached_tokens();
            prefill = Throughput { tokens: computed.into(), elapsed: started.elapsed() };
            first_token = Some(self.started.elapsed());
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
        let cached_tokens = continuation.cached_tokens();
        let drafts = DraftCounts::default();
        Ok(Generated { cached_tokens, text, tokens, end_reason, prefill, decode, first_token, drafts })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn generated() -> Generated {
        Generated {
            cached_tokens: 0,
            text: " hé".into(),
            tokens: vec![3, 4],
            end_reason: EndReason::StopToken,
            prefill: Throughput { tokens: 7, elapsed: Duration::from_millis(500) },
            decode: Throughput { tokens: 10, elapsed: Duration::from_secs(1) },
            first_token: Some(Duration::from_millis(750)),
            drafts: DraftCounts::default(),
        }
    }

    #[test]
    fn the_summary_is_two_lines() {
        let generated = generated();
        assert_eq!(
            generated.summary(generated.first_token),
            "prefill  7 tokens, 14.00 tokens/s, first token after 0.75 s\ndecode   10 tokens, 10.00 tokens/s"
        );
        let drafts = DraftCounts { drafts: 2, proposed: 9, accepted: 5 };
        let drafted = Generated { drafts, ..tests::generated() }.summary(None);
        assert!(drafted.ends_with("10 tokens, 10.00 tokens/s, 5 of 9 drafted tokens accepted"), "{drafted}");
        let idle = Generated { prefill: Throughput::default(), decode: Throughput::default(), ..generated };
        let cached = Generated { cached_tokens: 5, ..idle };
        assert_eq!(cached.summary(None), "prefill  0 tokens, 5 more were cached\ndecode   0 tokens");
    }
}
