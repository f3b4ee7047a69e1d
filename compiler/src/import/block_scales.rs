//! FP8 weights: numbers of 8 bits in one tensor, their factors in another beside it.
//!
//! ```text
//! NAME             F8_E4M3             (.., rows, cols)
//! NAME_scale_inv   F32, BF16 or F16,   (.., rows / block rows, cols / block cols), both rounded up; (..), (1) or (): one for each matrix
//! or NAME_scale    or E8M0 as U8       E8M0: the factor is 2^(scale - 127)
//! ```
//!
//! A weight is its number times its factor, also where the name ends in `_inv`. Blocks are those of `weight_block_size`, or of `block_structure` as
//! compressed-tensors has it; or else a row is a block, or 32 columns of one. Sources: transformers `integrations/finegrained_fp8`, compressed-tensors
//! `compressors/quantized_compressors/naive_quantized`; numbers are E4M3 of the OCP 8-bit floating point specification, v1.0, without infinities.

use half::{bf16, f16};
use safetensors::tensor::Dtype;

use super::json::Fields;
use super::packed_int4::{Find, quantization};
use super::safetensors::StoredTensor;
use crate::error::{CompileError, Result};

/// Factors of a tensor's numbers, one for each block of a matrix.
pub(super) struct BlockScales {
    /// Block by block of a row of blocks, matrix by matrix.
    scales: Vec<f32>,
    /// Of one matrix.
    rows: usize,
    cols: usize,
    /// Rows and columns of a block.
    block: [usize; 2],
}

/// Endings that the name of a tensor of factors has behind that of its numbers.
const ENDINGS: [&str; 2] = ["_scale_inv", "_scale"];
/// A module's factors of activations and of keys and values, which are not quantised here.
const OF_ACTIVATIONS: [&str; 7] =
    ["input_scale", "activation_scale", "output_scale", "q_scale", "k_scale", "v_scale", "kv_scale"];
/// Columns of a block of MXFP8.
const MX_BLOCK: usize = 32;
/// Rows and columns of a block, unless config.json says otherwise.
const BLOCK: usize = 128;
const MAX_BLOCK: u64 = 1 << 22;

/// Whether `name` is a tensor beside one of FP8.
pub(super) fn is_beside_fp8(name: &str, find: Find) -> bool {
    let is_fp8 = |name: &str| find(name).is_some_and(|(_, stored)| is_fp8(stored));
    let of_numbers = ENDINGS.iter().any(|ending| name.strip_suffix(ending).is_some_and(is_fp8));
    // Those of keys and values lie in their projections, or in the attention.
    let of_activations = |(module, name): (&str, &str)| {
        let has_fp8 = |part: &str| is_fp8(&format!("{module}{part}.weight"));
        OF_ACTIVATIONS.contains(&name) && ["", ".k_proj", ".qkv_proj"].into_iter().any(has_fp8)
    };
    of_numbers || name.rsplit_once('.').is_some_and(of_activations)
}

pub(super) fn is_fp8(stored: &StoredTensor) -> bool {
    stored.dtype == Dtype::F8_E4M3
}

/// Rows and columns of a block, by `config`'s quantisation: in a field, or in the first group of compressed-tensors.
///
/// # Errors
/// When they are no two numbers above 0.
pub(super) fn block_size(config: &Fields) -> Result<[usize; 2]> {
    let Some(fields) = quantization(config)? else { return Ok([BLOCK; 2]) };
    if fields.has("weight_block_size") {
        return read_block(&fields, "weight_block_size");
    }
    let Some(groups) = fields.object("config_groups")? else { return Ok([BLOCK; 2]) };
    for name in groups.names().take(1) {
        let weights = groups.object(name)?.map_or(Ok(None), |group| group.object("weights"))?;
        if let Some(weights) = weights.filter(|weights| weights.has("block_structure")) {
            return read_block(&weights, "block_structure");
        }
    }
    Ok([BLOCK; 2])
}

fn read_block(fields: &Fields, name: &str) -> Result<[usize; 2]> {
    let value = fields.value(name).expect("the caller has seen it");
    let sizes: Option<Vec<usize>> = value.as_array().and_then(|sizes| {
        let size = |value: &serde_json::Value| value.as_u64().filter(|size| (1..=MAX_BLOCK).contains(size));
        sizes.iter().map(|value| size(value).map(|size| size as usize)).collect()
    });
    let sizes = sizes.and_then(|sizes| sizes.try_into().ok());
    sizes.ok_or_else(|| fields.error(name, &format!("is {value}, expected rows and columns, each above 0")))
}

