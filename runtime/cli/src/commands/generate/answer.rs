//! One answer: a prompt goes in, tokens come out until something ends it. What the session still holds of the prompt is
//! not computed again.

use std::time::{Duration, Instant};

use crate::error::CliError;
use crate::load::note_recoveries;
use crate::monitor::status::{State, StatusWriter};
use crate::report::statistics::Pace;
use crate::terminal::interrupt;
use unicorn_runtime::{Model, RunError, Sampling, Session};
use unicorn_text::Tokenizer;

/// What is fixed while a model answers.
pub struct Answerer<'m> {
    pub model: &'m Model,
    pub text: &'m Tokenizer,
    pub session: Session,
    /// For whoever watches.
    pub status: StatusWriter,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model drew one of its stop tokens.
    StopToken,
    /// As many tokens as were asked for.
    Length,
    ContextFull,
    /// Ctrl-C.
    Interrupted,
}

impl StopReason {
    /// As JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::StopToken => "stop_token",
            StopReason::Length => "length",
            StopReason::ContextFull => "context_full",
            StopReason::Interrupted => "interrupted",
        }
    }
}

/// What came out, and how long it took.
pub struct Answer {
    pub text: String,
    /// Without the stop token.
    pub tokens: Vec<u32>,
    pub stop_reason: StopReason,
    pub prefill: Pace,
    pub decode: Pace,
    /// The model's age when the first token was drawn.
    pub first_token: Option<Duration>,
}

impl Answerer<'_> {
    /// Continues `prompt` by at most `max_tokens` tokens (`None`: until something else ends it). Text goes to `emit` as
    /// soon as its characters are whole.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        max_tokens: Option<u32>,
        emit: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Answer, CliError> {
        let answer = self.answer_watched(prompt, sampling, max_tokens, emit);
        self.status.set(State::Idle, 0, self.model);
        note_recoveries(self.model);
        answer
    }

    fn answer_watched(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        max_tokens: Option<u32>,
        emit: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Answer, CliError> {
        interrupt::pressed();
        let max_tokens = max_tokens.map_or(usize::MAX, |tokens| tokens as usize);
        let stop_ids = &self.model.tokenizer_section().stop_ids;
        let mut stream = self.text.detokenizer(prompt);
        let mut answer = Answer {
            text: String::new(),
            tokens: Vec::new(),
            stop_reason: StopReason::Length,
            prefill: Pace::default(),
            decode: Pace::default(),
            first_token: None,
        };
        self.status.set(State::Prefill, 0, self.model);
        let mut give = |answer: &mut Answer, text: String| {
            answer.text += &text;
            if text.is_empty() { Ok(()) } else { emit(&text) }
        };
        // Takes a drawn token; says whether and why it was the last.
        let mut take = |answer: &mut Answer, token: u32| -> Result<Option<StopReason>, CliError> {
            if answer.tokens.len() >= max_tokens {
                return Ok(Some(StopReason::Length));
            }
            if stop_ids.contains(&token) {
                return Ok(Some(StopReason::StopToken));
            }
            answer.tokens.push(token);
            let text = stream.push(token)?;
            give(answer, text)?;
            Ok(match answer.tokens.len() >= max_tokens {
                true => Some(StopReason::Length),
                false => interrupt::pressed().then_some(StopReason::Interrupted),
            })
        };

        let started = Instant::now();
        let new = &prompt[self.session.keep_common_start(prompt) as usize..];
        self.session.set_cancel(interrupt::token());
        let first = match self.session.feed_and_sample(new, sampling) {
            Ok(sampled) => sampled.token,
            Err(RunError::Cancelled) => {
                interrupt::pressed();
                answer.stop_reason = StopReason::Interrupted;
                return Ok(answer);
            }
            Err(error) => return Err(error.into()),
        };
        answer.prefill = Pace { tokens: new.len() as u64, elapsed: started.elapsed() };
        answer.first_token = Some(self.model.age());

        self.status.set(State::Decode, 0, self.model);
        let mut stop = take(&mut answer, first)?;
        if stop.is_none() && self.session.len_tokens() < self.model.context_tokens() {
            let started = Instant::now();
            for sampled in self.session.generate(first, sampling, u32::MAX) {
                let token = match sampled {
                    Ok(sampled) => sampled.token,
                    Err(RunError::Cancelled) => {
                        interrupt::pressed();
                        stop = Some(StopReason::Interrupted);
                        break;
                    }
                    Err(error) => return Err(error.into()),
                };
                answer.decode.tokens += 1;
                self.status.add_tokens(1, self.model);
                stop = take(&mut answer, token)?;
                if stop.is_some() {
                    break;
                }
            }
            answer.decode.elapsed = started.elapsed();
        }
        answer.stop_reason = stop.unwrap_or(StopReason::ContextFull);
        let text = stream.finish()?;
        give(&mut answer, text)?;
        Ok(answer)
    }
}
