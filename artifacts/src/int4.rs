//! The definition of the quantised numbers INT4 and INT8, one group at a time.
//!
//! A *group* is 32, 64 or 128 consecutive weights of one row that share one scale. Everything here is about single
//! groups; `kernels::layout` defines where groups lie in a tensor.
//!
//! ```text
//! INT4   weight = (q - zero) * scale        q, zero in 0..=15
//!
//!        params, one u16 a group            15    12 11                    0
//!                                          ┌────────┬───────────────────────┐
//!                                          │  zero  │  scale as f16 >> 3    │
//!                                          └────────┴───────────────────────┘
//!        A scale is never negative, so f16's sign bit is free; the zero point replaces three bits of mantissa. The
//!        remaining bits (5 of exponent, 7 of mantissa) are within 0.4 % of any scale, far below a 4-bit step.
//!
//!        wide params, one u32 a group       31                  16 15                    0
//!                                          ┌──────────────────────┬───────────────────────┐
//!                                          │         zero         │     scale as f16      │
//!                                          └──────────────────────┴───────────────────────┘
//!        For weights that a model's own files have as INT4, with scales that do not fit the other format.
//!
//!        eight nibbles a u32                byte b of word w holds weights 8w+b (low nibble) and 8w+b+4 (high nibble), so that
//!                                           `word & 0x0f0f0f0f` and `word >> 4 & 0x0f0f0f0f` are four consecutive codes each
//!
//! INT8   weight = q * scale                 q in -127..=127, scale an f16; four bytes a u32, first weight lowest
//! ```
//!
//! INT4 costs 4 + 16/group bits a weight (4.5 at 32), with wide parameters 4 + 32/group; INT8 costs 8 + 16/32.

use half::f16;

/// Largest INT4 code.
pub const INT4_MAX: u8 = 15;
/// Largest magnitude of an INT8 code.
pub const INT8_MAX: i8 = 127;
/// Weights that share a scale in INT8.
pub const INT8_GROUP: usize = 32;
/// INT4 weights in one u32.
pub const INT4_PER_WORD: usize = 8;
/// Bits of f16's mantissa that the zero point replaces in an INT4 scale.
pub const SCALE_SHIFT: u32 = 3;
/// Bit position of the zero point in a group's parameters.
pub const ZERO_SHIFT: u32 = 12;

/// Scale and zero point of one INT4 group, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Int4Params(pub u16);

impl Int4Params {
    /// The nearest storable parameters; `scale` must be finite and not negative, `zero` at most 15.
    pub fn new(scale: f32, zero: u8) -> Int4Params {
        assert!(scale.is_finite() && scale >= 0.0, "INT4 scale must be finite and not negative, found {scale}");
        assert!(zero <= INT4_MAX, "INT4 zero point must be at most 15, found {zero}");
        let bits = f16::from_f32(scale).to_bits();
        // Round to nearest; the largest finite f16 stays finite because its mantissa is cut, not rounded up.
        let rounded = (bits + (1 << (SCALE_SHIFT - 1))).min(f16::MAX.to_bits()) >> SCALE_SHIFT;
        Int4Params(rounded | (u16::from(zero) << ZERO_SHIFT))
    }

    /// The scale as the GPU reads it.
    pub fn scale(self) -> f32 {
        f16::from_bits((self.0 << SCALE_SHIFT) & 0x7fff).to_f32()
    }

    /// The zero point, 0..=15.
    pub fn zero(self) -> u8 {
        (self.0 >> ZERO_SHIFT) as u8
    }

    /// The weight of code `q`.
    pub fn decode(self, q: u8) -> f32 {
        (f32::from(q) - f32::from(self.zero())) * self.scale()
    }
}

/// Scale and zero point of one INT4 group whose scale is a whole f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WideInt4Params(pub u32);

impl WideInt4Params {
    /// These parameters; `zero` is at most 15.
    pub fn new(scale: f16, zero: u8) -> WideInt4Params {
        assert!(zero <= INT4_MAX, "INT4 zero point must be at most 15, found {zero}");
        WideInt4Params(u32::from(scale.to_bits()) | (u32::from(zero) << 16))
    }

    /// The scale.
    pub fn scale(self) -> f32 {
        f16::from_bits(self.0 as u16).to_f32()
    }

    /// The zero point, 0..=15.
    pub fn zero(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// The weight of code `q`.
    pub fn decode(self, q: u8) -> f32 {
        (f32::from(q) - f32::from(self.zero())) * self.scale()
    }
}

/// Packs codes (0..=15), eight a word, in the order above. `codes.len()` is `8 * words.len()`.
pub fn pack_int4(codes: &[u8], words: &mut [u32]) {
    assert_eq!(codes.len(), words.len() * INT4_PER_WORD);
    for (word, eight) in words.iter_mut().zip(codes.chunks_exact(INT4_PER_WORD)) {
        *word = eight.iter().enumerate().fold(0, |acc, (j, &q)| acc | (u32::from(q & 15) << nibble_shift(j)));
    }
}

/// The inverse of [`pack_int4`].
pub fn unpack_int4(words: &[u32], codes: &mut [u8]) {
    assert_eq!(codes.len(), words.len() * INT4_PER_WORD);
    for (word, eight) in words.iter().zip(codes.chunks_exact_mut(INT4_PER_WORD)) {
        for (j, q) in eight.iter_mut().enumerate() {
            *q = ((word >> nibble_shift(j)) & 15) as u8;
        }
    }
}

/// Bit at which code `j` of a word begins.
fn nibble_shift(j: usize) -> usize {
    8 * (j % 4) + 4 * (j / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn scale_is_within_half_a_step_of_seven_mantissa_bits(scale in 1e-4f32..6e4, zero in 0u8..16) {
            let params = Int4Params::new(scale, zero);
            prop_assert_eq!(params.zero(), zero);
            prop_assert!((params.scale() - scale).abs() <= scale / 256.0 + scale / 2048.0);
        }

        #[test]
        fn packing_round_trips(codes in prop::collection::vec(0u8..16, 32)) {
            let (mut words, mut back) = ([0; 4], [0; 32]);
            pack_int4(&codes, &mut words);
            unpack_int4(&words, &mut back);
            prop_assert_eq!(&codes[..], &back[..]);
        }
    }

    #[test]
    fn the_largest_scale_stays_finite() {
        assert!(Int4Params::new(65504.0, 15).decode(0).is_finite());
        assert_eq!(Int4Params::new(0.0, 7).decode(3), 0.0);
    }
}
