//! The frequencies of rotary embeddings: [`RopeScaling`] names how a context was extended, and
//! [`RopeScaling::frequencies`] computes it as transformers' `modeling_rope_utils` does, in f64.

use std::f64::consts::TAU;

use super::config::{LongRope, RopeConfig};

/// How a model's rotary embedding differs from the plain one. Context lengths are in tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RopeScaling {
    /// Also NTK-aware `dynamic`: transformers changes its base only for sequences longer than
    /// `max_position_embeddings`, and that is the longest context we run.
    Default,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_positions: usize,
    },
    Yarn {
        factor: f64,
        original_positions: usize,
        /// Replaces the value that `factor` and `mscale` give.
        attention_factor: Option<f64>,
        /// `mscale` and `mscale_all_dim`, when both are given and not 0.
        mscale: Option<(f64, f64)>,
        beta_fast: f64,
        beta_slow: f64,
        /// Whether the ramp begins and ends on whole dimensions.
        truncate: bool,
    },
    /// Pairs from `rotated_pairs` on are not rotated; the exponents of the others are those of a head that is rotated as a whole.
    Proportional {
        rotated_pairs: usize,
        factor: f64,
    },
    LongRope {
        /// rotary_dim / 2 divisors each.
        short_factor: Vec<f64>,
        long_factor: Vec<f64>,
        factor: f64,
        original_positions: usize,
        attention_factor: Option<f64>,
    },
}

impl RopeScaling {
    /// Frequencies of a head of which `rotary_dim` dimensions (even) are rotated with base `theta`.
    /// Hostile numbers give infinities or NaN, which [`super::ModelConfig::check`] refuses.
    pub(super) fn frequencies(&self, theta: f64, rotary_dim: usize) -> RopeConfig {
        let plain: Vec<f64> =
            (0..rotary_dim / 2).map(|pair| theta.powf(-((2 * pair) as f64) / rotary_dim as f64)).collect();
        let divided = |divisors: &[f64]| -> Vec<f64> { plain.iter().zip(divisors).map(|(f, d)| f / d).collect() };
        match *self {
            RopeScaling::Default => RopeConfig { inv_freq: plain, attention_factor: 1.0, long: None },
            RopeScaling::Linear { factor } => {
                RopeConfig { inv_freq: plain.iter().map(|f| f / factor).collect(), attention_factor: 1.0, long: None }
            }
            RopeScaling::Proportional { rotated_pairs, factor } => {
                let of_pair = |(pair, f): (usize, &f64)| if pair < rotated_pairs { f / factor } else { 0.0 };
                let inv_freq = plain.iter().enumerate().map(of_pair).collect();
                RopeConfig { inv_freq, attention_factor: 1.0, long: None }
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                let stretch = |f: &f64| {
                    let turns = original_positions as f64 * f / TAU;
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    if turns > high_freq_factor {
                        *f
                    } else if turns < low_freq_factor {
                        f / factor
                    } else {
                        mix(f / factor, *f, kept)
                    }
                };
                RopeConfig { inv_freq: plain.iter().map(stretch).collect(), attention_factor: 1.0, long: None }
            }
            RopeScaling::Yarn {
                factor,
                original_positions,
                attention_factor,
                mscale,
                beta_fast,
                beta_slow,
                truncate,
            } => {
                let ramp = YarnRamp::new(theta, rotary_dim, original_positions, beta_fast, beta_slow, truncate);
                let stretch = |(pair, f): (usize, &f64)| mix(*f, f / factor, ramp.interpolated(pair));
                RopeConfig {
                    inv_freq: plain.iter().enumerate().map(stretch).collect(),
                    attention_factor: attention_factor.unwrap_or_else(|| yarn_attention_factor(factor, mscale)),
                    long: None,
                }
            }
            RopeScaling::LongRope {
                ref short_factor,
                ref long_factor,
                factor,
                original_positions,
                attention_factor,
            } => RopeConfig {
                inv_freq: divided(short_factor),
                attention_factor: attention_factor
                    .unwrap_or_else(|| long_rope_attention_factor(factor, original_positions)),
                // Equal lists stand for divisors that are the same for every length.
                long: (long_factor != short_factor)
                    .then(|| LongRope { inv_freq: divided(long_factor), above_tokens: original_positions }),
            },
        }
    }
}

/// `share` of `b`, the rest of `a`.
fn mix(a: f64, b: f64, share: f64) -> f64 {
    a * (1.0 - share) + b * share
}

/// YaRN does not change the fast pairs, divides the slow ones by the factor, and interpolates between the pairs that turn
/// `beta_fast` and `beta_slow` times within the original context.
struct YarnRamp {
    first_pair: f64,
    last_pair: f64,
}

impl YarnRamp {
    fn new(
        theta: f64,
        rotary_dim: usize,
        original_positions: usize,
        beta_fast: f64,
        beta_slow: f64,
        truncate: bool,
    ) -> YarnRamp {
        let pair_that_turns =
            |times: f64| rotary_dim as f64 * (original_positions as f64 / (times * TAU)).ln() / (2.0 * theta.ln());
        let (mut first_pair, mut last_pair) = (pair_that_turns(beta_fast), pair_that_turns(beta_slow));
        if truncate {
            (first_pair, last_pair) = (first_pair.floor(), last_pair.ceil());
        }
        (first_pair, last_pair) = (first_pair.max(0.0), last_pair.min(rotary_dim as f64 - 1.0));
        if first_pair == last_pair {
            last_pair += 0.001; // As transformers does, so that the ramp has a slope.
        }
        YarnRamp { first_pair, last_pair }
    }

