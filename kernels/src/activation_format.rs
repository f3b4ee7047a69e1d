//! How activations are stored between the kernel that writes them and the matmul that reads them: f32, or integers that their
//! producer quantises once, so that a matmul can use packed integer dot products or matrix units.
//!
//! ```text
//! group     32 consecutive elements of a row; x ≈ code · scale
//! Int8      codes -127..=127; the scale has 4 significant bits
//! Int11     codes -1023..=1023 = 16 · high + low, both int8; the scale is a power of two
//!
//! Quantized u32 words of a row:  [group: 8 words of four int8 codes, high plane, then as many for low] … [one word a group]
//!           a group's word:      scale as bf16 (upper half) | sum of its codes as i16 (lower half)
//! RowScaled the same, and behind it one word: the f32 power of two by which f16 values of the row are to be multiplied
//! Halves    [block of 128 elements: 64 words of two f16] … [the factor]: the values themselves, divided by the factor
//!           element k of a block, k = 32 t + 4 d + 2 e + h: half e of word 8 d + 4 h + t
//! ```
//!
//! The order of `Halves` is that in which the lanes of a matrix unit hold 128 neighbouring weights of a row, see `register_gemm`:
//! lane t of four has 32 consecutive ones, and unpacks elements two apart as a pair.
//!
//! The few bits of the scale make `code · scale · 2^n` an f16 without rounding: what integer dot products read in decode and
//! what matrix units read in prefill, f16 or the codes themselves, is the same number. (Products of gate and up that a GEMM from
//! registers makes are the exception: they keep all bits of an f16.) Q and K determine the attention weights, so the projection into
//! them takes Int11; everything else takes Int8. A row of either kind is shorter than the same row in f32, and takes
//! its place: rows keep the stride of f32 elements in words.

use half::f16;
use serde::{Deserialize, Serialize};

use crate::role::Role;
use crate::template::Values;

/// Elements that share a scale.
pub const ACTIVATION_GROUP: usize = 32;

/// Elements of a block of `Halves`, in the order drawn above.
pub const HALVES_BLOCK: usize = 128;

/// Bits of a quantised activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Precision {
    /// Codes of 8 bits, -127..=127.
    Int8,
    /// Codes of 11 bits, -1023..=1023, in two int8 planes.
    Int11,
}

/// How one row of an activation is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ActivationFormat {
    /// Not quantised: one f32 an element.
    F32,
    /// For packed integer dot products.
    Quantized(Precision),
    /// For matrix units: codes, and a factor that brings their values into the range of f16.
    RowScaled(Precision),
    /// For matrix units that take their weights from registers: the values of those codes as f16.
    Halves(Precision),
}

impl Precision {
    /// int8 planes of a code.
    pub fn planes(self) -> usize {
        match self {
            Precision::Int8 => 1,
            Precision::Int11 => 2,
        }
    }

    /// For names of pipelines: the bits of an activation.
    fn name(self) -> &'static str {
        match self {
            Precision::Int8 => "a8",
            Precision::Int11 => "a11",
        }
    }

    /// Maximum magnitude of a code.
    pub fn code_max(self) -> f32 {
        match self {
            Precision::Int8 => 127.0,
            Precision::Int11 => 1023.0,
        }
    }

    /// Bits of an f32 that a scale keeps.
    fn scale_mask(self) -> u32 {
        match self {
            Precision::Int8 => 0xfff0_0000,
            Precision::Int11 => 0xff80_0000,
        }
    }

    /// The least allowed scale that keeps `most` within the codes.
    fn scale(self, most: f32) -> f32 {
        let exact = most.max(LEAST) / self.code_max();
        f32::from_bits((exact.to_bits() + !self.scale_mask()) & self.scale_mask())
    }
}

/// Groups of smaller magnitude get the scale of this one, and codes of 0.
const LEAST: f32 = 1e-30;

impl ActivationFormat {
    /// Precision of the codes; `None` for `F32`.
    pub fn precision(self) -> Option<Precision> {
        match self {
            ActivationFormat::F32 => None,
            ActivationFormat::Quantized(precision)
            | ActivationFormat::RowScaled(precision)
            | ActivationFormat::Halves(precision) => Some(precision),
        }
    }

