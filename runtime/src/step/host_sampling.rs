//! Sampling on the host, from logits that were read back: for requests with what the device's sampler does not have. For what it
//! has, the same seed gives the same token, unless rounding decides otherwise (`kernels/src/sample`).

use crate::error::RunError;
use crate::step::sampling::{Sampled, Sampling};

/// Parameters of a [`HostSampler`] in addition to [`Sampling`]. The default changes nothing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HostSampling {
    /// Added to the logits of these tokens; negative infinity bans one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Subtracted from the logit of a token that is among the last `repeat_last_n` (of [`Sampling`]); 0: none.
    pub presence_penalty: f32,
    /// Subtracted for each time that it is among them; 0: none.
    pub frequency_penalty: f32,
    /// Only tokens remain whose surprise is closest to that of the whole distribution, with this share of the probability; 1: all.
    pub typical_p: f32,
    /// Only tokens remain whose logits are at most this number of standard deviations below the largest; 0 or less: all.
    pub top_n_sigma: f32,
    /// Report the sampled token's probability, and as many of the most likely tokens. `None`: no probabilities.
    pub n_top: Option<usize>,
    /// Report probabilities as the filters and the temperature leave them, not those of the model.
    pub reports_filtered: bool,
}

/// A token and the logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Its id.
    pub token: u32,
    /// Natural logarithm; negative infinity where it could not be sampled.
    pub logprob: f32,
}

/// What a [`HostSampler`] sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSampled {
    /// The token's id.
    pub token: u32,
    /// Natural logarithm of its probability, if that was requested.
    pub logprob: Option<f32>,
    /// The most likely tokens, as many as were requested and could be sampled, most likely first.
    pub top: Vec<TokenLogprob>,
    /// Tokens that the filters left to sample from.
    pub candidates: u32,
}

impl HostSampled {
    /// A token that was given, not sampled, with its probability by the `logits` as they came and the `n_top` most likely tokens.
    ///
    /// # Panics
    /// When the token is not of the vocabulary.
    pub fn given(token: u32, logits: &[f32], n_top: usize) -> HostSampled {
        HostSampled::among(token, logits, n_top, logits.len() as u32)
    }

    /// `values` are logits, negative infinity where a token could not be sampled.
    fn among(token: u32, values: &[f32], n_top: usize, candidates: u32) -> HostSampled {
        let distribution = Distribution::of(values, n_top);
        let logprob = |token: u32| distribution.logprob(values[token as usize]);
        let top = distribution.top.iter().map(|&token| TokenLogprob { token, logprob: logprob(token) }).collect();
        HostSampled { token, logprob: Some(logprob(token)), top, candidates }
    }
}

/// Samples the tokens of one sequence on the host.
///
/// Order: bias, the three penalties, the mask; top-n-sigma, top-k, typical, top-p, min-p; temperature. Logarithms of probabilities
/// are those of the logits as they came, unless [`HostSampling::reports_filtered`].
#[derive(Clone, Debug)]
pub struct HostSampler {
    sampling: Sampling,
    further: HostSampling,
}

/// A token that may be sampled, and its logit.
type Candidate = (u32, f32);

impl Default for HostSampling {
    fn default() -> HostSampling {
        HostSampling {
            logit_bias: Vec::new(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            n_top: None,
            reports_filtered: false,
        }
    }
}

impl HostSampling {
    /// The parameters after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut HostSampling)) -> HostSampling {
        change(&mut self);
        self
    }

    /// Whether every parameter is in its range, for a model of `vocab_size` tokens.
    ///
    /// # Errors
    /// [`RunError::Sampling`] for the first that is not.
    pub fn check(&self, vocab_size: u32) -> Result<(), RunError> {
        let wrong = |what, expected, found: String| Err(RunError::Sampling { what, expected, found });
        for (what, value) in
            [("presence penalty", self.presence_penalty), ("frequency penalty", self.frequency_penalty)]
        {
            if !value.is_finite() {
                return wrong(what, "a finite number", value.to_string());
            }
        }
        if !(self.typical_p > 0.0 && self.typical_p <= 1.0) {
            return wrong("typical-p", "above 0 and at most 1", self.typical_p.to_string());
        }
        if self.top_n_sigma.is_nan() {
            return wrong("top-n-sigma", "a number", self.top_n_sigma.to_string());
        }
        for &(token, bias) in &self.logit_bias {
            if token >= vocab_size {
                return wrong("logit bias", "a token of the vocabulary", token.to_string());
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return wrong("logit bias", "a finite number, or negative infinity", bias.to_string());
            }
        }
        Ok(())
    }
}

