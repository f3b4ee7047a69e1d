//! Samples the tokens of one choice on the host, where the device's sampler does not suffice: biases, further penalties, logarithms
//! of probabilities, and replies that have to match something.

use unicorn_text::unicorn_runtime::{HostSampled, HostSampler, HostSampling, Sampling};

use crate::structure::Constraint;

/// The sampler of a choice.
pub(crate) struct Chooser {
    sampler: HostSampler,
    /// Something other than the constraint needs it.
    is_always_needed: bool,
    constraint: Option<Constraint>,
    /// Tokens of the reply so far.
    n_tokens: u32,
}

impl Chooser {
    /// `None`: the device's sampler suffices. The parameters are checked.
    pub(crate) fn new(sampling: &Sampling, further: HostSampling, constraint: Option<Constraint>) -> Option<Chooser> {
        let is_always_needed =
            further != HostSampling::default().with(|one| one.reports_filtered = further.reports_filtered);
        let sampler = HostSampler::new(sampling.clone(), further);
        (is_always_needed || constraint.is_some()).then_some(Chooser {
            sampler,
            is_always_needed,
            constraint,
            n_tokens: 0,
        })
    }

    /// Whether the next token is sampled here.
    pub(crate) fn applies(&self) -> bool {
        self.is_always_needed || self.constraint.as_ref().is_some_and(Constraint::applies)
    }

    /// Samples the token that follows `tokens`.
    ///
    /// # Errors
    /// When no token may follow, or it takes too long to find out which.
    pub(crate) fn choose(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<HostSampled, String> {
        let allowed = self.constraint.as_mut().map(Constraint::allowed).transpose()?.flatten();
        let words = allowed.as_ref().map(|allowed| allowed.as_slice());
        let sampled = self.sampler.sample(self.n_tokens, tokens, logits, words);
        sampled.ok_or_else(|| "no token may follow: biases and structure exclude them all".to_owned())
    }

    /// Takes the next token of the reply, sampled on the host or on the device.
    ///
    /// # Errors
    /// When it takes too long to find out what may follow.
    pub(crate) fn observe(&mut self, token: u32) -> Result<(), String> {
        self.n_tokens += 1;
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.observe(token))
    }
}