    /// For names of pipelines: the bits of an activation.
    pub fn name(self) -> &'static str {
        match self {
            ActivationFormat::F32 => "f32",
            ActivationFormat::Quantized(precision)
            | ActivationFormat::RowScaled(precision)
            | ActivationFormat::Halves(precision) => precision.name(),
        }
    }

    /// Values for pieces that include `encode`.
    pub(crate) fn values(self, values: Values) -> Values {
        let precision = self.precision().unwrap_or(Precision::Int8);
        values
            .size("PLANES", precision.planes())
            .number("CODE_MAX", precision.code_max())
            .size("SCALE_MASK", precision.scale_mask() as usize)
            .flag("ENCODE", self != ActivationFormat::F32)
            .flag("ENCODE_FACTOR", self.has_factor())
            .flag("GIVEN_FACTOR", false)
            .flag("HALVES", matches!(self, ActivationFormat::Halves(_)))
            .flag("INT11", precision == Precision::Int11)
    }

    /// Values for pieces that include `encode_row`, those of `encode` included, for rows of `cols` elements.
    pub(crate) fn row_values(self, cols: usize, values: Values) -> Values {
        let precision = self.precision().unwrap_or(Precision::Int8);
        self.values(values)
            .size("STORED_QUADS", self.stored_quads(cols))
            .size("GROUP_WORDS_AT", group_words_at(cols, precision))
            .size("FACTOR_AT", self.factor_at(cols))
    }

    /// Elements of a row that are written four at a time: the row, and zeros to the end of its last group or block.
    pub(crate) fn stored_quads(self, cols: usize) -> usize {
        let whole = match self {
            ActivationFormat::F32 => 4,
            ActivationFormat::Quantized(_) | ActivationFormat::RowScaled(_) => ACTIVATION_GROUP,
            ActivationFormat::Halves(_) => HALVES_BLOCK,
        };
        cols.next_multiple_of(whole) / 4
    }

    pub(crate) fn has_factor(self) -> bool {
        matches!(self, ActivationFormat::RowScaled(_) | ActivationFormat::Halves(_))
    }

    /// Index of the last word of a `RowScaled` or `Halves` row, which holds the row's factor.
    pub fn factor_at(self, cols: usize) -> usize {
        match self {
            ActivationFormat::Halves(_) => cols.next_multiple_of(HALVES_BLOCK) / 2,
            other => factor_at(cols, other.precision().unwrap_or(Precision::Int8)),
        }
    }

    /// Whether attention writes such rows itself: its groups lie within heads, and no block reaches past the last head.
    pub fn lies_in_heads(self, n_heads: usize, head_dim: usize) -> bool {
        let cols = n_heads * head_dim;
        self == ActivationFormat::F32
            || head_dim.is_multiple_of(ACTIVATION_GROUP) && 4 * self.stored_quads(cols) == cols
    }

    /// The binding through which such a row is written.
    pub(crate) fn output_role(self) -> Role {
        if self == ActivationFormat::F32 { Role::OutputQuads } else { Role::Encoded }
    }
}

/// Groups of a row of `cols` elements.
pub fn groups(cols: usize) -> usize {
    cols.div_ceil(ACTIVATION_GROUP)
}

/// Words of a row of codes that precede its groups' words.
pub fn group_words_at(cols: usize, precision: Precision) -> usize {
    groups(cols) * precision.planes() * ACTIVATION_GROUP / 4
}

/// Index of the word of a `RowScaled` row that holds the row's factor.
pub(crate) fn factor_at(cols: usize, precision: Precision) -> usize {
    group_words_at(cols, precision) + groups(cols)
}

/// The factor of all rows that attention writes: means of f16 values are in the range of f16, and a code's value is less than twice
/// the value that it replaces.
pub(crate) const ATTENTION_FACTOR: f32 = 2.0;

/// Encodes one row as a kernel writes it, for twins. An f32 row keeps its values.
pub fn encode_row(format: ActivationFormat, row: &[f32]) -> Vec<u32> {
    encode_divided_row(format, row, row_factor(row))
}

/// Encodes one row with this factor, if the format has one.
pub(crate) fn encode_divided_row(format: ActivationFormat, row: &[f32], factor: f32) -> Vec<u32> {
    let Some(precision) = format.precision() else { return row.iter().map(|x| x.to_bits()).collect() };
    let quantised: Vec<([i32; ACTIVATION_GROUP], f32)> =
        row.chunks(ACTIVATION_GROUP).map(|group| quantise_group(precision, group)).collect();
    let mut words = match format {
        ActivationFormat::Halves(_) => encode_halves(&quantised, factor),
        _ => encode_codes(precision, &quantised),
    };
    if format.has_factor() {
        words.push(factor.to_bits());
    }
    words
}

/// The `cols` values that a stored row stands for.
pub fn decode_row(format: ActivationFormat, words: &[u32], cols: usize) -> Vec<f32> {
    match format {
        ActivationFormat::F32 => words[..cols].iter().map(|&word| f32::from_bits(word)).collect(),
        ActivationFormat::Quantized(precision) | ActivationFormat::RowScaled(precision) => {
            let of_group = &words[group_words_at(cols, precision)..];
            let byte = |word: u32, i: usize| i32::from((word >> (8 * (i % 4))) as u8 as i8);
            let code = |i: usize| {
                let (group, within) = (i / ACTIVATION_GROUP, i % ACTIVATION_GROUP / 4);
                let at = group * precision.planes() * 8 + within;
                match precision {
                    Precision::Int8 => byte(words[at], i),
                    Precision::Int11 => 16 * byte(words[at], i) + byte(words[at + 8], i),
                }
            };
            let scale = |i: usize| f32::from_bits(of_group[i / ACTIVATION_GROUP] & 0xffff_0000);
            (0..cols).map(|i| code(i) as f32 * scale(i)).collect()
        }
        ActivationFormat::Halves(_) => {
            let factor = f32::from_bits(words[format.factor_at(cols)]);
            let value = |i: usize| {
                let (word, half) = place_of_half(i);
                f16::from_bits((words[word] >> (16 * half)) as u16).to_f32() * factor
            };
            (0..cols).map(value).collect()
        }
    }
}

