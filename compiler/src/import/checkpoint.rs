//! [`Checkpoint`]: what every importer produces and every later stage reads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use unicorn_artifact::codebook::CODEBOOK_GROUP;
use unicorn_artifact::int4::WideInt4Params;
use unicorn_artifact::{LicenseSection, MappedFile, TokenizerSection};

use super::block_scales::{BlockScales, e4m3};
use super::config::ModelConfig;
use super::gguf::blocks::{dequantize, iq4_codes};
use super::packed_fp4::PackedFp4;
use super::packed_int4::PackedInt4;
use super::source_bytes::{SourceBytes, SourcePart, hash_named};
use super::source_layout::{Elements, RowOrder, SourceDType, StoredAs};
use super::vision_config::VisionConfig;

/// One model, opened but not read: tensors stay in the memory map until a row is requested.
pub struct Checkpoint {
    /// What the model computes, and its sizes.
    pub config: ModelConfig,
    /// By canonical name: `embed_tokens.weight`, `norm.weight`, `lm_head.weight` (absent when tied) and
    /// `layers.{i}.` + `input_layernorm | post_attention_layernorm | pre_feedforward_layernorm |
    /// post_feedforward_layernorm | self_attn.{q,k,v,o,gate}_proj | self_attn.{q,k}_norm | mlp.{gate,up,down}_proj |
    /// linear_attn.{in_proj_{qkv,z,b,a},conv1d,norm,out_proj}`, each with `.weight` and, where the family has one, `.bias`, and
    /// `linear_attn.{A_log,dt_bias}`. Fused projections of the source appear split. Every tensor that the config calls for is present
    /// with the right shape, and no other.
    pub tensors: BTreeMap<String, Tensor>,
    /// Stop tokens are generation_config.json's `eos_token_id` (one or many), else config.json's, and, for GGUF, what its
    /// metadata names. Empty when the model came without a tokenizer.
    pub(crate) tokenizer: TokenizerSection,
    /// `None`: the source names none.
    pub(crate) license: Option<LicenseSection>,
    pub(crate) skipped: Skipped,
    /// Modules of adapters whose weights are among the skipped.
    pub(crate) skipped_adapter_modules: usize,
    /// config.json of the text model, as transformers reads it; for GGUF, one made from its metadata.
    pub(crate) config_json: serde_json::Value,
    pub(super) source: SourceBytes,
    /// Why a head that predicts the token behind the next one is not compiled, although there is one.
    pub(crate) predictor_left_out: Option<String>,
    /// Files of a vision tower from elsewhere and of the adapters that were merged, in order.
    pub(super) added_files: Vec<(String, SourcePart)>,
    /// Bytes of tensor data that the model uses.
    pub(crate) source_bytes: u64,
}

impl Checkpoint {
    /// A model without its weights.
    pub(crate) fn without_weights(config: ModelConfig, tokenizer: TokenizerSection) -> Checkpoint {
        Checkpoint {
            config,
            tensors: BTreeMap::new(),
            tokenizer,
            license: None,
            skipped: Skipped::default(),
            skipped_adapter_modules: 0,
            predictor_left_out: None,
            config_json: serde_json::Value::Null,
            source: SourceBytes::Whole(SourcePart::Read(Vec::new())),
            added_files: Vec::new(),
            source_bytes: 0,
        }
    }

    /// Leaves out what makes rows of images: what is left takes text alone.
    pub(crate) fn leave_out_vision(&mut self) {
        if self.config.vision.take().is_some() {
            self.leave_out(VisionConfig::has);
        }
    }

    /// Leaves out the head that predicts the token behind the next one.
    pub(crate) fn leave_out_predictor(&mut self) {
        let config = self.config.clone();
        if self.config.remove_predictor() {
            self.leave_out(|name| config.is_of_predictor(name));
        }
    }

