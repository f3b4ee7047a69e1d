//! One MXFP4 group. A source in MXFP4 keeps every bit: the scales that are tried, powers of two of which the group's largest weight
//! may be a level, include the source's scale or one that holds the same numbers.

use half::f16;
use unicorn_artifact::fp4::{
    FP4_GROUP, FP4_MAX_EXPONENT, FP4_MAX_LEVEL, FP4_MIN_EXPONENT, fp4_level, fp4_nearest, fp4_scale,
};

use super::ErrorSum;

/// Largest magnitude that the largest scale holds.
pub const MAX_FP4_WEIGHT: f32 = FP4_MAX_LEVEL as f32 * (1 << (FP4_MAX_EXPONENT - 128)) as f32;

/// Writes the codes and the scale of one group. Weights must be within ±[`MAX_FP4_WEIGHT`]; those below the smallest scale are
/// rounded to its multiples.
pub fn quantize_fp4_group(weights: &[f32; FP4_GROUP], codes: &mut [u8; FP4_GROUP], stored_scale: &mut f16) -> ErrorSum {
    let most = weights.iter().fold(0f32, |most, weight| most.max(weight.abs()));
    // The scale of which `most` is a level from 8 on, and below 16: 12 and less than 12 are this scale's, more than 12 is the next's.
    let exponent = (most.to_bits() >> 23) as i32 - 127 - 3 + 128;
    let mut best: Option<ErrorSum> = None;
    // From there on down to where `most` would be level 1.
    for exponent in exponent..=exponent + 3 {
        let exponent = exponent.clamp(i32::from(FP4_MIN_EXPONENT), i32::from(FP4_MAX_EXPONENT)) as u8;
        let scale = fp4_scale(exponent).expect("inside the range").to_f32();
        let found = weights.map(|weight| fp4_nearest(weight / scale));
        let decoded = found.map(|code| f32::from(fp4_level(code)) * scale);
        let sum = weights.iter().zip(decoded).fold(ErrorSum::default(), |sum, (&weight, ours)| sum.with(weight, ours));
        if best.is_none_or(|best| sum.squared_error < best.squared_error) {
            (*codes, *stored_scale, best) = (found, f16::from_f32(scale), Some(sum));
        }
        if sum.squared_error == 0.0 {
            break;
        }
    }
    best.expect("one scale at least was tried")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(codes: &[u8; FP4_GROUP], scale: f16) -> [f32; FP4_GROUP] {
        codes.map(|code| f32::from(fp4_level(code)) * scale.to_f32())
    }

    fn quantized(weights: &[f32; FP4_GROUP]) -> ([f32; FP4_GROUP], ErrorSum) {
        let (mut codes, mut scale) = ([0; FP4_GROUP], f16::ZERO);
        let sum = quantize_fp4_group(weights, &mut codes, &mut scale);
        (decoded(&codes, scale), sum)
    }

    proptest! {
        #[test]
        fn mxfp4_is_found_again(
            codes in prop::array::uniform32(0u8..16),
            most in 0u8..16,
            exponent in FP4_MIN_EXPONENT..=FP4_MAX_EXPONENT,
        ) {
            // Groups whose largest level is each of them.
            let bounded = codes.map(|code| if code & 7 > most & 7 { most } else { code });
            let weights = decoded(&bounded, fp4_scale(exponent).expect("inside the range"));
            let (found, sum) = quantized(&weights);
            prop_assert_eq!(found, weights);
            prop_assert_eq!(sum.squared_error, 0.0);
        }

        #[test]
        fn other_weights_are_within_the_widest_gap(weights in prop::array::uniform32(-3f32..3.0)) {
            let (found, _) = quantized(&weights);
            let most = weights.iter().fold(0f32, |most, weight| most.max(weight.abs()));
            // Between levels 8 and 12 of a scale of which the largest weight is 8 at least; 16 is cut to 12.
            for (weight, found) in weights.iter().zip(found) {
                prop_assert!((weight - found).abs() <= most / 4.0, "{} became {}", weight, found);
            }
        }
    }

    #[test]
    fn what_is_below_the_smallest_scale_is_rounded() {
        let mut weights = [0.0; FP4_GROUP];
        (weights[0], weights[1], weights[2]) = (3.0 * 2f32.powi(-26), 2f32.powi(-149), 2f32.powi(-25) * 1.5);
        let (found, sum) = quantized(&weights);
        assert_eq!(found[..3], [2f32.powi(-24), 0.0, 2f32.powi(-24)]);
        assert!(sum.squared_error > 0.0);
        assert_eq!(quantized(&[0.0; FP4_GROUP]).1, ErrorSum::default());
    }
}
