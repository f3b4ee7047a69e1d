//! GGUF's block formats back to floats.
//!
//! A block is 32 elements with one scale, or (K) 256 elements in groups of 16 or 32 whose scales are quantised as
//! well. Nibbles are packed by halves: byte `i` of a run of n bytes holds element `i` low and element `i + n` high.

use half::f16;
use unicorn_artifact::codebook::{CODEBOOK_GROUP, Codebook};

use crate::import::SourceDType;

/// Writes the elements of whole blocks in `bytes` to `out`.
///
/// # Panics
/// When `dtype` is a float type, which has no blocks, or when `out` has another length than the blocks.
pub fn dequantize(dtype: SourceDType, bytes: &[u8], out: &mut [f32]) {
    let (block_elements, block_bytes) = dtype.block();
    assert_eq!(bytes.len() / block_bytes, out.len() / block_elements, "blocks in and out");
    let decode_block = match dtype {
        SourceDType::Q4_0 => q4_0,
        SourceDType::Q4_1 => q4_1,
        SourceDType::Q5_0 => q5_0,
        SourceDType::Q5_1 => q5_1,
        SourceDType::Q8_0 => q8_0,
        SourceDType::Q2K => q2_k,
        SourceDType::Q3K => q3_k,
        SourceDType::Q4K => q4_k,
        SourceDType::Q5K => q5_k,
        SourceDType::Q6K => q6_k,
        SourceDType::Iq4Nl => iq4_nl,
        SourceDType::Iq4Xs => iq4_xs,
        SourceDType::MxFp4 => mxfp4,
        SourceDType::F32 | SourceDType::F16 | SourceDType::Bf16 | SourceDType::F8E4M3 | SourceDType::Int4 => {
            unreachable!("{dtype:?} has no blocks")
        }
    };
    for (block, out_block) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(block_elements)) {
        decode_block(block, out_block);
    }
}

/// Writes what whole blocks of IQ4 in `bytes` hold: the codes of their elements, and a scale for each 32. IQ4_NL's scales are exact;
/// those of IQ4_XS have up to 16 bits of mantissa and are rounded to f16's 11.
///
/// ```text
/// codes    (elements)        written, 0..=15
/// scales   (elements / 32)   written
/// ```
///
/// # Panics
/// When `dtype` is another type, or a length is not as above.
pub fn iq4_codes(dtype: SourceDType, bytes: &[u8], codes: &mut [u8], scales: &mut [f16]) {
    let group_of = match dtype {
        SourceDType::Iq4Nl => iq4_nl_group,
        SourceDType::Iq4Xs => iq4_xs_group,
        other => panic!("{other} is no IQ4"),
    };
    let (block_elements, block_bytes) = dtype.block();
    let groups_per_block = block_elements / CODEBOOK_GROUP;
    assert_eq!(bytes.len() / block_bytes * block_elements, codes.len(), "elements in and out");
    assert_eq!(codes.len() / CODEBOOK_GROUP, scales.len(), "a scale for each group");
    for (index, (codes, scale)) in codes.chunks_exact_mut(CODEBOOK_GROUP).zip(scales).enumerate() {
        let block = &bytes[index / groups_per_block * block_bytes..][..block_bytes];
        let (exact, nibbles) = group_of(block, index % groups_per_block);
        *scale = f16::from_f32(exact);
        for (i, packed) in nibbles.iter().enumerate() {
            (codes[i], codes[i + nibbles.len()]) = (packed & 15, packed >> 4);
        }
    }
}

/// d f16 | 16 bytes of nibbles; element = d * (q - 8)
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = read_f16(block, 0);
    for (i, packed) in block[2..18].iter().enumerate() {
        out[i] = d * (f32::from(packed & 15) - 8.0);
        out[i + 16] = d * (f32::from(packed >> 4) - 8.0);
    }
}

/// d f16 | m f16 | 16 bytes of nibbles; element = d * q + m
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (read_f16(block, 0), read_f16(block, 2));
    for (i, packed) in block[4..20].iter().enumerate() {
        out[i] = d * f32::from(packed & 15) + m;
        out[i + 16] = d * f32::from(packed >> 4) + m;
    }
}

