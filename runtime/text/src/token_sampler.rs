//! Tokens that are sampled on the host, or on the device among those that may follow.

use std::fmt::Debug;

use unicorn_runtime::{FillMask, MaskedTokens, RunError, Sampling, Session};

use crate::error::TextError;
use crate::reply::ReplyFormat;

/// Samples the tokens of one text on the host, or limits what the device samples, where the device's sampler does not suffice: for example
/// because the text has to match a grammar. unicorn-structure has implementations.
pub trait TokenSampler: Send {
    /// Whether [`TokenSampler::sample`] samples the next token; otherwise the device does. It may change with each token.
    fn applies(&self) -> bool;

    /// Whether the device samples where it applies, among the tokens that [`TokenSampler::mask`] allows, and not the host: the same for all tokens
    /// of the text. Not where the model takes no masks.
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

/// Tokens that a [`TokenSampler`] samples in a session.
pub(crate) struct SampledTokens<'s> {
    later: Later<'s>,
    sampler: Box<dyn TokenSampler>,
}

/// Where the tokens behind the first come from.
enum Later<'s> {
    /// The device samples all of them.
    Device(MaskedTokens<'s>),
    /// The host samples some: each is computed when it is requested.
    Host {
        session: &'s mut Session,
        sampling: Sampling,
        /// The token that was sampled last, which is not appended to the session yet.
        last: u32,
    },
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
        mut sampler: Box<dyn TokenSampler>,
    ) -> Result<(SampledTokens<'s>, u32), TextError> {
        let on_device = sampler.is_masked() && session.takes_masks();
        let first = match on_device {
            false => feed(session, prompt, sampling, &mut *sampler)?,
            true => {
                let sampled = sample_among(&mut *sampler, |fill| match fill {
                    Some(fill) => session.feed_and_sample_masked(prompt, sampling, fill),
                    None => session.feed_and_sample(prompt, sampling),
                });
                sampled?.token
            }
        };
        sampler.observe(first).map_err(failed)?;
        let later = match on_device {
            true => Later::Device(session.generate_masked(first, sampling, u32::MAX)),
            false => Later::Host { session, sampling: sampling.clone(), last: first },
        };
        Ok((SampledTokens { later, sampler }, first))
    }
}

impl Iterator for SampledTokens<'_> {
    type Item = Result<u32, TextError>;

    fn next(&mut self) -> Option<Result<u32, TextError>> {
        let SampledTokens { later, sampler } = self;
        let sampled = match later {
            Later::Host { session, sampling, last } => {
                feed(session, &[*last], sampling, &mut **sampler).inspect(|token| *last = *token)
            }
            Later::Device(tokens) => {
                let sampled = sample_among(&mut **sampler, |fill| tokens.next_token(fill).transpose());
                sampled.map(|sampled| Some(sampled?.token)).transpose()?
            }
        };
        Some(sampled.and_then(|token| sampler.observe(token).map_err(failed).map(|()| token)))
    }
}

/// Feeds tokens and samples the one that follows, on the host where `sampler` applies.
fn feed(
    session: &mut Session,
    tokens: &[u32],
    sampling: &Sampling,
    sampler: &mut dyn TokenSampler,
) -> Result<u32, TextError> {
    if !sampler.applies() {
        return Ok(session.feed_and_sample(tokens, sampling)?.token);
    }
    let mut logits = session.feed_and_read_logits(tokens)?;
    sampler.sample(session.tokens(), &mut logits).map_err(failed)
}

/// What `sample` returns, which samples on the device: among the tokens that `sampler` allows, where it applies.
fn sample_among<T>(
    sampler: &mut dyn TokenSampler,
    sample: impl FnOnce(Option<FillMask<'_>>) -> Result<T, RunError>,
) -> Result<T, TextError> {
    let mut masked = Ok(());
    let fill: Option<FillMask<'_>> = match sampler.applies() {
        true => Some(Box::new(|allowed| masked = sampler.mask(allowed))),
        false => None,
    };
    let sampled = sample(fill)?;
    masked.map_err(failed)?;
    Ok(sampled)
}

fn failed(detail: String) -> TextError {
    TextError::Sample { detail }
}