    /// Leaves out the tensors of these canonical names.
    fn leave_out(&mut self, is_unused: impl Fn(&str) -> bool) {
        let (unused, others): (BTreeMap<String, Tensor>, BTreeMap<String, Tensor>) =
            std::mem::take(&mut self.tensors).into_iter().partition(|(name, _)| is_unused(name));
        self.tensors = others;
        let bytes = unused.values().map(Tensor::source_bytes).sum::<u64>();
        self.skipped.tensors += unused.len();
        self.skipped.bytes += bytes;
        self.source_bytes -= bytes;
    }

    /// Matrices that the source has as INT4 in groups that ours cannot be, or that are parts of heads.
    pub(crate) fn matrices_of_other_groups(&self) -> usize {
        let has_other_groups = |tensor: &&Tensor| {
            let is_of_heads = matches!(tensor.row_order, RowOrder::Strided(_));
            matches!(&tensor.packed, Some(Packed::Int4(packed)) if is_of_heads || packed.kept.is_none())
        };
        self.tensors.values().filter(has_other_groups).count()
    }

    /// BLAKE3 over config, weights and tokenizer files in a fixed order of names, then over those of merged adapters. Reads all of them.
    pub(crate) fn source_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        match &self.source {
            SourceBytes::Whole(part) => part.hash_into(&mut hasher),
            SourceBytes::Named(files) => hash_named(files, &mut hasher),
        }
        hash_named(&self.added_files, &mut hasher);
        *hasher.finalize().as_bytes()
    }
}

/// Tensors of a vision tower or projector that text generation does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) tensors: usize,
    pub(crate) bytes: u64,
}

/// One weight of the model: a row range of a source tensor, dequantised on reading.
#[derive(Clone)]
pub struct Tensor {
    /// Name and shape in the source, and the first of its rows that is ours (not 0 for split fused projections).
    pub(crate) source_name: String,
    pub(crate) source_shape: Vec<usize>,
    pub(crate) first_row: usize,
    /// 1 for a vector; a vector of n is one row of n.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    pub(crate) dtype: SourceDType,
    pub(crate) row_order: RowOrder,
    pub(crate) stored_as: StoredAs,
    /// Codes and scales, where the source has them in tensors of their own; they replace the bytes at `offset_bytes`.
    pub(super) packed: Option<Packed>,
    /// Factors of FP8 numbers.
    pub(super) scales: Option<Arc<BlockScales>>,
    /// Products that adapters add to it.
    pub(super) added: Vec<LowRank>,
    pub(super) map: Arc<MappedFile>,
    /// Offset of the source tensor's first byte in the map.
    pub(super) offset_bytes: usize,
}

/// A matrix whose codes of 4 bits and scales are in two tensors of the source.
#[derive(Clone)]
pub(super) enum Packed {
    Int4(Arc<PackedInt4>),
    Fp4(Arc<PackedFp4>),
}

impl Packed {
    /// The source's row `row` as f32.
    fn read_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Packed::Int4(packed) => packed.read_row(row, out),
            Packed::Fp4(packed) => packed.read_row(row, out),
        }
    }

    /// Bytes of the source tensors.
    fn bytes(&self) -> u64 {
        match self {
            Packed::Int4(packed) => packed.bytes(),
            Packed::Fp4(packed) => packed.bytes(),
        }
    }

    fn release(&self) {
        match self {
            Packed::Int4(packed) => packed.release(),
            Packed::Fp4(packed) => packed.release(),
        }
    }
}

/// The product of two thin matrices.
#[derive(Clone)]
pub(super) struct LowRank {
    /// (rank, cols)
    pub(crate) down: Arc<[f32]>,
    /// (rows, rank), with the adapter's scale.
    pub(crate) up: Arc<[f32]>,
}