/// d f16 | fifth bits u32, bit i for element i | 16 bytes of nibbles; element = d * (q - 16)
fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = read_f16(block, 0);
    let fifth_bits = read_u32(block, 2);
    for (i, packed) in block[6..22].iter().enumerate() {
        out[i] = d * (with_fifth_bit(packed & 15, fifth_bits >> i) - 16.0);
        out[i + 16] = d * (with_fifth_bit(packed >> 4, fifth_bits >> (i + 16)) - 16.0);
    }
}

/// d f16 | m f16 | fifth bits u32 | 16 bytes of nibbles; element = d * q + m
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (read_f16(block, 0), read_f16(block, 2));
    let fifth_bits = read_u32(block, 4);
    for (i, packed) in block[8..24].iter().enumerate() {
        out[i] = d * with_fifth_bit(packed & 15, fifth_bits >> i) + m;
        out[i + 16] = d * with_fifth_bit(packed >> 4, fifth_bits >> (i + 16)) + m;
    }
}

/// d f16 | 32 signed bytes; element = d * q
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = read_f16(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..34]) {
        *value = d * f32::from(q as i8);
    }
}

/// 16 bytes of scales (low) and mins (high) | 64 bytes of bit pairs | d f16 | dmin f16
///
/// In two halves of 128 elements: quarter `n` of a half is bit pair `n` of the half's 32 bytes. One scale and min for 16 elements;
/// element = (d * scale) * q - (dmin * min).
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (read_f16(block, 80), read_f16(block, 82));
    for (group, out_group) in out.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(block[group] & 15), dmin * f32::from(block[group] >> 4));
        let pairs = &block[16 + pair_byte(group)..][..16];
        for (value, packed) in out_group.iter_mut().zip(pairs) {
            *value = scale * f32::from(packed >> pair_shift(group) & 3) - min;
        }
    }
}

/// 32 bytes of third bits | 64 bytes of bit pairs as in [`q2_k`] | 12 bytes of scales | d f16
///
/// Bit `n` of byte `i` of the third bits is element `32 n + i`; where it is not set, 4 is taken off. Scales have 6 bits: byte `s % 8` has the low
/// four of scale `s`, in its low nibble for the first eight, and bit pair `s / 4` of byte `8 + s % 4` the upper two.
/// Element = (d * (scale - 32)) * q.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = read_f16(block, 108);
    let scales = &block[96..108];
    for (group, out_group) in out.chunks_exact_mut(16).enumerate() {
        let upper = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
        let scale = d * (f32::from(nibble(scales[group % 8], group / 8) | upper << 4) - 32.0);
        let pairs = &block[32 + pair_byte(group)..][..16];
        let third_bits = &block[16 * (group % 2)..][..16];
        for (i, value) in out_group.iter_mut().enumerate() {
            let q = f32::from(pairs[i] >> pair_shift(group) & 3);
            let third_bit = third_bits[i] >> (group / 2) & 1;
            *value = scale * (q - if third_bit == 0 { 4.0 } else { 0.0 });
        }
    }
}

/// First byte of one of the 16 groups of bit pairs in a 2- or 3-bit K block.
fn pair_byte(group: usize) -> usize {
    32 * (group / 8) + 16 * (group % 2)
}

/// Shift of the group's bit pair in each of its 16 bytes.
fn pair_shift(group: usize) -> usize {
    2 * (group / 2 % 4)
}

fn iq4_nl(block: &[u8], out: &mut [f32]) {
    by_codebook(Codebook::Iq4, iq4_nl_group(block, 0), out);
}

fn iq4_xs(block: &[u8], out: &mut [f32]) {
    for (group, out_group) in out.chunks_exact_mut(CODEBOOK_GROUP).enumerate() {
        by_codebook(Codebook::Iq4, iq4_xs_group(block, group), out_group);
    }
}

/// d f16 | 16 bytes of nibbles; element = d * level of the code
fn iq4_nl_group(block: &[u8], _group: usize) -> (f32, &[u8]) {
    (read_f16(block, 0), &block[2..18])
}

/// d f16 | upper bit pairs of scales u16 | 4 bytes of their nibbles | 8 runs of 16 bytes of nibbles
///
/// A scale for 32 elements; element = (d * (scale - 32)) * level of the code. Products are exact: f32 has more bits than their factors
/// together.
fn iq4_xs_group(block: &[u8], group: usize) -> (f32, &[u8]) {
    let d = read_f16(block, 0);
    let upper_pairs = u16::from_le_bytes([block[2], block[3]]);
    let upper = (upper_pairs >> (2 * group) & 3) as u8;
    let scale = f32::from(nibble(block[4 + group / 2], group) | upper << 4) - 32.0;
    (d * scale, &block[8 + 16 * group..][..16])
}