/// Indices of the word and the half that hold an element of a row of `Halves`.
fn place_of_half(i: usize) -> (usize, usize) {
    let (block, within) = (i / HALVES_BLOCK, i % HALVES_BLOCK);
    let (t, d) = (within / 32, within % 32 / 4);
    (HALVES_BLOCK / 2 * block + 8 * d + 4 * (within % 2) + t, within % 4 / 2)
}

fn encode_halves(quantised: &[([i32; ACTIVATION_GROUP], f32)], factor: f32) -> Vec<u32> {
    let cols = (quantised.len() * ACTIVATION_GROUP).next_multiple_of(HALVES_BLOCK);
    let mut words = vec![0; cols / 2];
    for (group, (codes, scale)) in quantised.iter().enumerate() {
        for (i, code) in codes.iter().enumerate() {
            let (word, half) = place_of_half(group * ACTIVATION_GROUP + i);
            words[word] |= u32::from(f16::from_f32(*code as f32 * scale / factor).to_bits()) << (16 * half);
        }
    }
    words
}

/// Codes of a group, zeros past its end, and the scale.
fn quantise_group(precision: Precision, group: &[f32]) -> ([i32; ACTIVATION_GROUP], f32) {
    let scale = precision.scale(group.iter().fold(0.0, |most, x| x.abs().max(most)));
    let (inverse, limit) = (1.0 / scale, precision.code_max());
    let mut codes = [0; ACTIVATION_GROUP];
    for (code, x) in codes.iter_mut().zip(group) {
        *code = (x * inverse).round_ties_even().clamp(-limit, limit) as i32;
    }
    (codes, scale)
}

fn encode_codes(precision: Precision, quantised: &[([i32; ACTIVATION_GROUP], f32)]) -> Vec<u32> {
    let pack = |bytes: [i32; 4]| u32::from_le_bytes(bytes.map(|byte| byte as i8 as u8));
    let (mut words, mut of_group) = (Vec::new(), Vec::new());
    for (codes, scale) in quantised {
        let (quads, _) = codes.as_chunks::<4>();
        let high = |code: i32| (code + 8) >> 4;
        match precision {
            Precision::Int8 => words.extend(quads.iter().map(|&quad| pack(quad))),
            Precision::Int11 => {
                words.extend(quads.iter().map(|quad| pack(quad.map(high))));
                words.extend(quads.iter().map(|quad| pack(quad.map(|code| code - 16 * high(code)))));
            }
        }
        let sum: i32 = codes.iter().sum();
        of_group.push(scale.to_bits() | (sum as u32 & 0xffff));
    }
    words.extend(of_group);
    words
}

/// The power of two by which a row is divided before it becomes f16: its maximum magnitude then is between 2^13 and 2^14,
/// where f16 neither overflows nor soon rounds.
fn row_factor(row: &[f32]) -> f32 {
    let most = row.iter().fold(LEAST, |most, x| x.abs().max(most));
    f32::from_bits(((most.to_bits() >> 23) - 13) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_are_within_half_a_step_of_a_scale_an_eighth_too_large(
            row in prop::collection::vec(-1e4f32..1e4, 1..200),
        ) {
            for precision in [Precision::Int8, Precision::Int11] {
                let format = ActivationFormat::Quantized(precision);
                let decoded = decode_row(format, &encode_row(format, &row), row.len());
                let loose = if precision == Precision::Int8 { 1.125 } else { 2.0 };
                for (group, values) in row.chunks(32).zip(decoded.chunks(32)) {
                    let most = group.iter().fold(0f32, |most, x| x.abs().max(most));
                    let bound = 0.501 * loose * most / precision.code_max();
                    prop_assert!(group.iter().zip(values).all(|(x, value)| (x - value).abs() <= bound));
                }
            }
        }

        #[test]
        fn codes_are_halves_exactly_once_divided_by_the_factor(
            row in prop::collection::vec(-1e6f32..1e6, 1..200),
            small in -30i32..30,
        ) {
            let row: Vec<f32> = row.iter().map(|x| x * 2f32.powi(small)).collect();
            for precision in [Precision::Int8, Precision::Int11] {
                let format = ActivationFormat::RowScaled(precision);
                let words = encode_row(format, &row);
                let factor = f32::from_bits(words[factor_at(row.len(), precision)]);
                let values = decode_row(format, &words, row.len());
                for value in &values {
                    prop_assert_eq!(f16::from_f32(value / factor).to_f32() * factor, *value);
                }
                let halves = ActivationFormat::Halves(precision);
                prop_assert_eq!(decode_row(halves, &encode_row(halves, &row), row.len()), values);
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for format in [ActivationFormat::Quantized(Precision::Int11), ActivationFormat::RowScaled(Precision::Int8)] {
            assert_eq!(decode_row(format, &encode_row(format, &[0.0; 40]), 40), [0.0; 40]);
        }
    }
}
