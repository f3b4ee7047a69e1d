//! Samples the tokens of one reply on the host, where the device's sampler does not suffice: biases, further penalties, logarithms
//! of probabilities, replies that have to match something, and the end of reasoning that is too long.

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
}

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
        })
    }

    /// Sampler of a reply that has to match `constraint`.
    pub(crate) fn constrained(sampling: &Sampling, constraint: Constraint) -> ReplySampler {
        let sampler = HostSampler::new(sampling.clone(), HostSampling::default());
        ReplySampler { sampler, is_always_needed: false, constraint: Some(constraint), budget: None, n_tokens: 0 }
    }

    /// Samples the token that follows `tokens`, by logits of the whole vocabulary, with the probabilities that were requested.
    ///
    /// # Errors
    /// When no token may follow, or it takes too long to find out which.
    pub fn sample_with_logprobs(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<HostSampled, String> {
        let sampled = match self.budget.as_ref().and_then(ReasoningBudget::forced) {
            Some(forced) => {
                let mut only = vec![0; logits.len().div_ceil(32)];
                only[forced as usize / 32] = 1 << (forced % 32);
                self.sampler.sample(self.n_tokens, tokens, logits, Some(&only))
            }
            None => {
                let allowed = self.constraint.as_mut().map(Constraint::allowed).transpose()?.flatten();
                let words = allowed.as_ref().map(|allowed| allowed.as_slice());
                self.sampler.sample(self.n_tokens, tokens, logits, words)
            }
        };
        sampled.ok_or_else(|| "no token may follow: biases and structure exclude them all".to_owned())
    }
}

impl TokenSampler for ReplySampler {
    fn applies(&self) -> bool {
        self.is_always_needed
            || self.constraint.as_ref().is_some_and(Constraint::applies)
            || self.budget.as_ref().is_some_and(|budget| budget.forced().is_some())
    }

    fn sample(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<u32, String> {
        self.sample_with_logprobs(tokens, logits).map(|sampled| sampled.token)
    }

    fn observe(&mut self, token: u32) -> Result<(), String> {
        self.n_tokens += 1;
        self.budget.iter_mut().for_each(|budget| budget.observe(token));
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.observe(token))
    }
}