/// exponent u8 | 16 bytes of nibbles; element = 2^(exponent - 128) * level of the code, which is twice E2M1's number
fn mxfp4(block: &[u8], out: &mut [f32]) {
    // The two lowest exponents give numbers below the smallest normal one.
    let bits = if block[0] < 2 { 0x20_0000 << block[0] } else { u32::from(block[0] - 1) << 23 };
    by_codebook(Codebook::Fp4, (f32::from_bits(bits), &block[1..17]), out);
}

fn by_codebook(codebook: Codebook, (scale, nibbles): (f32, &[u8]), out: &mut [f32]) {
    for (i, packed) in nibbles.iter().enumerate() {
        out[i] = scale * f32::from(codebook.level(packed & 15));
        out[i + nibbles.len()] = scale * f32::from(codebook.level(packed >> 4));
    }
}

/// d f16 | dmin f16 | 12 bytes of scales and mins | 4 runs of 32 bytes of nibbles
///
/// A run holds two groups of 32, low nibbles then high; element = (d * scale) * q - (dmin * min).
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
    let packed_scales = &block[4..16];
    for (group, out_group) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed_scales, group);
        let (scale, min) = (d * scale, dmin * min);
        let run = &block[16 + group / 2 * 32..][..32];
        for (value, packed) in out_group.iter_mut().zip(run) {
            *value = scale * f32::from(nibble(*packed, group)) - min;
        }
    }
}

/// As [`q4_k`], with 32 bytes of fifth bits before the nibbles: bit g of byte i is element i of group g's.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
    let packed_scales = &block[4..16];
    let fifth_bits = &block[16..48];
    for (group, out_group) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed_scales, group);
        let (scale, min) = (d * scale, dmin * min);
        let run = &block[48 + group / 2 * 32..][..32];
        for (i, value) in out_group.iter_mut().enumerate() {
            let q = with_fifth_bit(nibble(run[i], group), u32::from(fifth_bits[i] >> group));
            *value = scale * q - min;
        }
    }
}

/// 128 bytes of low nibbles | 64 bytes of upper bit pairs | 16 signed scales | d f16
///
/// In two halves of 128 elements. A quarter of 32 elements takes its nibbles from the half's first 32 bytes (quarters
/// 0 and 2, low and high) or its last 32 (1 and 3), and bit pair `quarter` of the half's 32 bytes of pairs.
/// Element = (d * scale) * (q - 32), one scale for 16 elements.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = read_f16(block, 208);
    let scales = &block[192..208];
    for (quarter, out_quarter) in out.chunks_exact_mut(32).enumerate() {
        let (half, quarter_of_half) = (quarter / 4, quarter % 4);
        let nibbles = &block[64 * half + 32 * (quarter_of_half % 2)..][..32];
        let upper_pairs = &block[128 + 32 * half..][..32];
        for (i, value) in out_quarter.iter_mut().enumerate() {
            let upper = upper_pairs[i] >> (2 * quarter_of_half) & 3;
            let q = nibble(nibbles[i], quarter_of_half / 2) | upper << 4;
            let scale = d * f32::from(scales[2 * quarter + i / 16] as i8);
            *value = scale * (f32::from(q) - 32.0);
        }
    }
}