impl LowRank {
    /// Adds rows of the product to those of `out`.
    pub(crate) fn add_rows(&self, rows: Range<usize>, cols: usize, out: &mut [f32]) {
        let rank = self.down.len() / cols;
        for (row, out_row) in rows.zip(out.chunks_exact_mut(cols)) {
            let mut sum = vec![0f32; cols];
            for (up, down) in self.up[row * rank..][..rank].iter().zip(self.down.chunks_exact(cols)) {
                sum.iter_mut().zip(down).for_each(|(sum, down)| *sum += up * down);
            }
            out_row.iter_mut().zip(&sum).for_each(|(value, sum)| *value += sum);
        }
    }
}

impl Tensor {
    /// Whether it has rows and columns, even if only one row.
    pub(super) fn is_matrix(&self) -> bool {
        self.source_shape.len() > 1
    }

    /// Reads our rows `rows` as f32 into `out`, (rows.len(), cols). Any number of threads may read at once.
    ///
    /// # Panics
    /// When `rows` exceeds the tensor or `out` has another length: both come from the caller, not from the file.
    pub fn read_rows(&self, rows: Range<usize>, out: &mut [f32]) {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of a tensor of {} rows", self.rows);
        assert_eq!(out.len(), rows.len() * self.cols, "output length for rows {rows:?} of {} columns", self.cols);
        match self.row_order {
            RowOrder::Strided(elements) if self.packed.is_some() => {
                self.read_strided_of_packed(elements, rows.clone(), out);
            }
            order if self.packed.is_some() => {
                let packed = self.packed.as_ref().expect("just looked");
                for (row, out_row) in rows.clone().zip(out.chunks_exact_mut(self.cols)) {
                    packed.read_row(order.source_row(self.first_row, row), out_row);
                }
            }
            RowOrder::Plain => self.dequantize_rows(self.first_row + rows.start, out),
            RowOrder::Transposed => self.read_transposed(rows.clone(), out),
            RowOrder::Strided(elements) => self.read_strided(elements, rows.clone(), out),
            RowOrder::InterleavedHeads { .. } | RowOrder::TiledHeads { .. } if self.source_shape.len() == 1 => {
                let mut theirs = vec![0.0; self.cols];
                self.dequantize_rows(self.first_row, &mut theirs);
                for (element, value) in out.iter_mut().enumerate() {
                    *value = theirs[self.row_order.source_row(0, element)];
                }
            }
            order @ RowOrder::TiledColumns { .. } => {
                let mut theirs = vec![0.0; out.len()];
                self.dequantize_rows(self.first_row + rows.start, &mut theirs);
                for (ours, theirs) in out.chunks_exact_mut(self.cols).zip(theirs.chunks_exact(self.cols)) {
                    for (column, value) in ours.iter_mut().enumerate() {
                        *value = theirs[order.source_column(column)];
                    }
                }
            }
            RowOrder::InterleavedHeads { .. } | RowOrder::TiledHeads { .. } | RowOrder::Blocks(_) => {
                for (row, out_row) in rows.clone().zip(out.chunks_exact_mut(self.cols)) {
                    self.dequantize_rows(self.row_order.source_row(self.first_row, row), out_row);
                }
            }
        }
        if let Some(scales) = &self.scales {
            self.multiply_by(scales, rows.clone(), out);
        }
        self.stored_as.restore(out);
        for product in &self.added {
            product.add_rows(rows.clone(), self.cols, out);
        }
    }

    /// Multiplies the numbers of our rows `rows`, which are `out`, by their factors.
    fn multiply_by(&self, scales: &BlockScales, rows: Range<usize>, out: &mut [f32]) {
        for (row, out_row) in rows.zip(out.chunks_exact_mut(self.cols)) {
            match self.row_order {
                RowOrder::Strided(elements) => {
                    let numbers = out_row.iter_mut().enumerate();
                    numbers.for_each(|(column, number)| *number *= scales.of_element(elements.at(row, column)));
                }
                order => scales.multiply_row(order.source_row(self.first_row, row), out_row),
            }
        }
    }

