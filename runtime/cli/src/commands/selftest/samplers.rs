//! The sampler of a kind of step, with and without a mask, against sampling on the host from the same logits. What a target's other kernels
//! round changes which token is sampled, so that two targets' tokens are not compared with each other.

use super::observe::{ProgramSource, Sides};
use super::row::top;
use crate::error::CliError;
use unicorn_runtime::{HostSampled, HostSampler, HostSampling, Sampled, Sampling, StepShape};

/// Probability between the token of the device and that of the host, which sum up to 100,000 probabilities with different rounding.
const ROUNDED_MASS: f64 = 1e-3;

/// What the sampler of a step does otherwise than the host; `None`: nothing. With `masked`, only every third token may be sampled, and not
/// the most likely one.
pub fn difference(
    sides: &mut Sides<'_>,
    shape: StepShape,
    cached: u32,
    masked: bool,
) -> Result<Option<String>, CliError> {
    let (before, tokens) = (sides.window(0, cached as usize), sides.window(cached as usize, shape.rows as usize));
    let mut session = sides.model().session()?;
    session.feed(&before)?;
    let logits = sides.within(shape, &mut ProgramSource::Own, |_| {
        session.set_chunk_tokens(shape.rows);
        session.feed_and_read_logits(&tokens)
    })?;
    let mask = masked.then(|| every_third(logits.len(), top(&logits) + 1));
    let history = [before.clone(), tokens.clone()].concat();
    for (what, sampling) in ways() {
        session.clear();
        session.set_chunk_tokens(0);
        session.feed(&before)?;
        session.restart_samples();
        session.set_chunk_tokens(shape.rows);
        let found = sides.within(shape, &mut ProgramSource::Own, |_| match &mask {
            Some(mask) => session.feed_and_sample_masked(&tokens, &sampling, |words| words.copy_from_slice(mask)),
            None => session.feed_and_sample(&tokens, &sampling),
        })?;
        let host = HostSampler::new(sampling, HostSampling::default());
        let mut adjusted = logits.clone();
        let expected = host.sample(0, &history, &mut adjusted, mask.as_deref());
        if !expected.is_some_and(|expected| agree(&expected, &found, &adjusted, mask.as_deref())) {
            return Ok(Some(what.to_owned()));
        }
    }
    Ok(None)
}

/// Parameters with which a sampler is checked: all but the last leave few tokens, so that rounding hardly decides which is sampled.
fn ways() -> [(&'static str, Sampling); 5] {
    let few = |change: fn(&mut Sampling)| {
        let warm = |sampling: &mut Sampling| (sampling.temperature, sampling.top_k, sampling.seed) = (0.8, 40, 7);
        Sampling::default().with(warm).with(change)
    };
    [
        // Below 1 it prefers what was there before, whose logits are not the largest.
        ("repeat penalty", Sampling::default().with(|sampling| sampling.repeat_penalty = 0.05)),
        ("top-k", few(|_| ())),
        ("top-p", few(|sampling| (sampling.top_p, sampling.seed) = (0.6, 8))),
        ("min-p", few(|sampling| (sampling.min_p, sampling.seed) = (0.5, 9))),
        ("temperature", Sampling::default().with(|sampling| (sampling.temperature, sampling.seed) = (1.0, 10))),
    ]
}

/// Bits of every third token, from number `first % 3` on.
fn every_third(vocab: usize, first: usize) -> Vec<u32> {
    let mut words = vec![0u32; vocab.div_ceil(32)];
    for token in (first % 3..vocab).step_by(3) {
        words[token / 32] |= 1 << (token % 32);
    }
    words
}

/// Whether both sampled the same, or, where all tokens remain, tokens with hardly any probability between them.
fn agree(expected: &HostSampled, found: &Sampled, logits: &[f32], mask: Option<&[u32]>) -> bool {
    let is_allowed = |token: usize| mask.is_none_or(|mask| mask[token / 32] >> (token % 32) & 1 == 1);
    let allowed: Vec<usize> = (0..logits.len()).filter(|&token| is_allowed(token)).collect();
    if expected.candidates != found.candidates || (found.token as usize) >= logits.len() {
        return false;
    }
    let all_remain = expected.candidates as usize == allowed.len();
    if expected.token == found.token || !all_remain {
        return expected.token == found.token;
    }
    let largest = allowed.iter().map(|&token| logits[token]).fold(f32::NEG_INFINITY, f32::max);
    let mass = |token: usize| f64::from(logits[token] - largest).exp();
    let ends = [expected.token as usize, found.token as usize];
    let between = ends[0].min(ends[1]) + 1..ends[0].max(ends[1]);
    let is_between = |token: &&usize| between.contains(*token);
    let part: f64 = allowed.iter().filter(is_between).map(|&token| mass(token)).sum();
    let all: f64 = allowed.iter().map(|&token| mass(token)).sum();
    is_allowed(found.token as usize) && part <= ROUNDED_MASS * all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(token: u32, candidates: u32) -> HostSampled {
        HostSampled { token, logprob: None, top: Vec::new(), candidates }
    }

    fn device(token: u32, candidates: u32) -> Sampled {
        Sampled { token, logit: 0.0, candidates }
    }

    #[test]
    fn a_token_may_differ_only_where_all_remain_and_hardly_any_probability_lies_between() {
        let logits = [1.0, 1.0, -20.0, 1.0, 1.0];
        assert!(agree(&host(1, 5), &device(1, 5), &logits, None));
        assert!(agree(&host(1, 5), &device(3, 5), &logits, None), "token 2 has a probability of 2e-10");
        assert!(!agree(&host(1, 5), &device(4, 5), &logits, None));
        assert!(!agree(&host(1, 2), &device(3, 2), &logits, None));
        assert!(!agree(&host(1, 5), &device(1, 4), &logits, None));
        assert!(!agree(&host(1, 5), &device(9, 5), &logits, None));
    }

    #[test]
    fn a_token_that_the_mask_leaves_out_is_wrong() {
        let mask = every_third(5, 4);
        assert_eq!(mask, [0b10010]);
        assert!(!agree(&host(1, 2), &device(2, 2), &[0.0; 5], Some(&mask)));
        assert!(agree(&host(1, 2), &device(4, 2), &[0.0; 5], Some(&mask)), "no token that may be sampled between");
    }
}