/// The 6-bit scale and min of one of the 8 groups of a K block.
///
/// The 12 bytes hold scales 0-3 and mins 0-3 in their low 6 bits (bytes 0-3 and 4-7), and in bytes 8-11 the low
/// nibbles of scales 4-7 (low) and mins 4-7 (high), whose top 2 bits sit above scales and mins 0-3.
fn scale_and_min(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, min) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let low_nibbles = packed[group + 4];
        (low_nibbles & 15 | packed[group - 4] >> 6 << 4, low_nibbles >> 4 | packed[group] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// The low nibble for an even `index`, the high one for an odd.
fn nibble(packed: u8, index: usize) -> u8 {
    if index.is_multiple_of(2) { packed & 15 } else { packed >> 4 }
}

/// `nibble` with the lowest bit of `bits` above it.
fn with_fifth_bit(nibble: u8, bits: u32) -> f32 {
    f32::from(nibble | ((bits & 1) as u8) << 4)
}

fn read_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn read_u32(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[cfg(test)]
mod tests {
    //! Blocks and their elements from the Python package gguf 0.19.0: the formats of 32 elements by
    //! `gguf.quants.quantize` from normally distributed numbers (NumPy's default_rng(7)), the K formats from random
    //! bytes with small scales; `gguf.quants.dequantize` gave the elements, of which each `step`-th is kept.

    use super::*;

    struct OracleBlock {
        dtype: SourceDType,
        /// Hexadecimal.
        block: &'static str,
        step: usize,
        expected: &'static [f32],
    }

    fn bytes_of(hexadecimal: &str) -> Vec<u8> {
        let digits = (0..hexadecimal.len()).step_by(2).map(|at| &hexadecimal[at..at + 2]);
        digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
    }

    #[test]
    fn blocks_become_what_the_reference_makes_of_them() {
        for oracle in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4] {
            let OracleBlock { dtype, block, step, expected } = oracle;
            let mut out = vec![0.0; dtype.block().0];
            dequantize(dtype, &bytes_of(block), &mut out);
            let found: Vec<f32> = out.iter().copied().step_by(step).collect();
            assert_eq!(found, expected, "{dtype:?}");
        }
    }

    /// To the last bit, but for the rounding of scales that f16 does not hold.
    #[test]
    fn codes_and_scales_of_iq4_are_those_of_its_elements() {
        for OracleBlock { dtype, block, .. } in [IQ4_NL, IQ4_XS] {
            let block = bytes_of(block).repeat(2);
            let elements = 2 * dtype.block().0;
            let mut expected = vec![0.0; elements];
            dequantize(dtype, &block, &mut expected);
            let (mut codes, mut scales) = (vec![0xaa; elements], vec![f16::NAN; elements / CODEBOOK_GROUP]);
            iq4_codes(dtype, &block, &mut codes, &mut scales);
            for (index, (code, expected)) in codes.iter().zip(expected).enumerate() {
                let found = f32::from(Codebook::Iq4.level(*code)) * scales[index / CODEBOOK_GROUP].to_f32();
                let rounding = if dtype == SourceDType::Iq4Xs { expected.abs() / 2048.0 } else { 0.0 };
                assert!((found - expected).abs() <= rounding, "{dtype} {index}: {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn blocks_follow_each_other() {
        let block = [[0x00, 0x3c].as_slice(), &[0x21; 16]].concat();
        let mut out = [0.0; 64];
        dequantize(SourceDType::Q4_0, &[block.clone(), block].concat(), &mut out);
        for half_block in out.chunks(32) {
            assert_eq!(half_block[..16], [-7.0; 16]);
            assert_eq!(half_block[16..], [-6.0; 16]);
        }
    }

    const Q4_0: OracleBlock = OracleBlock {
        dtype: SourceDType::Q4_0,
        block: "0935487927452775489c86760a698885386a",
        step: 3,
        expected: &[
            0.0,
            -0.9440918,
            0.0,
            -0.62939453,
            0.0,
            0.62939453,
            -1.8881836,
            -0.31469727,
            0.0,
            -0.62939453,
            -1.5734863,
        ],
    };

    const Q4_1: OracleBlock = OracleBlock {
        dtype: SourceDType::Q4_1,
        block: "913330be42f3ab13769a64966797d1477c507a27",
        step: 3,
        expected: &[
            -1.0739746,
            -0.8375244,
            -0.6010742,
            0.10827637,
            1.2905273,
            0.10827637,
            0.81762695,
            0.58117676,
            -0.12817383,
            -0.6010742,
            0.10827637,
        ],
    };

    const Q5_0: OracleBlock = OracleBlock {
        dtype: SourceDType::Q5_0,
        block: "f82f4c8c44efdbee37f9e57a05c09c5f0a56dd8d0e5c",
        step: 3,
        expected: &[
            -0.6225586,
            1.1206055,
            0.6225586,
            -0.12451172,
            -0.37353516,
            1.4941406,
            0.37353516,
            -1.1206055,
            1.1206055,
            0.6225586,
            0.0,
        ],
    };

    const Q5_1: OracleBlock = OracleBlock {
        dtype: SourceDType::Q5_1,
        block: "843042c0c2ccd0a186f2f3811d99600f09bbe1137e2e0453",
        step: 3,
        expected: &[
            -1.2822266,
            -1.987793,
            0.12890625,
            -0.57666016,
            -0.15332031,
            0.5522461,
            -0.012207031,
            -0.8588867,
            0.12890625,
            -1.987793,
            -2.1289062,
        ],
    };

    const Q8_0: OracleBlock = OracleBlock {
        dtype: SourceDType::Q8_0,
        block: "0a238137c3390a905b69fbecf4b950d9fcc6d2a35bf54601cde8d701e5ea9cc578cf",
        step: 3,
        expected: &[
            -1.7460175,
            0.78364563,
            1.2510834,
            -0.27496338,
            1.0998535,
            -0.7973938,
            1.2510834,
            0.013748169,
            -0.5636749,
            -0.30245972,
            1.6497803,
        ],
    };

    const Q4_K: OracleBlock = OracleBlock {
        dtype: SourceDType::Q4K,
        block: "1914251ab84d15d704b6df97679fc61c2a4527bf1f43919a9622a5e8199fac7ab4b3532c86443d981aafc374303fc6a8\
                6bd92e60843c814ee9b10320c6161bf6355049c1e34a41772dc9023cb637cba025aa8269e52e9ea289eb1d172060132f\
                2a6828bc7b69d60faba177ada22a5969596dd200d37997c3cacb25b30760b2d073813de54e93e0ba771450d7f0fffa1c",
        step: 15,
        expected: &[
            0.5482254,
            0.5482254,
            0.32413483,
            -0.044966698,
            -0.12299824,
            -0.09300804,
            -0.05099106,
            0.18409634,
            -0.022987366,
            0.060029984,
            0.21609306,
            -0.060985565,
            0.09407711,
            -0.18001556,
            -0.101984024,
            0.261137,
            0.32116127,
            -0.0389843,
        ],
    };

    const Q5_K: OracleBlock = OracleBlock {
        dtype: SourceDType::Q5K,
        block: "1914251acb9fd1e915b4afb1e84452cd854fc5bda361b0e0de99ade3ce42f785840dfed0781567ea9662124cac66f10b\
                559b922b4f02c1072c033e6f0ad92c0534f84a42b572b5404d84ebb4c644a23f660828f3f0370030163ec7f8f2912a91\
                a6c9753ee0f9fa09b3c14c4ec8a82397f692ea1bf9b47f2ad872651da12189ad21138f16c631650543e4ab744787814f\
                8136f091732237f0f0f488db5b58d489ae7893a42831c4cf9bc5f86fb46574a8",
        step: 15,
        expected: &[
            0.16808796,
            0.16808796,
            0.13507462,
            0.74335,
            0.21613693,
            -0.004957199,
            0.0630703,
            0.6323023,
            0.30416965,
            0.5182228,
            0.23810959,
            0.8643837,
            0.90039825,
            -0.06098938,
            0.83937454,
            0.051062584,
            1.4546299,
            0.47823524,
        ],
    };

    const Q6_K: OracleBlock = OracleBlock {
        dtype: SourceDType::Q6K,
        block: "992a6637da295a9cdd09ab3c86eff5307316edc2c2880b93836474609de3280ac9f4a43ce2e039cdf214d9772635c7f5\
                a3da8ae6a756a0daf4b71604af4efb0cdfd723945e6db2567b0888d756a86851440f3a275105db1c2fad244dd7a169a0\
                d2ea50200f3826ccfc55784de60c5050dccfa9a9e610e1dc147a816f658210cc63a4134e232f0f21a89119d4b6e150c4\
                10e42ec0766ef3e17939897f491c8132ea0dc495f925da927dbfd362261e85a3426b5e437454fd9bcbd936cb858ea318\
                9e702374f5d743a941891c0debc8c7a1251a",
        step: 15,
        expected: &[
            -7.3506355,
            9.408813,
            -2.6882324,
            -2.8352451,
            5.2204514,
            0.4290371,
            3.075266,
            0.20101738,
            0.26102257,
            1.1701012,
            1.7851543,
            -0.6720581,
            -0.39003372,
            0.44103813,
            2.1841888,
            3.0782661,
            0.8550739,
            5.700493,
        ],
    };

    const Q2_K: OracleBlock = OracleBlock {
        dtype: SourceDType::Q2K,
        block: "8b4ae5f1a94106a0956a26afbccdafe562f90a945f5693c642276ad5ab2da7394551370e99b2d74c3427fa48d732\
                a1df70aca1e926115901dd06f27f8f063cd25e19a621f9bd0ccc21397c1ec795ca772e1bbf1a",
        step: 15,
        expected: &[
            0.05077362,
            0.012210846,
            0.021881104,
            0.0064697266,
            -0.04590416,
            -0.0013885498,
            -0.002658844,
            0.0,
            -0.03293991,
            -0.012117386,
            -0.019763947,
            -0.006587982,
            0.07223129,
            0.04790306,
            0.051620483,
            0.07223129,
            -0.028587341,
            -0.028587341,
        ],
    };

    const Q3_K: OracleBlock = OracleBlock {
        dtype: SourceDType::Q3K,
        block: "7a88934d92c58efd5185f0711ef7677a1f132a818d882195a100b28d6b236b82481bd9fe630dc3ce3be4ebcab72f\
                45b35223479f6e794d57037e2cfde9e15a7789781e3721a557d8e5a703296dcb81db3f65cf9c1bdc5d1d8fc83f0b\
                0bb4db71be572209851d3d24f4c0cf83bd20",
        step: 15,
        expected: &[
            0.6663208,
            0.1665802,
            -0.46272278,
            0.4997406,
            0.46272278,
            0.40719604,
            0.3516693,
            -0.2683792,
            1.036499,
            0.0,
            0.7496109,
            0.832901,
            0.59228516,
            0.6663208,
            -0.629303,
            0.17583466,
            -0.074035645,
            0.018508911,
        ],
    };

    const IQ4_NL: OracleBlock = OracleBlock {
        dtype: SourceDType::Iq4Nl,
        block: "012b59777179ced2c8f814a13472ff70ce36",
        step: 3,
        expected: &[
            0.7113342,
            0.7113342,
            0.054718018,
            -5.690674,
            6.183136,
            -1.2037964,
            -0.5471802,
            3.7755432,
            -5.690674,
            -0.5471802,
            2.900055,
        ],
    };

    const IQ4_XS: OracleBlock = OracleBlock {
        dtype: SourceDType::Iq4Xs,
        block: "b41d1e614f235d3f83bc45fee9ee0403a79be118544441317c9311f85e0429b19f7ec0e156f65a3322e791b880ee\
                995e3f0d307d2fbaf400693a179e0d027ed4e58be7a9ebc28a271d43a78855638144eb6603f7b2725de11fe6ac2f\
                88a68182869793f0aad6ded8116e3ab51681c4a374fec70a68b3e4bdc92b387987416c17ec90963ec766888a",
        step: 15,
        expected: &[
            -5.4302216,
            -8.6883545,
            -4.0935516,
            -2.4505615,
            -3.8986206,
            -4.995804,
            4.706192,
            -6.349182,
            -14.870453,
            0.8187103,
            -0.016708374,
            3.308258,
            -0.15037537,
            -2.9239655,
            -5.4302216,
            -2.7513123,
            -3.8373566,
            -0.072402954,
        ],
    };

    const MXFP4: OracleBlock = OracleBlock {
        dtype: SourceDType::MxFp4,
        block: "781bea9cee1810dfd5169faf26cd7b5c30",
        step: 3,
        expected: &[
            -0.01171875,
            -0.03125,
            -0.046875,
            -0.046875,
            -0.0234375,
            0.0,
            -0.00390625,
            0.00390625,
            0.00390625,
            0.0078125,
            0.0234375,
        ],
    };

    /// Shared exponents at both ends: subnormal numbers, and infinity, which is refused where weights are checked to be finite.
    #[test]
    fn the_exponents_of_mxfp4_are_those_of_the_reference() {
        let expected = [(0, 2.938_736e-39), (1, 5.877_472e-39), (2, 1.175_494_4e-38), (127, 0.5), (254, 8.507_059e37)];
        for (exponent, one) in expected {
            let block: Vec<u8> = [exponent].into_iter().chain(0..16).collect();
            let mut out = [0.0; 32];
            dequantize(SourceDType::MxFp4, &block, &mut out);
            assert_eq!(out[1], one, "exponent {exponent}");
            assert_eq!(out[9], -one, "exponent {exponent}");
        }
        let mut out = [0.0; 32];
        dequantize(SourceDType::MxFp4, &[[255].as_slice(), &[7; 16]].concat(), &mut out);
        assert_eq!(out[0], f32::INFINITY);
    }
}