    /// Reads our row `row` as the INT4 that the source has, in groups of `group`: codes, as many as whole groups, and a parameter for
    /// each group.
    ///
    /// # Panics
    /// When the source has no INT4, or an adapter adds to it.
    pub(crate) fn read_int4_row(&self, row: usize, group: usize, codes: &mut [u8], params: &mut [WideInt4Params]) {
        assert!(self.added.is_empty(), "{} is INT4 and nothing else", self.source_name);
        let Some(Packed::Int4(packed)) = &self.packed else { panic!("{} is no INT4", self.source_name) };
        packed.read_int4_row(self.row_order.source_row(self.first_row, row), group, codes, params);
    }

    /// Reads our row `row` as the IQ4 that the source has: codes, (cols), and a scale for each 32 of them, as
    /// [`iq4_codes`](super::gguf::blocks::iq4_codes) rounds it.
    ///
    /// # Panics
    /// When the source has no IQ4 or another order of columns within groups, or an adapter adds to it.
    pub(crate) fn read_iq4_row(&self, row: usize, codes: &mut [u8], scales: &mut [f16]) {
        assert!(self.added.is_empty(), "{} is IQ4 and nothing else", self.source_name);
        assert!(self.row_order.keeps_groups(CODEBOOK_GROUP), "groups of {} are whole", self.source_name);
        let row_bytes = self.source_row_bytes();
        let start = self.offset_bytes + self.row_order.source_row(self.first_row, row) * row_bytes;
        let bytes = &self.map.bytes()[start..start + row_bytes];
        let (mut their_codes, mut their_scales) = (vec![0; codes.len()], vec![f16::ZERO; scales.len()]);
        iq4_codes(self.dtype, bytes, &mut their_codes, &mut their_scales);
        let groups = codes.chunks_exact_mut(CODEBOOK_GROUP).zip(scales);
        for (group, (codes, scale)) in groups.enumerate() {
            let first = self.row_order.source_column(group * CODEBOOK_GROUP);
            codes.copy_from_slice(&their_codes[first..first + CODEBOOK_GROUP]);
            *scale = their_scales[first / CODEBOOK_GROUP];
        }
    }

    /// Bytes of the tensor in the source.
    pub(super) fn source_bytes(&self) -> u64 {
        match &self.packed {
            Some(packed) => {
                let elements = self.source_shape.iter().product::<usize>() as u64;
                packed.bytes() * (self.rows * self.cols) as u64 / elements
            }
            None => (self.source_rows() * self.source_row_bytes()) as u64,
        }
    }

    /// Releases the memory that reading this tensor has mapped.
    pub(crate) fn release(&self) {
        if let Some(packed) = &self.packed {
            return packed.release();
        }
        if let RowOrder::Strided(elements) = self.row_order {
            let of_bytes = |elements: usize| self.dtype.row_bytes(elements).expect("elements are floats");
            let end = of_bytes(elements.at(self.rows - 1, self.cols - 1) + 1);
            return self.map.release(self.offset_bytes + of_bytes(elements.first)..self.offset_bytes + end);
        }
        let (first_row, rows) = match self.row_order {
            RowOrder::Blocks(_) => (0, self.source_shape[0]),
            _ => (self.first_row, self.source_rows()),
        };
        let row_bytes = self.source_row_bytes();
        let start = self.offset_bytes + first_row * row_bytes;
        self.map.release(start..start + rows * row_bytes);
    }

    /// Rows of the source that are ours, unless they are in blocks.
    fn source_rows(&self) -> usize {
        if self.row_order == RowOrder::Transposed { self.cols } else { self.rows }
    }

    /// Bytes of a row of the source.
    fn source_row_bytes(&self) -> usize {
        let elements = if self.row_order == RowOrder::Transposed { self.rows } else { self.cols };
        self.dtype.row_bytes(elements).expect("the importer checked that rows are whole blocks")
    }