impl HostSampler {
    /// A sampler with parameters that were checked by [`Sampling::check`] and [`HostSampling::check`].
    pub fn new(sampling: Sampling, further: HostSampling) -> HostSampler {
        HostSampler { sampling, further }
    }

    /// Samples the token that follows `tokens` by its `logits`, which are changed. `number`: of this sample among those of its seed,
    /// from 0 on. `allowed`: bits of the tokens that may be
    /// sampled, the first token's in the lowest bit of the first word. `None`: every token may be sampled.
    pub fn sample(
        &self,
        number: u32,
        tokens: &[u32],
        logits: &mut [f32],
        allowed: Option<&[u32]>,
    ) -> Option<HostSampled> {
        let reports_raw = self.further.n_top.is_some() && !self.further.reports_filtered;
        let raw = reports_raw.then(|| logits.to_vec());
        self.adjust(tokens, logits);
        if self.sampling.temperature == 0.0 && self.further.n_top.is_none() && allowed.is_none() {
            let token = first_of_largest(logits)?;
            return Some(HostSampled { token, logprob: None, top: Vec::new(), candidates: 1 });
        }
        let mut candidates: Vec<Candidate> = (0..)
            .zip(logits.iter().copied())
            .filter(|&(token, logit)| logit.is_finite() && is_allowed(allowed, token))
            .collect();
        if candidates.is_empty() {
            return None;
        }
        self.filter(&mut candidates);
        let sampled = self.choose(&candidates, number);
        let candidates_left = candidates.len() as u32;
        let Some(n_top) = self.further.n_top else {
            return Some(HostSampled { token: sampled, logprob: None, top: Vec::new(), candidates: candidates_left });
        };
        let values = raw.unwrap_or_else(|| {
            let heat = if self.sampling.temperature > 0.0 { self.sampling.temperature } else { 1.0 };
            let mut values = vec![f32::NEG_INFINITY; logits.len()];
            candidates.iter().for_each(|&(token, logit)| values[token as usize] = logit / heat);
            values
        });
        Some(HostSampled::among(sampled, &values, n_top, candidates_left))
    }

    /// Samples as the device does, with a mask or without; token 0 where no logit is a number.
    pub(crate) fn sample_as_device(
        &self,
        number: u32,
        tokens: &[u32],
        logits: &mut [f32],
        allowed: Option<&[u32]>,
    ) -> Sampled {
        let sampled = self.sample(number, tokens, logits, allowed);
        let (token, candidates) = sampled.map_or((0, 1), |sampled| (sampled.token, sampled.candidates));
        Sampled { token, logit: logits[token as usize], candidates }
    }

