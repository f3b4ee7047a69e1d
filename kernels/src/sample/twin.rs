//! The kernel in plain loops, to check it by.

use unicorn_artifact::step::Sampler;

/// What the twin samples.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The token that the kernel should sample, unless rounding of the cumulative mass changes it.
    pub token: u32,
    /// Every token that top-k, top-p and min-p leave, in order of id.
    pub candidates: Vec<u32>,
}

/// The kernel by sorting: applies penalties to `logits` (vocab) in place and samples. `mask`: which tokens may be sampled, at least one; a bit
/// each, the first token's in the lowest bit of the first word. `None`: all.
pub fn twin(sampler: &Sampler, history: &[u32], mask: Option<&[u32]>, logits: &mut [f32]) -> SampledToken {
    for (index, &token) in history.iter().enumerate() {
        if !history[..index].contains(&token) {
            let logit = &mut logits[token as usize];
            *logit = if *logit > 0.0 { *logit / sampler.repeat_penalty } else { *logit * sampler.repeat_penalty };
        }
    }
    let is_allowed = |token: &u32| mask.is_none_or(|mask| mask[*token as usize / 32] >> (token % 32) & 1 == 1);
    let allowed: Vec<u32> = (0..logits.len() as u32).filter(is_allowed).collect();
    let mut order = allowed.clone();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let largest = logits[order[0] as usize];
    if sampler.temperature == 0.0 {
        return SampledToken { token: order[0], candidates: vec![order[0]] };
    }
    let mut threshold = f32::NEG_INFINITY;
    if sampler.top_k > 0 {
        let kth = order[(sampler.top_k as usize).min(order.len()) - 1];
        threshold = logits[kth as usize];
    }
    let mass = |token: u32| f64::from(logits[token as usize] - largest).exp();
    if sampler.top_p < 1.0 {
        let kept: Vec<u32> = order.iter().copied().filter(|&token| logits[token as usize] >= threshold).collect();
        let wanted = f64::from(sampler.top_p) * kept.iter().map(|&token| mass(token)).sum::<f64>();
        let mut above = 0.0;
        for token in kept {
            threshold = logits[token as usize];
            above += mass(token);
            if above >= wanted {
                break;
            }
        }
    }
    if sampler.min_p > 0.0 {
        threshold = threshold.max(largest + sampler.min_p.ln());
    }
    let candidates: Vec<u32> = allowed.into_iter().filter(|&token| logits[token as usize] >= threshold).collect();
    let heat = |token: u32| f64::from((logits[token as usize] - largest) / sampler.temperature).exp();
    let total: f64 = candidates.iter().map(|&token| heat(token)).sum();
    let mut left = f64::from(uniform(sampler)) * total;
    let token = candidates.iter().copied().find(|&token| {
        left -= heat(token);
        left < 0.0
    });
    SampledToken { token: token.unwrap_or(*candidates.last().expect("the largest always stays")), candidates }
}

/// The random number of this sample, in [0, 1).
pub fn uniform(sampler: &Sampler) -> f32 {
    let state = pcg(sampler.sample ^ pcg(sampler.seed_low ^ pcg(sampler.seed_high)));
    (state >> 8) as f32 / 16_777_216.0
}

fn pcg(input: u32) -> u32 {
    let state = input.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}
