//! Sums to which many workgroups add their parts in any order: integer multiples of 2^-32, so that every order gives the same sum.
//!
//! ```text
//! sums     one i64 an element of one row, value · 2^32; zeroed by the dispatch before the one that adds
//! ```
//!
//! From 2^-8 on, that is finer than f32. Each part is truncated towards zero, by less than 2^-32, and bounded by 2^31; sums beyond
//! that wrap around, and a NaN becomes a number: no activation of a sound model comes near that bound.

use crate::template::Values;

/// Bits of a sum behind the point.
const FRACTION_BITS: u32 = 32;

/// Words of a sum; an f32 has one.
pub const WORDS_PER_ELEMENT: usize = 2;

/// `x` as the fixed-point number that is added.
pub fn fixed(x: f32) -> i64 {
    (x * unit()) as i64
}

/// The value of a sum.
pub fn value(sum: i64) -> f32 {
    sum as f32 / unit()
}

/// The words of a sum, in the device's order.
pub fn words_of(sum: i64) -> [u32; WORDS_PER_ELEMENT] {
    [sum as u32, (sum >> 32) as u32]
}

/// The sum of these words.
pub fn of_words([low, high]: [u32; WORDS_PER_ELEMENT]) -> i64 {
    i64::from(low) | i64::from(high as i32) << 32
}

/// 2 to the power of [`FRACTION_BITS`].
fn unit() -> f32 {
    2f32.powi(FRACTION_BITS as i32)
}

/// Values for pieces that include `clear_sums`, in a kernel that zeroes `clears` elements.
pub(crate) fn clearing(clears: usize, values: Values) -> Values {
    assert!(clears.is_multiple_of(4), "sums are zeroed four at a time");
    values.flag("CLEARS", clears > 0).size("CLEARED_QUADS", clears / 4)
}

/// WGSL of the factor that makes an f32 a fixed-point number.
pub(crate) fn unit_wgsl() -> String {
    format!("{:?}f", unit())
}

/// WGSL of the factor that makes a sum an f32.
pub(crate) fn inverse_unit_wgsl() -> String {
    format!("{:?}f", 1.0 / unit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_comes_back(x in -1e6f32..1e6) {
            prop_assert!((value(fixed(x)) - x).abs() <= 1.0 / unit());
            prop_assert_eq!(of_words(words_of(fixed(x))), fixed(x));
        }
    }
}
