//! How long steps took, and how many tokens of prompts the next ones may feed by that.

use std::time::Duration;

use super::mixed_times::{MixedTimes, Prompts};
use crate::session::speculation::draft_length::StepTimes;

/// Measured times of steps of each kind.
pub struct Pace {
    /// Steps that only decode, and verifications of drafts.
    pub steps: StepTimes,
    /// Steps that decode and feed parts of prompts.
    mixed: MixedTimes,
    /// Of the last step that fed at least [`MIN_PREFILL_TOKENS`] of a prompt, and nothing else.
    prefill_tokens_per_s: Option<f64>,
}

/// Most tokens of a prompt that are fed in a step, unless fewer are permitted.
pub const MAX_PREFILL_TOKENS: usize = 512;
/// Fewest tokens of it, unless the prompt ends: shorter steps would read all weights for little.
pub const MIN_PREFILL_TOKENS: usize = 64;
/// How long sequences that decode may wait for a step of a prompt, if their own steps are not longer: a pause that a reader hardly notices.
/// With shorter parts, more time goes into reading weights: on an H200 with 32 clients, those of 64 tokens cost a fifth of all tokens/s.
const PREFILL_PAUSE: Duration = Duration::from_millis(100);

impl Pace {
    /// Nothing is measured yet. `mixed_rows`: rows of the programs that decode and feed, the smallest first.
    pub fn new(mixed_rows: Vec<u32>) -> Pace {
        Pace { steps: StepTimes::default(), mixed: MixedTimes::new(mixed_rows), prefill_tokens_per_s: None }
    }

    /// A step that only decodes took `time`.
    pub fn add_plain(&mut self, time: Duration) {
        self.steps.add_plain(time);
        self.mixed.add_plain(self.steps.plain().unwrap_or_default());
    }

    /// A step that decodes and feeds took `time`, for `n_rows` rows.
    pub fn add_mixed(&mut self, n_rows: usize, time: Duration) {
        self.mixed.add(n_rows, time);
    }

    /// A step that only fed `n_tokens` of a prompt took `time`.
    pub fn add_prompt(&mut self, n_tokens: usize, time: Duration) {
        if n_tokens >= MIN_PREFILL_TOKENS {
            self.prefill_tokens_per_s = Some(n_tokens as f64 / time.as_secs_f64());
        }
    }

    /// Most rows of a step that decodes and feeds; 0: there is none.
    pub fn most_mixed_rows(&self) -> u32 {
        self.mixed.most_rows()
    }

    /// Tokens of the first prompts that a step feeds beside `n_decoding` sequences; `None`: prompts and sequences take turns.
    pub fn mixed_prompt_rows(&self, n_decoding: u32, prompts: &Prompts) -> Option<u32> {
        self.mixed.prompt_rows(n_decoding, prompts, self.steps.plain())
    }

    /// Tokens of a prompt that a step feeds in the time that the sequences that decode may wait; `None`: no such step was measured.
    pub fn tokens_in_pause(&self) -> Option<usize> {
        let pause = self.steps.plain().map_or(PREFILL_PAUSE, |step| step.max(PREFILL_PAUSE));
        self.prefill_tokens_per_s.map(|tokens_per_s| tokens_in_pause(tokens_per_s, pause))
    }
}

fn tokens_in_pause(tokens_per_s: f64, pause: Duration) -> usize {
    let tokens = (tokens_per_s * pause.as_secs_f64()) as usize;
    tokens.clamp(MIN_PREFILL_TOKENS, MAX_PREFILL_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_feeds_less_while_others_wait() {
        let tokens = [1.0, 254.0, 1000.0, 1e6].map(|rate| tokens_in_pause(rate, Duration::from_millis(250)));
        assert_eq!(tokens, [64, 64, 250, 512]);
        assert_eq!(tokens_in_pause(20_000.0, Duration::from_millis(5)), 100);
    }
}