    /// Our rows `rows`: of each of the source's rows, the blocks that have a part of them.
    fn read_transposed(&self, rows: Range<usize>, out: &mut [f32]) {
        let (elements, bytes) = self.dtype.block();
        let blocks = rows.start / elements..rows.end.div_ceil(elements);
        let mut values = vec![0.0; blocks.len() * elements];
        for column in 0..self.cols {
            let start = self.offset_bytes + (self.first_row + column) * self.source_row_bytes() + blocks.start * bytes;
            self.dtype.dequantize(&self.map.bytes()[start..start + blocks.len() * bytes], &mut values);
            let ours = values[rows.start - blocks.start * elements..].iter();
            out[column..].iter_mut().step_by(self.cols).zip(ours).for_each(|(out, value)| *out = *value);
        }
    }

    /// Our rows `rows`, column by column, because consecutive rows are adjacent in the source.
    fn read_strided(&self, elements: Elements, rows: Range<usize>, out: &mut [f32]) {
        let element_bytes = self.dtype.row_bytes(1).expect("elements are floats");
        let bytes = &self.map.bytes()[self.offset_bytes..];
        for column in 0..self.cols {
            for (at, row) in rows.clone().enumerate() {
                let element = &bytes[elements.at(row, column) * element_bytes..][..element_bytes];
                self.dtype.dequantize(element, std::slice::from_mut(&mut out[at * self.cols + column]));
            }
        }
    }

    /// Our rows `rows` of a packed matrix, whose rows that have some of them are decoded once.
    fn read_strided_of_packed(&self, elements: Elements, rows: Range<usize>, out: &mut [f32]) {
        let (Some(packed), false) = (&self.packed, rows.is_empty()) else { return };
        let cols = self.source_shape[1];
        let first = elements.at(rows.start, 0) / cols;
        let last = elements.at(rows.end - 1, self.cols - 1) / cols;
        let mut theirs = vec![0.0; (last + 1 - first) * cols];
        (first..).zip(theirs.chunks_exact_mut(cols)).for_each(|(row, values)| packed.read_row(row, values));
        for (row, values) in rows.zip(out.chunks_exact_mut(self.cols)) {
            let element = |column: usize| theirs[elements.at(row, column) - first * cols];
            values.iter_mut().enumerate().for_each(|(column, value)| *value = element(column));
        }
    }

    /// Whole rows that follow each other in the source, from `source_row` on, until `out` is full.
    fn dequantize_rows(&self, source_row: usize, out: &mut [f32]) {
        let row_bytes = self.source_row_bytes();
        let start = self.offset_bytes + source_row * row_bytes;
        let bytes = &self.map.bytes()[start..start + out.len() / self.cols * row_bytes];
        self.dtype.dequantize(bytes, out);
    }
}

impl SourceDType {
    /// Fills `out` from the elements in `bytes`.
    fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            SourceDType::F32 => read_elements(bytes, out, f32::from_le_bytes),
            SourceDType::F16 => read_elements(bytes, out, |element| f16::from_le_bytes(element).to_f32()),
            SourceDType::Bf16 => read_elements(bytes, out, |element| bf16::from_le_bytes(element).to_f32()),
            SourceDType::F8E4M3 => read_elements(bytes, out, |[byte]| e4m3(byte)),
            block_type => dequantize(block_type, bytes, out),
        }
    }
}