    /// Applies bias and penalties.
    fn adjust(&self, tokens: &[u32], logits: &mut [f32]) {
        for &(token, bias) in &self.further.logit_bias {
            logits[token as usize] += bias;
        }
        let HostSampling { presence_penalty, frequency_penalty, .. } = self.further;
        let repeat_penalty = self.sampling.repeat_penalty;
        if repeat_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        let mut recent = tokens[tokens.len().saturating_sub(self.sampling.repeat_last_n as usize)..].to_vec();
        recent.sort_unstable();
        for run in recent.chunk_by(|a, b| a == b) {
            let Some(logit) = logits.get_mut(run[0] as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
            *logit -= presence_penalty + frequency_penalty * run.len() as f32;
        }
    }

    /// Removes the candidates that the filters do not leave. At least one stays, and their order.
    fn filter(&self, candidates: &mut Vec<Candidate>) {
        let largest = largest(candidates);
        if self.sampling.temperature == 0.0 {
            let first = candidates.iter().copied().find(|one| one.1 == largest);
            candidates.splice(.., first);
            return;
        }
        let keep = |candidates: &mut Vec<Candidate>, least: f32| candidates.retain(|one| one.1 >= least);
        if self.further.top_n_sigma > 0.0 {
            keep(candidates, largest - self.further.top_n_sigma * deviation(candidates));
        }
        let top_k = self.sampling.top_k as usize;
        if top_k > 0 && top_k < candidates.len() {
            let mut logits: Vec<f32> = candidates.iter().map(|one| one.1).collect();
            let (_, kth, _) = logits.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a));
            let kth = *kth;
            keep(candidates, kth);
        }
        if self.further.typical_p < 1.0 {
            self.keep_typical(candidates);
        }
        if self.sampling.top_p < 1.0 {
            let mut logits: Vec<f32> = candidates.iter().map(|one| one.1).collect();
            logits.sort_unstable_by(|a, b| b.total_cmp(a));
            let mass = |logit: f32| f64::from(logit - logits[0]).exp();
            let wanted = f64::from(self.sampling.top_p) * logits.iter().map(|&logit| mass(logit)).sum::<f64>();
            let mut above = 0.0;
            let last = logits.iter().copied().find(|&logit| {
                above += mass(logit);
                above >= wanted
            });
            keep(candidates, last.unwrap_or(f32::NEG_INFINITY));
        }
        if self.sampling.min_p > 0.0 {
            // Typical sampling may have removed the largest.
            let most = self::largest(candidates);
            keep(candidates, most + self.sampling.min_p.ln());
        }
    }

    /// Locally typical sampling (Meister et al. 2022).
    fn keep_typical(&self, candidates: &mut Vec<Candidate>) {
        let largest = f64::from(largest(candidates));
        let total: f64 = candidates.iter().map(|one| (f64::from(one.1) - largest).exp()).sum();
        let surprise = |logit: f32| total.ln() - (f64::from(logit) - largest);
        let entropy: f64 = candidates.iter().map(|one| surprise(one.1) * (-surprise(one.1)).exp()).sum();
        let distance = |logit: f32| (surprise(logit) - entropy).abs();
        let mut order: Vec<f32> = candidates.iter().map(|one| one.1).collect();
        order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
        let mut mass = 0.0;
        let last = order.iter().copied().find(|&logit| {
            mass += (-surprise(logit)).exp();
            mass >= f64::from(self.further.typical_p)
        });
        let farthest = last.map_or(f64::INFINITY, distance);
        candidates.retain(|one| distance(one.1) <= farthest);
    }

    /// One of the candidates, which are in order of id.
    fn choose(&self, candidates: &[Candidate], number: u32) -> u32 {
        if let [only] = candidates {
            return only.0;
        }
        let (largest, temperature) = (largest(candidates), self.sampling.temperature);
        let heat = |one: &Candidate| f64::from((one.1 - largest) / temperature).exp();
        let total: f64 = candidates.iter().map(heat).sum();
        let mut left = f64::from(uniform(self.sampling.seed, number)) * total;
        let chosen = candidates.iter().find(|one| {
            left -= heat(one);
            left < 0.0
        });
        chosen.or(candidates.last()).expect("the largest always stays").0
    }
}

/// Probabilities of a row of logits.
struct Distribution {
    largest: f64,
    log_total: f64,
    /// The most likely tokens, most likely first.
    top: Vec<u32>,
}

impl Distribution {
    fn of(logits: &[f32], n_top: usize) -> Distribution {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
        let mut top: Vec<u32> =
            (0..logits.len() as u32).filter(|&token| logits[token as usize] > f32::NEG_INFINITY).collect();
        let before = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if n_top < top.len() && n_top > 0 {
            top.select_nth_unstable_by(n_top - 1, before);
        }
        top.truncate(n_top);
        top.sort_unstable_by(before);
        Distribution { largest, log_total: total.ln(), top }
    }

    fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.largest - self.log_total) as f32
    }
}

/// The first of the largest finite logits.
fn first_of_largest(logits: &[f32]) -> Option<u32> {
    let finite = |logit: f32| if logit.is_finite() { logit } else { f32::NEG_INFINITY };
    let largest = logits.iter().copied().map(finite).fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit.is_finite() && logit == largest).map(|at| at as u32)
}

fn largest(candidates: &[Candidate]) -> f32 {
    candidates.iter().map(|one| one.1).fold(f32::NEG_INFINITY, f32::max)
}

/// Standard deviation of the candidates' logits.
fn deviation(candidates: &[Candidate]) -> f32 {
    let n = candidates.len() as f64;
    let mean = candidates.iter().map(|one| f64::from(one.1)).sum::<f64>() / n;
    let variance = candidates.iter().map(|one| (f64::from(one.1) - mean).powi(2)).sum::<f64>() / n;
    variance.sqrt() as f32
}

fn is_allowed(allowed: Option<&[u32]>, token: u32) -> bool {
    let bit = |words: &[u32]| words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
    allowed.is_none_or(bit)
}

