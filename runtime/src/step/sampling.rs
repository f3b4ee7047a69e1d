//! How a token is sampled from logits, as a caller sets it and as the step buffer stores it.

use unicorn_artifact::step::{MAX_HISTORY, Sampler, feeds_and_mask, is_image_row};

use crate::error::RunError;

/// How the next token is sampled from the logits. The default is greedy: the token of the largest logit.
///
/// The logits of tokens among the last `repeat_last_n` are divided (if positive) or multiplied by `repeat_penalty`, then all are
/// divided by `temperature`; `top_k`, `top_p` and `min_p` then leave fewer candidates, and one of them is sampled.
///
/// ```
/// # use unicorn_runtime::Sampling;
/// let mut sampling = Sampling::default();
/// sampling.temperature = 0.7;
/// sampling.top_k = 40;
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Temperature, 0 or more; 0 is greedy.
    pub temperature: f32,
    /// Only the `top_k` tokens of the largest logits remain; 0: all.
    pub top_k: u32,
    /// Only the most likely tokens remain whose probabilities add up to this, above 0 and at most 1; 1: all.
    pub top_p: f32,
    /// Only tokens remain that are at least `min_p` times as likely as the most likely one, 0 to 1; 0: all.
    pub min_p: f32,
    /// Penalty of repeated tokens, above 0; 1: none.
    pub repeat_penalty: f32,
    /// Most recent tokens that the penalty applies to, at most 256.
    pub repeat_last_n: u32,
    /// Equal seeds sample equal tokens after equal tokens.
    pub seed: u64,
}

/// A sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Its id, below the size of the vocabulary.
    pub token: u32,
    /// Its logit, after penalties and before temperature.
    pub logit: f32,
    /// Tokens that top-k, top-p and min-p left to sample from.
    pub candidates: u32,
}

/// One row's sampler as a step needs it, and the tokens that the repeat penalty applies to.
#[derive(Clone, Copy)]
pub struct SamplerInput<'s> {
    pub sampler: Sampler,
    pub history: &'s [u32],
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, repeat_last_n: 64, seed: 0 }
    }
}

impl Sampling {
    /// The parameters after `change`, so that one expression makes them:
    /// `Sampling::default().with(|sampling| sampling.seed = 7)`.
    pub fn with(mut self, change: impl FnOnce(&mut Sampling)) -> Sampling {
        change(&mut self);
        self
    }

    /// Whether every parameter is in its range. Everything that takes a `Sampling` checks it.
    ///
    /// # Errors
    /// [`RunError::Sampling`] for the first that is not.
    pub fn check(&self) -> Result<(), RunError> {
        let wrong = |what, expected, found: String| Err(RunError::Sampling { what, expected, found });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return wrong("temperature", "0 or more", self.temperature.to_string());
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top-p", "above 0 and at most 1", self.top_p.to_string());
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("min-p", "0 to 1", self.min_p.to_string());
        }
        if !(self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0) {
            return wrong("repeat penalty", "above 0", self.repeat_penalty.to_string());
        }
        if self.repeat_last_n as usize > MAX_HISTORY {
            return wrong("tokens of the repeat penalty", "at most 256", self.repeat_last_n.to_string());
        }
        Ok(())
    }

    /// The sampler's input for the sample of that number after `tokens`. `feeds`: the sampled token is the next step's.
    pub(crate) fn input<'s>(&self, number: u32, feeds: bool, tokens: &'s [u32]) -> SamplerInput<'s> {
        let recent = &tokens[tokens.len().saturating_sub(self.history_tokens())..];
        // What is behind the last image: its rows are no tokens.
        let begin = recent.iter().rposition(|&token| is_image_row(token)).map_or(0, |last| last + 1);
        let history = &recent[begin..];
        let sampler = Sampler {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed_low: self.seed as u32,
            seed_high: (self.seed >> 32) as u32,
            sample: number,
            history_capacity: self.history_tokens() as u32,
            feeds_and_mask: feeds_and_mask(feeds, 0),
            ..Sampler::default()
        };
        SamplerInput { sampler, history }
    }

    /// Number of tokens that the step buffer must list for the penalty.
    fn history_tokens(&self) -> usize {
        if self.repeat_penalty == 1.0 { 0 } else { self.repeat_last_n as usize }
    }
}

// The error above names the number.
const _: () = assert!(MAX_HISTORY == 256);
