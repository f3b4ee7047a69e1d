//! Which tokens of one reply may be sampled, where it has to match something or its reasoning is too long; and their sampling on the host, where the
//! device's sampler does not suffice: biases, further penalties, logarithms of probabilities.

use unicorn_text::TokenSampler;
use unicorn_text::unicorn_runtime::{HostSampled, HostSampler, HostSampling, Sampling};

use crate::constraint::Constraint;
use crate::reasoning_budget::ReasoningBudget;

/// The sampler of one reply.
pub struct ReplySampler {
    sampler: HostSampler,
    /// Whether the parameters need the host's sampler, also where no constraint applies.
    is_always_needed: bool,
    constraint: Option<Constraint>,
    budget: Option<ReasoningBudget>,
    /// Tokens of the reply so far.
    n_tokens: u32,
    /// Tokens that the device may sample next; `None`: it was not told.
    mask: Option<Vec<u32>>,
}

/// Why there is no next token.
const NOTHING_FOLLOWS: &str = "no token may follow: biases and structure exclude them all";

impl ReplySampler {
    /// `None`: the device's sampler suffices. The parameters are checked.
    pub fn new(
        sampling: &Sampling,
        further: HostSampling,
        constraint: Option<Constraint>,
        budget: Option<ReasoningBudget>,
    ) -> Option<ReplySampler> {
        let is_always_needed =
            further != HostSampling::default().with(|one| one.reports_filtered = further.reports_filtered);
        (is_always_needed || constraint.is_some() || budget.is_some()).then(|| ReplySampler {
            sampler: HostSampler::new(sampling.clone(), further),
            is_always_needed,
            constraint,
            budget,
            n_tokens: 0,
            mask: None,
        })
    }

    /// Sampler of a reply that has to match `constraint`.
    pub(crate) fn constrained(sampling: &Sampling, constraint: Constraint) -> ReplySampler {
        let sampler = HostSampler::new(sampling.clone(), HostSampling::default());
        ReplySampler {
            sampler,
            is_always_needed: false,
            constraint: Some(constraint),
            budget: None,
            n_tokens: 0,
            mask: None,
        }
    }

    /// Samples the token that follows `tokens`, by logits of the whole vocabulary, with the probabilities that were requested.
    ///
    /// # Errors
    /// When no token may follow, or it takes too long to find out which.
    pub fn sample_with_logprobs(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<HostSampled, String> {
        let mut words = vec![0; logits.len().div_ceil(32)];
        let allowed = if self.allow(&mut words)? { Some(&words[..]) } else { None };
        let sampled = self.sampler.sample(self.n_tokens, tokens, logits, allowed);
        sampled.ok_or_else(|| NOTHING_FOLLOWS.to_owned())
    }

    /// Whether the next token has to be sampled on the host, by its logits.
    pub fn needs_logits(&self) -> bool {
        self.is_always_needed
    }

    /// Sets the bits of the tokens that may follow in `words`, which are 0. `false`: all may, and none is set.
    fn allow(&mut self, words: &mut [u32]) -> Result<bool, String> {
        if let Some(forced) = self.budget.as_ref().and_then(ReasoningBudget::forced) {
            words[forced as usize / 32] = 1 << (forced % 32);
            return Ok(true);
        }
        let allowed = self.constraint.as_mut().map(Constraint::allowed).transpose()?.flatten();
        if let Some(allowed) = &allowed {
            // Neither has tokens behind the vocabulary.
            words.iter_mut().zip(allowed.as_slice()).for_each(|(word, allowed)| *word = *allowed);
        }
        Ok(allowed.is_some())
    }
}

impl TokenSampler for ReplySampler {
    fn applies(&self) -> bool {
        self.is_always_needed
            || self.constraint.as_ref().is_some_and(Constraint::applies)
            || self.budget.as_ref().is_some_and(|budget| budget.forced().is_some())
    }

    fn is_masked(&self) -> bool {
        !self.is_always_needed
    }

    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        if !self.allow(allowed)? {
            allowed.fill(u32::MAX);
        }
        self.mask = Some(allowed.to_vec());
        if allowed.iter().all(|word| *word == 0) { Err(NOTHING_FOLLOWS.to_owned()) } else { Ok(()) }
    }

    fn sample(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<u32, String> {
        self.sample_with_logprobs(tokens, logits).map(|sampled| sampled.token)
    }

    fn observe(&mut self, token: u32) -> Result<(), String> {
        self.n_tokens += 1;
        // The device samples another one where no allowed token has a logit that is a number.
        let is_allowed =
            |mask: Vec<u32>| mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        if !self.mask.take().is_none_or(is_allowed) {
            return Err(NOTHING_FOLLOWS.to_owned());
        }
        self.budget.iter_mut().for_each(|budget| budget.observe(token));
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.observe(token))
    }
}
