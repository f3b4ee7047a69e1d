//! Stacks of matrices that a folder has as MXFP4, (experts, outputs, inputs), two tensors each:
//!
//! ```text
//! NAME_blocks   U8   (experts, outputs, inputs / 32, 16)   two codes a byte, the first of them in its low bits
//! NAME_scales   U8   (experts, outputs, inputs / 32)       E8M0: weights are multiplied by 2^(scale - 127)
//! ```
//!
//! Codes are E2M1; the numbers are those of the OCP Microscaling formats, v1.0. A scale of 255 is NaN and is refused.

use std::sync::Arc;

use safetensors::tensor::Dtype;
use unicorn_artifact::MappedFile;
use unicorn_artifact::fp4::{FP4_GROUP, fp4_level};

use super::packed_int4::Find;
use super::safetensors::{SafetensorsFile, StoredTensor};
use crate::error::{CompileError, Result};

/// Endings of the names of the two tensors.
pub(super) const BLOCKS: &str = "_blocks";
pub(super) const SCALES: &str = "_scales";

const BLOCK_BYTES: usize = FP4_GROUP / 2;
/// E8M0's NaN.
const NOT_A_NUMBER: u8 = 255;

/// A stack as (experts · outputs, inputs), checked; its codes stay in the memory map until they are read.
pub struct PackedFp4 {
    cols: usize,
    blocks: Bytes,
    scales: Bytes,
}

struct Bytes {
    map: Arc<MappedFile>,
    offset_bytes: usize,
    len: usize,
}

impl Bytes {
    fn of(file: &SafetensorsFile, stored: &StoredTensor) -> Bytes {
        Bytes { map: Arc::clone(&file.map), offset_bytes: stored.offset_bytes, len: stored.bytes }
    }

    fn get(&self) -> &[u8] {
        &self.map.bytes()[self.offset_bytes..self.offset_bytes + self.len]
    }
}

impl PackedFp4 {
    /// The stack `name`, of which `find` finds the tensors.
    ///
    /// # Errors
    /// When a tensor is missing or has another type or shape, inputs are not whole blocks, or a scale is NaN.
    pub fn open(name: &str, [experts, outputs, inputs]: [usize; 3], find: Find) -> Result<PackedFp4> {
        if !inputs.is_multiple_of(FP4_GROUP) {
            return Err(CompileError::Unsupported {
                what: format!("{name} as MXFP4"),
                detail: format!("it has {inputs} inputs, expected whole blocks of {FP4_GROUP}"),
            });
        }
        let part = |ending: &str, shape: &[usize]| {
            let name = format!("{name}{ending}");
            let (file, stored) = find(&name).ok_or_else(|| CompileError::MissingTensor {
                name: name.clone(),
                hint: ", of the two that MXFP4 is in".into(),
            })?;
            if stored.dtype != Dtype::U8 {
                let what = format!("tensor {name}: elements are {}, expected U8", stored.dtype);
                return Err(CompileError::malformed(&file.path, what));
            }
            if stored.shape != shape {
                return Err(CompileError::TensorShape { name, expected: shape.to_vec(), found: stored.shape.clone() });
            }
            Ok((file, stored))
        };
        let groups = inputs / FP4_GROUP;
        let (blocks_file, blocks) = part(BLOCKS, &[experts, outputs, groups, BLOCK_BYTES])?;
        let (scales_file, scales) = part(SCALES, &[experts, outputs, groups])?;
        let packed =
            PackedFp4 { cols: inputs, blocks: Bytes::of(blocks_file, blocks), scales: Bytes::of(scales_file, scales) };
        if let Some(at) = packed.scales.get().iter().position(|scale| *scale == NOT_A_NUMBER) {
            let (row, group) = (at / groups, at % groups);
            let what = format!(
                "tensor {name}{SCALES}: scale of expert {}, output {}, block {group} is {NOT_A_NUMBER}, which stands for no \
                 number, expected at most 254",
                row / outputs,
                row % outputs
            );
            return Err(CompileError::malformed(&scales_file.path, what));
        }
        Ok(packed)
    }

    /// Row `row` as f32, as many as there are inputs.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let groups = self.cols / FP4_GROUP;
        let scales = &self.scales.get()[row * groups..][..groups];
        let blocks = &self.blocks.get()[row * groups * BLOCK_BYTES..][..groups * BLOCK_BYTES];
        let groups = out.chunks_exact_mut(FP4_GROUP).zip(blocks.chunks_exact(BLOCK_BYTES));
        for ((values, block), exponent) in groups.zip(scales) {
            // Scale of levels, which are twice the codes' numbers. In f64, because the scale alone may be below f32's range.
            let scale = (f64::from(*exponent) - 128.0).exp2();
            for (pair, byte) in values.chunks_exact_mut(2).zip(block) {
                pair[0] = (f64::from(fp4_level(byte & 15)) * scale) as f32;
                pair[1] = (f64::from(fp4_level(byte >> 4)) * scale) as f32;
            }
        }
    }

    /// Bytes of codes and scales in the source.
    pub fn bytes(&self) -> u64 {
        (self.blocks.len + self.scales.len) as u64
    }

    /// Releases the memory that reading codes has mapped.
    pub fn release(&self) {
        self.blocks.map.release(self.blocks.offset_bytes..self.blocks.offset_bytes + self.blocks.len);
    }
}
