//! Weights that a folder's own files have as INT4: codes, scales and zero points, as three tools write them. They are kept
//! unchanged: nothing is quantised a second time, but for matrices whose groups cannot be ours.
//!
//! ```text
//! weight (row, col) = (code - zero) * scale      rows are outputs, groups are ranges of columns; eight codes an int32
//!
//!                       codes                       zero points                      scales
//! AWQ                   qweight (cols, rows / 8)    qzeros (groups, rows / 8)        scales (groups, rows)
//! GPTQ                  qweight (cols / 8, rows)    qzeros (groups, rows / 8), - 1   scales (groups, rows)
//! compressed-tensors    weight_packed               weight_zero_point                weight_scale (rows, groups)
//!                       (rows, cols / 8), + 8       (rows / 8, groups), + 8
//! ```
//!
//! GPTQ's `g_idx` and compressed-tensors' `weight_g_idx` name the group of each column: in the order of importance where columns were
//! quantised in that order (`desc_act`), so that neighbours have other scales. Our groups are ranges of 32 columns or more: such a matrix,
//! and one of smaller groups, is dequantised and packed as one of floats is. AWQ has the rows of a word in the order
//! 0 2 4 6 1 3 5 7, lowest bits first; the others in order. Sources: AutoAWQ `awq/modules/linear/gemm.py`, AutoGPTQ
//! `auto_gptq/nn_modules/qlinear`, compressed-tensors `compressors/pack_quantized`.

mod scheme;

use std::sync::Arc;

use half::{bf16, f16};
use safetensors::tensor::Dtype;
use unicorn_artifact::MappedFile;
use unicorn_artifact::int4::{Int4Params, WideInt4Params};

use super::config::{Codes, KeptCodes};
use super::safetensors::{SafetensorsFile, StoredTensor};
use crate::error::{CompileError, Result};

pub(super) use scheme::{Scheme, Tool, quantization};

/// One matrix, (rows, cols), checked; its codes stay in the memory map until they are read.
pub struct PackedInt4 {
    tool: Tool,
    rows: usize,
    cols: usize,
    codes: Words,
    scales: Scales,
    /// `None`: all are 8.
    zeros: Option<Words>,
    groups: usize,
    /// Group of each column.
    group_of: Vec<u32>,
    /// The artifact's INT4 format that holds it; `None`: its groups are scattered, or smaller than ours.
    pub kept: Option<KeptCodes>,
}

/// An int32 matrix of a file.
struct Words {
    map: Arc<MappedFile>,
    offset_bytes: usize,
    bytes: usize,
    cols: usize,
}

impl Words {
    fn get(&self, row: usize, col: usize) -> u32 {
        let at = self.offset_bytes + 4 * (row * self.cols + col);
        u32::from_le_bytes(self.map.bytes()[at..at + 4].try_into().expect("4 bytes"))
    }
}

/// One number for each row and group.
struct Scales {
    map: Arc<MappedFile>,
    offset_bytes: usize,
    bytes: usize,
    dtype: Dtype,
    /// Elements between those of two rows, and of two groups.
    strides: [usize; 2],
}

impl Scales {
    fn get(&self, row: usize, group: usize) -> f32 {
        let index = row * self.strides[0] + group * self.strides[1];
        let bytes = &self.map.bytes()[self.offset_bytes..];
        let two = || [bytes[2 * index], bytes[2 * index + 1]];
        match self.dtype {
            Dtype::F16 => f16::from_le_bytes(two()).to_f32(),
            Dtype::BF16 => bf16::from_le_bytes(two()).to_f32(),
            _ => f32::from_le_bytes(bytes[4 * index..][..4].try_into().expect("4 bytes")),
        }
    }
}

/// Code number `index` of a word.
fn nibble(word: u32, index: usize) -> u8 {
    (word >> (4 * index)) as u8 & 15
}

/// AWQ's position of row `row` of eight.
const AWQ_NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Finds a tensor of the folder by its name, in any of its files.
pub(super) type Find<'a> = &'a dyn Fn(&str) -> Option<(&'a SafetensorsFile, &'a StoredTensor)>;