/// The device's random number for the sample of that number, in [0, 1).
fn uniform(seed: u64, number: u32) -> f32 {
    let state = pcg(number ^ pcg(seed as u32 ^ pcg((seed >> 32) as u32)));
    (state >> 8) as f32 / 16_777_216.0
}

/// PCG-RXS-M-XS-32 (O'Neill 2014).
fn pcg(input: u32) -> u32 {
    let state = input.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sampling: Sampling, further: HostSampling, tokens: &[u32], logits: &[f32]) -> HostSampled {
        HostSampler::new(sampling, further).sample(0, tokens, &mut logits.to_vec(), None).unwrap()
    }

    #[test]
    fn bias_and_penalties_change_the_largest_logit() {
        let greedy =
            |further: HostSampling| sample(Sampling::default(), further, &[2, 2, 2, 1], &[0.0, 1.0, 2.5]).token;
        assert_eq!(greedy(HostSampling::default()), 2);
        assert_eq!(greedy(HostSampling::default().with(|further| further.logit_bias = vec![(0, 3.0)])), 0);
        assert_eq!(
            greedy(HostSampling::default().with(|further| further.logit_bias = vec![(2, f32::NEG_INFINITY)])),
            1
        );
        // Presence costs both as much; frequency costs the one three times as much as the other.
        assert_eq!(greedy(HostSampling::default().with(|further| further.presence_penalty = 2.0)), 2);
        assert_eq!(greedy(HostSampling::default().with(|further| further.frequency_penalty = 0.8)), 1);
        assert_eq!(greedy(HostSampling::default().with(|further| further.presence_penalty = 9.0)), 0);
    }

    #[test]
    fn logarithms_of_probabilities_are_the_model_s_or_what_the_filters_leave() {
        let logits = [1.0f32, 2.0, 3.0, 0.0];
        let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
        let biased = HostSampling::default().with(|further| {
            further.n_top = Some(2);
            further.logit_bias = vec![(2, f32::NEG_INFINITY)];
        });
        let HostSampled { token, logprob, top, .. } = sample(Sampling::default(), biased.clone(), &[], &logits);
        assert_eq!((token, top[0].token, top[1].token), (1, 2, 1));
        assert!((logprob.unwrap() - (2.0 - total.ln())).abs() < 1e-6 && Some(top[1].logprob) == logprob);
        let filtered = biased.with(|further| further.reports_filtered = true);
        let HostSampled { logprob, top, .. } = sample(Sampling::default(), filtered, &[], &logits);
        // Greedy sampling leaves one token.
        assert_eq!((logprob, top), (Some(0.0), vec![TokenLogprob { token: 1, logprob: 0.0 }]));
    }

    #[test]
    fn a_mask_leaves_what_it_allows_or_nothing() {
        let sampler = HostSampler::new(Sampling::default(), HostSampling::default());
        let masked =
            |words: &[u32]| sampler.sample(0, &[], &mut [0.0, 1.0, 2.0], Some(words)).map(|sampled| sampled.token);
        assert_eq!([&[0b011][..], &[0b111], &[0], &[]].map(masked), [Some(1), Some(2), None, None]);
    }

    #[test]
    fn typical_sampling_can_leave_the_most_likely_token_out() {
        // Probabilities of 0.4 and 6 times 0.1: entropy 1.75, from which 0.1 (2.3) is 0.55 away, 0.4 (0.92) 0.83.
        let mut logits = vec![0.1f32.ln(); 7];
        logits[0] = 0.4f32.ln();
        let warm = Sampling::default().with(|sampling| sampling.temperature = 1.0);
        let typical = HostSampling::default().with(|further| further.typical_p = 0.5);
        let sampled = sample(warm, typical, &[], &logits);
        assert!(sampled.candidates == 6 && sampled.token != 0, "{sampled:?}");
    }

    #[test]
    fn parameters_outside_their_range_are_refused() {
        let refused =
            |change: fn(&mut HostSampling)| HostSampling::default().with(change).check(10).unwrap_err().to_string();
        assert!(refused(|further| further.logit_bias = vec![(10, 1.0)]).contains("vocabulary"));
        assert!(refused(|further| further.logit_bias = vec![(1, f32::NAN)]).contains("finite"));
        assert!(refused(|further| further.typical_p = 0.0).contains("typical-p"));
        assert!(refused(|further| further.presence_penalty = f32::INFINITY).contains("presence"));
    }
}