impl BlockScales {
    /// The factors of the numbers of tensor `name`, which is `numbers`.
    ///
    /// # Errors
    /// When there are none, they have another type or shape, or one is no number.
    pub fn open(name: &str, numbers: &StoredTensor, block: [usize; 2], find: Find) -> Result<BlockScales> {
        let found = ENDINGS.iter().map(|ending| format!("{name}{ending}")).find_map(|name| Some((find(&name)?, name)));
        let Some(((file, stored), scales_name)) = found else {
            let hint = format!(", which holds the factors of the FP8 numbers of {name}");
            return Err(CompileError::MissingTensor { name: format!("{name}{}", ENDINGS[0]), hint });
        };
        let malformed = |what: String| CompileError::malformed(&file.path, format!("tensor {scales_name}: {what}"));
        let [matrices @ .., rows, cols] = &numbers.shape[..] else {
            return Err(malformed(format!("its numbers have the shape {:?}, expected matrices", numbers.shape)));
        };
        let (rows, cols, n_matrices) = (*rows, *cols, matrices.iter().product::<usize>());
        let of_blocks = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        let shape = |inner: [usize; 2]| [matrices, &inner].concat();
        let is_of_rows = |down: usize, across: usize| down == rows && (across == 1 || across * MX_BLOCK == cols);
        let block = match stored.shape[..] {
            _ if stored.shape == shape(of_blocks) => block,
            [.., down, across] if stored.shape == shape([down, across]) && is_of_rows(down, across) => {
                [1, cols / across]
            }
            _ if stored.shape.iter().product::<usize>() == n_matrices => [rows, cols],
            _ => {
                let expected = shape(of_blocks);
                return Err(CompileError::TensorShape { name: scales_name, expected, found: stored.shape.clone() });
            }
        };
        let bytes = &file.map.bytes()[stored.offset_bytes..stored.offset_bytes + stored.bytes];
        let scales: Vec<f32> = match stored.dtype {
            Dtype::F32 => bytes.as_chunks().0.iter().map(|one| f32::from_le_bytes(*one)).collect(),
            Dtype::F16 => bytes.as_chunks().0.iter().map(|one| f16::from_le_bytes(*one).to_f32()).collect(),
            Dtype::BF16 => bytes.as_chunks().0.iter().map(|one| bf16::from_le_bytes(*one).to_f32()).collect(),
            Dtype::U8 | Dtype::F8_E8M0 => bytes.iter().map(|one| (f32::from(*one) - 127.0).exp2()).collect(),
            other => return Err(malformed(format!("elements are {other}, expected F32, F16, BF16 or U8"))),
        };
        if let Some(at) = scales.iter().position(|scale| !scale.is_finite()) {
            return Err(malformed(format!("factor {at} is {}, expected a finite number", scales[at])));
        }
        Ok(BlockScales { scales, rows, cols, block })
    }

    /// Multiplies the numbers of row `row`, counted over all matrices, by their factors.
    pub fn multiply_row(&self, row: usize, numbers: &mut [f32]) {
        for (numbers, scale) in numbers.chunks_mut(self.block[1]).zip(self.of_row(row)) {
            numbers.iter_mut().for_each(|number| *number *= scale);
        }
    }

    /// The factor of the tensor's element `index`.
    pub fn of_element(&self, index: usize) -> f32 {
        self.of_row(index / self.cols)[index % self.cols / self.block[1]]
    }

    fn of_row(&self, row: usize) -> &[f32] {
        let down = self.rows.div_ceil(self.block[0]);
        let across = self.cols.div_ceil(self.block[1]);
        let row_of_blocks = row / self.rows * down + row % self.rows / self.block[0];
        &self.scales[row_of_blocks * across..][..across]
    }
}

/// The number that E4M3 has as `byte`.
pub(super) fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if byte >> 7 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest, smallest, and some between, of table 2 of the specification.
    #[test]
    fn numbers_are_those_of_the_specification() {
        assert_eq!([0x7e, 0x08, 0x07, 0x01, 0x00].map(e4m3), [448.0, 0.015625, 0.013671875, 0.001953125, 0.0]);
        assert_eq!([0x38, 0x3c, 0xb8, 0xfe].map(e4m3), [1.0, 1.5, -1.0, -448.0]);
        assert!([0x7f, 0xff].into_iter().all(|byte| e4m3(byte).is_nan()));
    }

    #[test]
    fn blocks_at_the_ends_are_smaller() {
        // Two matrices of (3, 5) in blocks of (2, 2).
        let scales = BlockScales { scales: (1..=12).map(|n| n as f32).collect(), rows: 3, cols: 5, block: [2, 2] };
        let row = |row: usize| {
            let mut numbers = [1.0; 5];
            scales.multiply_row(row, &mut numbers);
            numbers
        };
        assert_eq!([0, 1, 2].map(row), [[1., 1., 2., 2., 3.], [1., 1., 2., 2., 3.], [4., 4., 5., 5., 6.]]);
        assert_eq!(row(3), [7., 7., 8., 8., 9.]);
        let of_elements: Vec<f32> = (0..30).map(|index| scales.of_element(index)).collect();
        assert_eq!(of_elements, (0..6).flat_map(row).collect::<Vec<_>>());
    }
}