impl PackedInt4 {
    /// The matrix (rows, cols) of the module `module`, whose tensors `find` finds.
    ///
    /// # Errors
    /// When a tensor is missing or has another type or shape, or the artifact's INT4 cannot hold a group or a scale unchanged.
    pub fn open(scheme: &Scheme, module: &str, [rows, cols]: [usize; 2], find: Find) -> Result<PackedInt4> {
        let reader = Reader { scheme, module, find };
        let ([codes_name, scales_name, zeros_name], groups_name) = scheme.tool.names();
        let codes_shape = match scheme.tool {
            Tool::Awq => [cols, reader.eighth(rows)?],
            Tool::Gptq { .. } => [reader.eighth(cols)?, rows],
            Tool::CompressedTensors => [rows, cols.div_ceil(8)],
        };
        let codes = reader.words(codes_name, codes_shape)?;
        reader.check_written_shape([rows, cols])?;
        let group = scheme.group.unwrap_or(cols);
        let groups = cols.div_ceil(group);
        let mut packed = PackedInt4 {
            tool: scheme.tool,
            rows,
            cols,
            codes,
            scales: reader.scales(scales_name, rows, groups)?,
            zeros: reader.zeros(zeros_name, rows, groups)?,
            groups,
            group_of: reader.group_of(groups_name, cols, group, groups)?,
            kept: None,
        };
        let mut codes = Codes::Int4;
        for (row, index) in (0..rows).flat_map(|row| (0..groups).map(move |index| (row, index))) {
            let scale = packed.scales.get(row, index);
            if !scale.is_finite() || f16::from_f32(scale).to_f32() != scale {
                let what = format!(
                    "scale of row {row}, group {index} is {scale}, expected one that f16 holds exactly; compile the weights \
                     that it was quantised from"
                );
                return Err(reader.malformed(scales_name, what));
            }
            if scale.is_sign_negative() || Int4Params::new(scale, 0).scale() != scale {
                codes = Codes::WideInt4;
            }
        }
        // Our groups are the largest that are each inside one of the source's.
        let is_alike = |columns: &[u32]| columns.iter().all(|group| *group == columns[0]);
        let group = [128, 64, 32].into_iter().find(|ours| packed.group_of.chunks(*ours as usize).all(is_alike));
        packed.kept = group.map(|group| KeptCodes { group, codes });
        Ok(packed)
    }

    /// Row `row` as f32, `cols` long.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let params: Vec<WideInt4Params> = (0..self.groups).map(|group| self.param(row, group)).collect();
        for (col, value) in out.iter_mut().enumerate() {
            *value = params[self.group_of[col] as usize].decode(self.code(row, col));
        }
    }

    /// Row `row` in our groups: codes, which stand for 0 after the last column, and a parameter for each group.
    pub fn read_int4_row(&self, row: usize, group: usize, codes: &mut [u8], params: &mut [WideInt4Params]) {
        for (block, (codes, param)) in codes.chunks_exact_mut(group).zip(params).enumerate() {
            *param = self.param(row, self.group_of[(block * group).min(self.cols - 1)] as usize);
            for (within, code) in codes.iter_mut().enumerate() {
                let col = block * group + within;
                *code = if col < self.cols { self.code(row, col) } else { param.zero() };
            }
        }
    }

    /// Bytes of codes, scales and zero points in the source.
    pub fn bytes(&self) -> u64 {
        let parameters = self.zeros.as_ref().map_or(0, |zeros| zeros.bytes) + self.scales.bytes;
        (self.codes.bytes + parameters) as u64
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Releases the memory that reading codes has mapped.
    pub fn release(&self) {
        self.codes.map.release(self.codes.offset_bytes..self.codes.offset_bytes + self.codes.bytes);
    }

    fn param(&self, row: usize, group: usize) -> WideInt4Params {
        let zero = match (&self.zeros, self.tool) {
            (None, _) => 8,
            (Some(zeros), Tool::CompressedTensors) => nibble(zeros.get(row / 8, group), row % 8),
            (Some(zeros), Tool::Awq) => nibble(zeros.get(group, row / 8), AWQ_NIBBLE[row % 8]),
            (Some(zeros), Tool::Gptq { zeros_less_one }) => {
                (nibble(zeros.get(group, row / 8), row % 8) + u8::from(zeros_less_one)) & 15
            }
        };
        WideInt4Params::new(f16::from_f32(self.scales.get(row, group)), zero)
    }

    fn code(&self, row: usize, col: usize) -> u8 {
        match self.tool {
            Tool::Awq => nibble(self.codes.get(col, row / 8), AWQ_NIBBLE[row % 8]),
            Tool::Gptq { .. } => nibble(self.codes.get(col / 8, row), col % 8),
            Tool::CompressedTensors => nibble(self.codes.get(row, col / 8), col % 8),
        }
    }
}

/// Reads the tensors of one module.
struct Reader<'m, 'a> {
    scheme: &'m Scheme,
    module: &'m str,
    find: Find<'a>,
}

