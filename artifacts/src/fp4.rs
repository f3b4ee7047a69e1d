//! The definition of MXFP4 in artifacts: E2M1 codes, of which 32 share a scale.
//!
//! ```text
//! weight = level(q) * scale             scale = 2^(e - 128), an f16; e is the E8M0 exponent of the OCP Microscaling formats, v1.0
//!
//! q             0  1  2  3  4  5  6  7     8  9 10 11 12 13 14  15
//! level(q)      0  1  2  3  4  6  8 12    -0 -1 -2 -3 -4 -6 -8 -12      twice E2M1's number
//! ```
//!
//! Codes are packed in a u32 as INT4's are ([`crate::int4::pack_int4`]). Levels are integers, as packed dot products need them, and
//! a level times a scale is an f16 if e is in 104..=140: no bit of such a weight is lost.

use half::f16;

/// Weights that share a scale.
pub const FP4_GROUP: usize = 32;
/// The largest magnitude of a level.
pub const FP4_MAX_LEVEL: i8 = 12;
/// The smallest exponent whose scale is an f16, 2^-24.
pub const FP4_MIN_EXPONENT: u8 = 104;
/// The largest exponent for which every level times the scale is a finite f16.
pub const FP4_MAX_EXPONENT: u8 = 140;

/// Level of code `q`, 0..=15, without its scale.
pub fn fp4_level(q: u8) -> i8 {
    const MAGNITUDES: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let magnitude = MAGNITUDES[usize::from(q & 7)];
    if q & 8 == 0 { magnitude } else { -magnitude }
}

/// The code of the level nearest to `value`; at equal distances, of the smaller level.
pub fn fp4_nearest(value: f32) -> u8 {
    let distance = |q: u8| (f32::from(fp4_level(q)) - value.abs()).abs();
    let nearest = (1..8).fold(0, |best, q| if distance(q) < distance(best) { q } else { best });
    if value < 0.0 { nearest | 8 } else { nearest }
}

/// The scale of a group with E8M0 exponent `exponent`; `None`: no f16 holds it and its products.
pub fn fp4_scale(exponent: u8) -> Option<f16> {
    (FP4_MIN_EXPONENT..=FP4_MAX_EXPONENT)
        .contains(&exponent)
        .then(|| f16::from_f32((f32::from(exponent) - 128.0).exp2()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_of_the_range_is_an_f16() {
        for exponent in FP4_MIN_EXPONENT..=FP4_MAX_EXPONENT {
            let scale = fp4_scale(exponent).expect("inside the range").to_f32();
            assert_eq!(scale, (f32::from(exponent) - 128.0).exp2());
            for q in 0..16 {
                let weight = f32::from(fp4_level(q)) * scale;
                assert_eq!(f16::from_f32(weight).to_f32(), weight);
            }
        }
        assert_eq!((fp4_scale(FP4_MIN_EXPONENT - 1), fp4_scale(FP4_MAX_EXPONENT + 1)), (None, None));
        assert!(!f16::from_f32(f32::from(FP4_MAX_LEVEL) * 2f32.powi(13)).is_finite());
    }

    /// E2M1: a sign, two bits of exponent with a bias of 1, one of mantissa.
    #[test]
    fn a_level_is_twice_e2m1() {
        for q in 0..16u8 {
            let (sign, exponent, mantissa) = (q >> 3, q >> 1 & 3, f32::from(q & 1));
            let number = match exponent {
                0 => mantissa / 2.0,
                _ => (1.0 + mantissa / 2.0) * 2f32.powi(i32::from(exponent) - 1),
            };
            let signed = if sign == 1 { -number } else { number };
            assert_eq!(f32::from(fp4_level(q)), 2.0 * signed);
            assert_eq!(fp4_level(fp4_nearest(2.0 * signed)), fp4_level(q));
        }
        assert_eq!([5.0, -5.1, 7.2, 99.0].map(fp4_nearest).map(fp4_level), [4, -6, 8, 12]);
    }
}