fn read_elements<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (value, element) in out.iter_mut().zip(elements) {
        *value = decode(*element);
    }
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::codebook::Codebook;

    use super::*;
    use crate::import::source_layout::RowBlocks;

    fn tensor(source_shape: &[usize], dtype: SourceDType, bytes: &[u8]) -> Tensor {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let (rows, cols) = if let [rows, cols] = *source_shape { (rows, cols) } else { (1, source_shape[0]) };
        Tensor {
            source_name: "t".into(),
            source_shape: source_shape.to_vec(),
            first_row: 0,
            rows,
            cols,
            dtype,
            row_order: RowOrder::Plain,
            stored_as: StoredAs::Itself,
            packed: None,
            scales: None,
            added: Vec::new(),
            map: Arc::new(MappedFile::open(file.path()).unwrap()),
            offset_bytes: 0,
        }
    }

    fn f32_tensor(source_shape: &[usize], values: &[f32]) -> Tensor {
        tensor(source_shape, SourceDType::F32, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    fn all(tensor: &Tensor) -> Vec<f32> {
        let mut out = vec![0.0; tensor.rows * tensor.cols];
        tensor.read_rows(0..tensor.rows, &mut out);
        out
    }

    #[test]
    fn a_matrix_is_read_across_blocks_of_its_transpose() {
        // (3, 64): blocks of 32 that count up from 0 with scales 1 to 6, of which the last two rows are ours.
        let block = |scale: u8| [f16::from_f32(scale.into()).to_le_bytes().to_vec(), (0..32).collect()].concat();
        let bytes: Vec<u8> = (1..=6).flat_map(block).collect();
        let turned = Tensor {
            first_row: 1,
            rows: 64,
            cols: 2,
            row_order: RowOrder::Transposed,
            ..tensor(&[3, 64], SourceDType::Q8_0, &bytes)
        };
        let whole = all(&turned);
        assert_eq!((whole[2 * 5], whole[2 * 5 + 1], whole[2 * 40], whole[2 * 40 + 1]), (15., 25., 32., 48.));
        for rows in [0..1, 31..33, 40..64] {
            let mut part = vec![0.0; rows.len() * 2];
            turned.read_rows(rows.clone(), &mut part);
            assert_eq!(part, whole[rows.start * 2..rows.end * 2]);
        }
        assert_eq!(turned.source_bytes(), 4 * 34);
        turned.release();
    }

    #[test]
    fn heads_in_tiles_come_back_to_their_key_heads() {
        // A row of q or k, then the first head of two key heads, the second of both, the third of both.
        let mut rows = f32_tensor(&[7, 1], &[0., 1., 2., 3., 4., 5., 6.]);
        rows.row_order = RowOrder::TiledHeads { plain: 1, key_heads: 2, shared: 3, width: 1 };
        assert_eq!(all(&rows), [0., 1., 3., 5., 2., 4., 6.]);
        let mut vector = f32_tensor(&[4], &[0., 1., 2., 3.]);
        vector.row_order = RowOrder::TiledHeads { plain: 0, key_heads: 2, shared: 2, width: 1 };
        assert_eq!(all(&vector), [0., 2., 1., 3.]);
        let mut columns = f32_tensor(&[1, 8], &[0., 1., 2., 3., 4., 5., 6., 7.]);
        columns.row_order = RowOrder::TiledColumns { key_heads: 2, shared: 2, width: 2 };
        assert_eq!(all(&columns), [0., 1., 4., 5., 2., 3., 6., 7.]);
    }

    #[test]
    fn rates_are_stored_as_they_are_used() {
        let mut rates = f32_tensor(&[2], &[-1.0, -2.0]);
        rates.stored_as = StoredAs::NegatedExponential;
        assert_eq!(all(&rates), [0.0, 2f32.ln()]);
    }

    #[test]
    fn a_split_projection_reads_from_its_first_row() {
        let mut down = f32_tensor(&[4, 2], &[0., 1., 2., 3., 4., 5., 6., 7.]);
        (down.first_row, down.rows) = (2, 2);
        assert_eq!(all(&down), [4., 5., 6., 7.]);
        let mut last = [0.0; 2];
        down.read_rows(1..2, &mut last);
        assert_eq!(last, [6., 7.]);
    }

    #[test]
    fn interleaved_heads_become_two_halves() {
        // Two heads of four; the source holds each head's dimensions as 0 2 1 3 of ours.
        let mut q = f32_tensor(&[8, 1], &[0., 2., 1., 3., 4., 6., 5., 7.]);
        q.row_order = RowOrder::InterleavedHeads { head_dim: 4, plain: 0, rotary_dim: 4 };
        assert_eq!(all(&q), [0., 1., 2., 3., 4., 5., 6., 7.]);
        let mut bias = f32_tensor(&[8], &[0., 2., 1., 3., 4., 6., 5., 7.]);
        bias.row_order = RowOrder::InterleavedHeads { head_dim: 4, plain: 0, rotary_dim: 4 };
        assert_eq!(all(&bias), [0., 1., 2., 3., 4., 5., 6., 7.]);
        // One head of eight, of which four are rotated.
        let mut partly = f32_tensor(&[8, 1], &[0., 2., 1., 3., 4., 5., 6., 7.]);
        partly.row_order = RowOrder::InterleavedHeads { head_dim: 8, plain: 0, rotary_dim: 4 };
        assert_eq!(all(&partly), [0., 1., 2., 3., 4., 5., 6., 7.]);
    }

    #[test]
    fn blocks_of_rows_are_put_together() {
        let mut mixed = f32_tensor(&[8, 1], &[0., 1., 2., 3., 4., 5., 6., 7.]);
        let blocks = |rows, first, block| RowBlocks { rows, first, block, stride: 4 };
        mixed.row_order = RowOrder::Blocks([blocks(2, 1, 1), blocks(4, 2, 2), RowBlocks::NONE]);
        mixed.rows = 6;
        assert_eq!(all(&mixed), [1., 5., 2., 3., 6., 7.]);
    }

    /// (4, 128) of IQ4_NL: every group has codes and a scale of its own.
    #[test]
    fn rows_of_iq4_are_those_in_f32() {
        let block = |n: u8| {
            let codes = (0..16).map(|i| ((i + n) % 16) | (((i * n) % 16) << 4));
            f16::from_f32(f32::from(n) - 3.5).to_le_bytes().into_iter().chain(codes).collect::<Vec<u8>>()
        };
        let bytes: Vec<u8> = (0..16).flat_map(block).collect();
        for row_order in [
            RowOrder::Plain,
            RowOrder::InterleavedHeads { head_dim: 4, plain: 0, rotary_dim: 4 },
            // Heads of one group each.
            RowOrder::TiledColumns { key_heads: 2, shared: 2, width: 32 },
        ] {
            let matrix = Tensor { row_order, ..tensor(&[4, 128], SourceDType::Iq4Nl, &bytes) };
            let mut found = Vec::new();
            for row in 0..4 {
                let (mut codes, mut scales) = ([0; 128], [f16::ZERO; 4]);
                matrix.read_iq4_row(row, &mut codes, &mut scales);
                let weight = |(column, code): (usize, &u8)| {
                    f32::from(Codebook::Iq4.level(*code)) * scales[column / CODEBOOK_GROUP].to_f32()
                };
                found.extend(codes.iter().enumerate().map(weight));
            }
            assert_eq!(found, all(&matrix), "{row_order:?}");
        }
        let half_groups = RowOrder::TiledColumns { key_heads: 2, shared: 2, width: 16 };
        assert!(!half_groups.keeps_groups(CODEBOOK_GROUP) && !RowOrder::Transposed.keeps_groups(CODEBOOK_GROUP));
    }

    #[test]
    fn half_floats_widen_and_the_offset_is_added() {
        let mut norm = tensor(&[2], SourceDType::Bf16, &[0x80, 0x3f, 0x00, 0xc0]);
        norm.stored_as = StoredAs::Plus(1.0);
        assert_eq!(all(&norm), [0.0, -3.0]);
        assert_eq!(all(&tensor(&[2], SourceDType::F16, &[0x00, 0x3c, 0x00, 0xb8])), [1.0, -0.5]);
    }

    #[test]
    fn a_row_of_blocks_is_whole_or_nothing() {
        assert_eq!(SourceDType::Q4K.row_bytes(512), Some(288));
        assert_eq!(SourceDType::Q4_0.row_bytes(48), None);
        assert_eq!(SourceDType::F32.row_bytes(usize::MAX), None);
    }
}