impl<'a> Reader<'_, 'a> {
    fn eighth(&self, size: usize) -> Result<usize> {
        if size.is_multiple_of(8) {
            return Ok(size / 8);
        }
        Err(CompileError::Unsupported {
            what: format!("{} packed by {}", self.module, self.scheme.tool),
            detail: format!("its {size} codes a row or column are no whole number of words of 8"),
        })
    }

    fn optional(&self, name: &str) -> Option<(&'a SafetensorsFile, &'a StoredTensor)> {
        (self.find)(&format!("{}.{name}", self.module))
    }

    fn required(&self, name: &str) -> Result<(&'a SafetensorsFile, &'a StoredTensor)> {
        self.optional(name).ok_or_else(|| CompileError::MissingTensor {
            name: format!("{}.{name}", self.module),
            hint: format!(", which {} writes beside {}", self.scheme.tool, self.scheme.tool.names().0[0]),
        })
    }

    fn malformed(&self, name: &str, what: String) -> CompileError {
        let name = format!("{}.{name}", self.module);
        match (self.find)(&name) {
            Some((file, _)) => CompileError::malformed(&file.path, format!("tensor {name}: {what}")),
            None => CompileError::Unsupported { what: format!("tensor {name}"), detail: what },
        }
    }

    fn check(&self, name: &str, stored: &StoredTensor, dtypes: &[Dtype], shape: &[usize]) -> Result<()> {
        if !dtypes.contains(&stored.dtype) {
            let expected = dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join(" or ");
            return Err(self.malformed(name, format!("elements are {}, expected {expected}", stored.dtype)));
        }
        if stored.shape != shape {
            return Err(CompileError::TensorShape {
                name: format!("{}.{name}", self.module),
                expected: shape.to_vec(),
                found: stored.shape.clone(),
            });
        }
        Ok(())
    }

    fn words(&self, name: &str, shape: [usize; 2]) -> Result<Words> {
        let (file, stored) = self.required(name)?;
        self.check(name, stored, &[Dtype::I32, Dtype::U32], &shape)?;
        let (offset_bytes, bytes) = (stored.offset_bytes, stored.bytes);
        Ok(Words { map: Arc::clone(&file.map), offset_bytes, bytes, cols: shape[1] })
    }

    /// compressed-tensors stores the shape, because its words are padded.
    fn check_written_shape(&self, expected: [usize; 2]) -> Result<()> {
        if self.scheme.tool != Tool::CompressedTensors {
            return Ok(());
        }
        let name = "weight_shape";
        let (file, stored) = self.required(name)?;
        self.check(name, stored, &[Dtype::I64, Dtype::I32], &[2])?;
        let bytes = &file.map.bytes()[stored.offset_bytes..stored.offset_bytes + stored.bytes];
        let found: Vec<i64> = match stored.dtype {
            Dtype::I64 => bytes.as_chunks().0.iter().map(|one| i64::from_le_bytes(*one)).collect(),
            _ => bytes.as_chunks().0.iter().map(|one| i32::from_le_bytes(*one).into()).collect(),
        };
        if found.iter().zip(expected).any(|(found, expected)| *found != expected as i64) {
            return Err(self.malformed(name, format!("holds {found:?}, expected {expected:?}")));
        }
        Ok(())
    }

    fn scales(&self, name: &str, rows: usize, groups: usize) -> Result<Scales> {
        let (file, stored) = self.required(name)?;
        let by_row = self.scheme.tool == Tool::CompressedTensors;
        let (shape, strides) = if by_row { ([rows, groups], [groups, 1]) } else { ([groups, rows], [1, rows]) };
        self.check(name, stored, &[Dtype::F16, Dtype::BF16, Dtype::F32], &shape)?;
        let StoredTensor { dtype, offset_bytes, bytes, .. } = *stored;
        Ok(Scales { map: Arc::clone(&file.map), offset_bytes, bytes, dtype, strides })
    }

    fn zeros(&self, name: &str, rows: usize, groups: usize) -> Result<Option<Words>> {
        if self.scheme.has_no_zeros && self.optional(name).is_some() {
            return Err(self.malformed(name, "expected none of a symmetric quantisation".into()));
        }
        let shape = match self.scheme.tool {
            Tool::CompressedTensors if self.scheme.has_no_zeros => return Ok(None),
            Tool::CompressedTensors => [rows.div_ceil(8), groups],
            Tool::Awq | Tool::Gptq { .. } => [groups, self.eighth(rows)?],
        };
        self.words(name, shape).map(Some)
    }

    /// The group of each column.
    fn group_of(&self, name: Option<&str>, cols: usize, group: usize, groups: usize) -> Result<Vec<u32>> {
        let indices = match name {
            Some(name) if self.optional(name).is_some() => Some((name, self.words_of_vector(name, cols)?)),
            _ => None,
        };
        let Some((name, indices)) = indices else {
            return Ok((0..cols).map(|col| (col / group) as u32).collect());
        };
        let of_cols: Vec<u32> = (0..cols).map(|col| indices.get(0, col)).collect();
        if let Some(col) = of_cols.iter().position(|group| *group as usize >= groups) {
            let what = format!("group of column {col} is {}, expected one below {groups}", of_cols[col] as i32);
            return Err(self.malformed(name, what));
        }
        Ok(of_cols)
    }

    fn words_of_vector(&self, name: &str, len: usize) -> Result<Words> {
        let (file, stored) = self.required(name)?;
        self.check(name, stored, &[Dtype::I32], &[len])?;
        let (offset_bytes, bytes) = (stored.offset_bytes, stored.bytes);
        Ok(Words { map: Arc::clone(&file.map), offset_bytes, bytes, cols: len })
    }
}