    /// 0 for a pair that is not changed, 1 for one that is divided by the factor.
    fn interpolated(&self, pair: usize) -> f64 {
        ((pair as f64 - self.first_pair) / (self.last_pair - self.first_pair)).clamp(0.0, 1.0)
    }
}

fn yarn_attention_factor(factor: f64, mscale: Option<(f64, f64)>) -> f64 {
    let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    match mscale {
        Some((mscale, mscale_all_dim)) => scale(mscale) / scale(mscale_all_dim),
        None => scale(1.0),
    }
}

fn long_rope_attention_factor(factor: f64, original_positions: usize) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original_positions as f64).ln()).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference is f32 and was printed with 7 digits.
    const TOLERANCE: f64 = 2e-6;

    /// Expected values: transformers 5.23, `ROPE_INIT_FUNCTIONS[rope_type](config)` of a LlamaConfig (Phi3Config for
    /// longrope) with head_dim 16, on the CPU with torch 2.
    fn assert_frequencies(scaling: &RopeScaling, theta: f64, rotary_dim: usize, inv_freq: &[f64], attention: f64) {
        let rope = scaling.frequencies(theta, rotary_dim);
        assert_close(&rope.inv_freq, inv_freq);
        assert_close(&[rope.attention_factor], &[attention]);
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= expected.abs() * TOLERANCE, "found {found}, expected {expected}");
        }
    }

    const PLAIN: [f64; 8] = [1.0, 0.3162278, 0.1, 0.03162278, 0.01, 0.003162278, 0.001, 0.0003162278];

    #[test]
    fn default_and_dynamic_are_powers_of_theta() {
        assert_frequencies(&RopeScaling::Default, 1e4, 16, &PLAIN, 1.0);
    }

    #[test]
    fn linear_divides_all() {
        let expected =
            [0.125, 0.02222849, 0.003952847, 0.0007029267, 0.000125, 2.222849e-05, 3.952847e-06, 7.029267e-07];
        assert_frequencies(&RopeScaling::Linear { factor: 8.0 }, 1e6, 16, &expected, 1.0);
    }

    #[test]
    fn llama3_keeps_fast_pairs_and_divides_slow_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 512 };
        let expected =
            [1.0, 0.1939228, 0.02734413, 0.0009115831, 0.0001767767, 3.428102e-05, 6.64787e-06, 1.289173e-06];
        assert_frequencies(&scaling, 500_000.0, 16, &expected, 1.0);
    }

    fn yarn(attention_factor: Option<f64>) -> RopeScaling {
        RopeScaling::Yarn {
            factor: 4.0,
            original_positions: 1024,
            attention_factor,
            mscale: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
        }
    }

    #[test]
    fn yarn_ramps_from_kept_to_divided() {
        let expected = [1.0, 0.3162278, 0.08125, 0.01976424, 0.004375, 0.0007905695, 0.00025, 7.905695e-05];
        assert_frequencies(&yarn(None), 1e4, 16, &expected, 1.138629436111989);
        assert_frequencies(&yarn(Some(0.5)), 1e4, 16, &expected, 0.5);
    }

    #[test]
    fn yarn_takes_mscale_betas_and_an_untruncated_ramp() {
        let scaling = RopeScaling::Yarn {
            factor: 40.0,
            original_positions: 1024,
            attention_factor: None,
            mscale: Some((0.707, 1.2)),
            beta_fast: 16.0,
            beta_slow: 2.0,
            truncate: false,
        };
        let expected = [1.0, 0.3162278, 0.1, 0.01482551, 0.00025, 7.905695e-05, 2.5e-05, 7.905694e-06];
        assert_frequencies(&scaling, 1e4, 16, &expected, 0.8739404576185121);
    }

    #[test]
    fn longrope_has_one_set_for_short_and_one_for_long_texts() {
        let scaling = |long_factor: [f64; 6]| RopeScaling::LongRope {
            short_factor: vec![1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            long_factor: long_factor.to_vec(),
            factor: 8.0,
            original_positions: 1024,
            attention_factor: None,
        };
        let stretched = scaling([1.0, 2.0, 3.0, 5.0, 8.0, 13.0]);
        let short = [1.0, 0.1958577, 0.0386799, 0.007692308, 0.001538882, 0.0003094393];
        assert_frequencies(&stretched, 1e4, 12, &short, 1.140175425099138);
        let long = stretched.frequencies(1e4, 12).long.unwrap();
        assert_close(&long.inv_freq, &[1.0, 0.1077217, 0.01547196, 0.002, 0.0002693043, 3.570454e-05]);
        assert_eq!(long.above_tokens, 1024);
        assert_eq!(scaling([1.0, 1.1, 1.2, 1.3, 1.4, 1.5]).frequencies(1e4, 12).long, None);
    }
}
