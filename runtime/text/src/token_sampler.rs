//! Tokens that are sampled on the host, or on the device among those that may follow.

use std::fmt::Debug;

use unicorn_runtime::{Sampling, Session};

use crate::error::TextError;
use crate::reply::ReplyFormat;

/// Samples the tokens of one text on the host, or limits what the device samples, where the device's sampler does not suffice: for example
/// because the text has to match a grammar. unicorn-structure has implementations.
pub trait TokenSampler: Send {
    /// Whether [`TokenSampler::sample`] samples the next token; otherwise the device does. It may change with each token.
    fn applies(&self) -> bool;

    /// Where it applies, whether the device may sample instead, among the tokens that [`TokenSampler::mask`] allows: not where the model takes no
    /// masks.
    fn is_masked(&self) -> bool {
        false
    }

    /// Sets the bits of the tokens that may follow in `allowed`, words of 0; the first token's is the lowest bit of the first word.
    ///
    /// # Errors
    /// Why no token can follow, in one line.
    fn mask(&mut self, _allowed: &mut [u32]) -> Result<(), String> {
        Ok(())
    }

    /// Samples the token that follows `tokens`, by its logits, one for each token of the vocabulary.
    ///
    /// # Errors
    /// Why no token can be sampled, in one line.
    fn sample(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<u32, String>;

    /// Advances by the next token of the text, whether host or device sampled it.
    ///
    /// # Errors
    /// Why no text can follow it, in one line.
    fn observe(&mut self, token: u32) -> Result<(), String>;
}

/// What the answers of a [`Chat`](crate::Chat) have to match.
pub trait AnswerConstraint: Debug + Send + Sync {
    /// The sampler of one answer, which has not begun and is read by `format`.
    fn sampler(&self, sampling: &Sampling, format: &ReplyFormat) -> Box<dyn TokenSampler>;
}

/// Tokens that a [`TokenSampler`] samples in a session, each computed when it is requested: no step runs ahead.
pub(crate) struct SampledTokens<'s> {
    session: &'s mut Session,
    sampling: Sampling,
    sampler: Box<dyn TokenSampler>,
    /// The token that was sampled last, which is not appended to the session yet.
    last: u32,
}

impl<'s> SampledTokens<'s> {
    /// Feeds `prompt` and samples the first token.
    ///
    /// # Errors
    /// Errors of [`Session::feed_and_sample`] and of the sampler.
    pub(crate) fn begin(
        session: &'s mut Session,
        prompt: &[u32],
        sampling: &Sampling,
        sampler: Box<dyn TokenSampler>,
    ) -> Result<(SampledTokens<'s>, u32), TextError> {
        let mut tokens = SampledTokens { session, sampling: sampling.clone(), sampler, last: 0 };
        let first = tokens.feed(prompt)?;
        Ok((tokens, first))
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<u32, TextError> {
        let failed = |detail| TextError::Sample { detail };
        let masks = self.sampler.is_masked() && self.session.takes_masks();
        let token = match self.sampler.applies() {
            true if masks => {
                let mut masked = Ok(());
                let fill = |allowed: &mut [u32]| masked = self.sampler.mask(allowed);
                let sampled = self.session.feed_and_sample_masked(tokens, &self.sampling, fill)?;
                masked.map_err(failed)?;
                sampled.token
            }
            true => {
                let mut logits = self.session.feed_and_read_logits(tokens)?;
                self.sampler.sample(self.session.tokens(), &mut logits).map_err(failed)?
            }
            false => self.session.feed_and_sample(tokens, &self.sampling)?.token,
        };
        self.sampler.observe(token).map_err(failed)?;
        self.last = token;
        Ok(token)
    }
}

impl Iterator for SampledTokens<'_> {
    type Item = Result<u32, TextError>;

    fn next(&mut self) -> Option<Result<u32, TextError>> {
        Some(self.feed(&[self.last]))
    }
}
