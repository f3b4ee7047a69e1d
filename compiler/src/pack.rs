//! Weights from the checkpoint's rows to the bytes that kernels read, a bounded chunk at a time on all cores.

use std::collections::BTreeMap;

use half::f16;
use rayon::prelude::*;
use unicorn_artifact::codebook::{CODEBOOK_GROUP, Codebook};
use unicorn_artifact::int4::{INT4_PER_WORD, Int4Params, WideInt4Params, pack_int4};
use unicorn_kernels::heads::rope_table;
use unicorn_kernels::image_rope::image_rope_table;
use unicorn_kernels::layout::{TILE_ROWS, WORD_BYTES};
use unicorn_kernels::{WeightFormat, WeightLayout};

use crate::error::{CompileError, Result};
use crate::fuse::{FusedGraph, Matrix, Vector};
use crate::graph::VectorRef;
use crate::import::{Checkpoint, ModelConfig, RopeConfig, Tensor};
use crate::importance::Importance;
use crate::quantize::{ErrorSum, quantize_fp4_row, quantize_int4_row, quantize_int8_row};
use crate::weights::{PackedSource, PackedWeight, SourceRow, product_factor};

/// Packed bytes that are in memory at a time.
pub const CHUNK_BYTES: usize = 16 << 20;

/// Error of each source tensor, summed over the rows packed so far; experts are summed together, by the name of their stack.
pub type Errors = BTreeMap<String, ErrorSum>;

/// Packs one weight and passes its bytes to `sink` in order.
///
/// # Errors
/// A weight that is not finite, naming tensor, row and column; and whatever `sink` returns.
pub fn pack(
    weight: &PackedWeight,
    graph: &FusedGraph,
    importance: &Importance,
    checkpoint: &Checkpoint,
    errors: &mut Errors,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    match &weight.source {
        PackedSource::Rope(index) => {
            let table = packed_rope(&checkpoint.config.ropes[*index], checkpoint.config.max_positions);
            sink(bytemuck::cast_slice(&table))
        }
        PackedSource::ImageRope => sink(bytemuck::cast_slice(&packed_image_rope(&checkpoint.config))),
        PackedSource::ProductFactor(id) => {
            let gate = &graph.matrices[id.0].parts[0].tensor;
            let bound = importance.product_bound(gate).expect("gates of normed rows have bounds");
            sink(bytemuck::cast_slice(&[product_factor(bound); 4]))
        }
        PackedSource::Vector(id) => {
            let vector = &graph.vectors[id.0];
            for part in &vector.parts {
                errors.insert(part.tensor.clone(), ErrorSum::default());
            }
            let values = packed_vector(vector, graph, checkpoint);
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                let tensors: Vec<&str> = vector.parts.iter().map(|part| part.tensor.as_str()).collect();
                return Err(not_finite(values[index], &tensors.join("+"), 0, index));
            }
            let mut padded = values;
            padded.resize(padded.len().next_multiple_of(4), 0.0);
            sink(bytemuck::cast_slice(&padded))
        }
        PackedSource::Matrix { id, first_row, layout } => {
            let matrix = &graph.matrices[id.0];
            pack_matrix(matrix, *first_row, layout, importance, checkpoint, errors, sink)
        }
    }
}

/// The f32 values of a vector, with its parts' offsets and scales.
pub fn packed_vector(vector: &Vector, graph: &FusedGraph, checkpoint: &Checkpoint) -> Vec<f32> {
    if let Some(stack) = vector.stack {
        return stacked_biases(vector, &graph.matrices[stack.0], checkpoint);
    }
    let mut values = Vec::new();
    for part in &vector.parts {
        let tensor = &checkpoint.tensors[&part.tensor];
        let start = values.len();
        values.resize(start + tensor.rows * tensor.cols, 0.0);
        tensor.read_rows(0..tensor.rows, &mut values[start..]);
        values[start..].iter_mut().for_each(|value| *value = part.scale * (*value + part.offset));
    }
    values
}

/// The biases of all experts in the order of their matrices' rows.
fn stacked_biases(vector: &Vector, matrix: &Matrix, checkpoint: &Checkpoint) -> Vec<f32> {
    let of_expert = |expert: usize| {
        let read = |part: &VectorRef| {
            let tensor = &checkpoint.tensors[&part.tensor_of(expert)];
            let mut values = vec![0.0; tensor.cols];
            tensor.read_rows(0..1, &mut values);
            values
        };
        let parts: Vec<Vec<f32>> = vector.parts.iter().map(read).collect();
        let rows = (0..matrix.rows()).map(|row| matrix.part_row(row));
        rows.map(|(part, row)| parts[part][row]).collect::<Vec<f32>>()
    };
    (0..matrix.experts.unwrap_or(1)).flat_map(of_expert).collect()
}

/// The table that RoPE reads, see `unicorn_kernels::heads`.
pub fn packed_rope(rope: &RopeConfig, max_positions: usize) -> Vec<[f32; 2]> {
    let variants: Vec<&[f64]> = [Some(&rope.inv_freq), rope.long.as_ref().map(|long| &long.inv_freq)]
        .into_iter()
        .flatten()
        .map(Vec::as_slice)
        .collect();
    rope_table(&variants, rope.attention_factor, max_positions)
}

/// The table of places of an image's patches.
pub fn packed_image_rope(config: &ModelConfig) -> Vec<[f32; 2]> {
    let vision = config.vision.as_ref().expect("a table of places belongs to a vision tower");
    image_rope_table(&vision.grid_frequencies(), vision.grid_places())
}

fn pack_matrix(
    matrix: &Matrix,
    first_row: usize,
    layout: &WeightLayout,
    importance: &Importance,
    checkpoint: &Checkpoint,
    errors: &mut Errors,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    // Parts below one another have the same columns; each expert may have another input.
    let of_expert = |expert: usize| {
        let SourceRow { part, first_col, .. } = matrix.source_of_expert(expert);
        importance.of(&part.tensor_of(expert)).map(|weights| {
            let mut padded = weights[first_col..][..layout.cols].to_vec();
            padded.resize(layout.padded_cols(), 1.0);
            padded
        })
    };
    let importance: Vec<Option<Vec<f32>>> = (0..matrix.experts.unwrap_or(1)).map(of_expert).collect();
    let tiles_per_chunk = (CHUNK_BYTES / layout.tile_bytes()).max(1);
    let mut buffer = vec![0u8; tiles_per_chunk.min(layout.tiles()) * layout.tile_bytes()];
    for first_tile in (0..layout.tiles()).step_by(tiles_per_chunk) {
        let n_tiles = tiles_per_chunk.min(layout.tiles() - first_tile);
        let chunk = &mut buffer[..n_tiles * layout.tile_bytes()];
        chunk.fill(0);
        let sums: Vec<Result<Vec<(String, ErrorSum)>>> = chunk
            .par_chunks_mut(layout.tile_bytes())
            .enumerate()
            .map(|(index, tile)| {
                let tile_row = (first_tile + index) * TILE_ROWS;
                // A tile is of one expert.
                let expert = matrix.source_row(first_row + tile_row).map_or(0, |source| source.expert);
                let mut packer = TilePacker::new(layout, importance[expert].as_deref(), tile);
                let mut sums = Vec::with_capacity(TILE_ROWS);
                for row_in_tile in 0..TILE_ROWS.min(layout.rows - tile_row) {
                    let source = matrix.source_row(first_row + tile_row + row_in_tile);
                    let Some(SourceRow { part, row, first_col, .. }) = source else { break };
                    let name = part.tensor_of(expert);
                    let tensor = &checkpoint.tensors[&*name];
                    packer.read(tensor, row, first_col);
                    let kept = checkpoint.config.kept_codes.get(&*name);
                    let is_int4 = kept.is_some_and(|kept| kept.codes.codebook().is_none());
                    let written = if layout.format.is_int4() && is_int4 {
                        Ok(packer.keep_int4(tensor, row, first_col, row_in_tile))
                    } else if layout.format == WeightFormat::Iq4 {
                        packer.keep_iq4(tensor, row, first_col, row_in_tile)
                    } else {
                        packer.put(row_in_tile)
                    };
                    let error =
                        written.map_err(|column| not_finite(packer.row[column], &name, row, first_col + column))?;
                    sums.push((part.tensor.clone(), error));
                }
                Ok(sums)
            })
            .collect();
        for sum in sums {
            for (tensor, error) in sum? {
                errors.entry(tensor).or_default().merge(&error);
            }
        }
        matrix.tensors().for_each(|tensor| checkpoint.tensors[&*tensor].release());
        sink(chunk)?;
    }
    Ok(())
}

fn not_finite(value: f32, tensor: &str, row: usize, column: usize) -> CompileError {
    CompileError::Unsupported {
        what: format!("a weight that is not a finite number of the format ({value})"),
        detail: format!("tensor {tensor}, row {row}, column {column}"),
    }
}

/// Writes rows into one tile.
struct TilePacker<'a> {
    layout: &'a WeightLayout,
    importance: Option<&'a [f32]>,
    tile: &'a mut [u8],
    /// The row to put, `padded_cols` long; padding stays zero.
    row: Vec<f32>,
    codes: Vec<u8>,
    params: Vec<Int4Params>,
    wide: Vec<WideInt4Params>,
    signed: Vec<i8>,
    scales: Vec<f16>,
}

impl<'a> TilePacker<'a> {
    fn new(layout: &'a WeightLayout, importance: Option<&'a [f32]>, tile: &'a mut [u8]) -> TilePacker<'a> {
        let (cols, blocks) = (layout.padded_cols(), layout.blocks_per_tile());
        TilePacker {
            layout,
            importance,
            tile,
            row: vec![0.0; cols],
            codes: vec![0; cols],
            params: vec![Int4Params::default(); blocks],
            wide: vec![WideInt4Params::default(); blocks],
            signed: vec![0; cols],
            scales: vec![f16::ZERO; blocks],
        }
    }

    /// Reads the columns of a row of `tensor` from `first_col` on: as many as the layout has.
    fn read(&mut self, tensor: &Tensor, row: usize, first_col: usize) {
        let cols = self.layout.cols;
        if tensor.cols == cols {
            return tensor.read_rows(row..row + 1, &mut self.row[..cols]);
        }
        let mut whole = vec![0.0; tensor.cols];
        tensor.read_rows(row..row + 1, &mut whole);
        take_first(&mut self.row[..cols], &whole[first_col..]);
    }

    /// Writes the row of `tensor` that `self.row` holds, with the INT4 codes and scales that the source has.
    fn keep_int4(&mut self, tensor: &Tensor, row: usize, first_col: usize, row_in_tile: usize) -> ErrorSum {
        let group = self.layout.format.block_cols();
        if tensor.cols == self.layout.cols {
            tensor.read_int4_row(row, group, &mut self.codes, &mut self.wide);
        } else {
            let blocks = tensor.cols.div_ceil(group);
            let (mut codes, mut params) = (vec![0; blocks * group], vec![WideInt4Params::default(); blocks]);
            tensor.read_int4_row(row, group, &mut codes, &mut params);
            take_first(&mut self.codes, &codes[first_col..]);
            take_first(&mut self.wide, &params[first_col / group..]);
        }
        self.write_int4(row_in_tile);
        let mut error = ErrorSum::default();
        self.row.iter().for_each(|weight| error.add(*weight, *weight));
        error
    }

    /// The same of IQ4; an error is the column of a weight whose scale the format cannot hold. What the rounding of scales loses is counted.
    fn keep_iq4(
        &mut self,
        tensor: &Tensor,
        row: usize,
        first_col: usize,
        row_in_tile: usize,
    ) -> std::result::Result<ErrorSum, usize> {
        if tensor.cols == self.layout.cols {
            tensor.read_iq4_row(row, &mut self.codes, &mut self.scales);
        } else {
            let (mut codes, mut scales) = (vec![0; tensor.cols], vec![f16::ZERO; tensor.cols / CODEBOOK_GROUP]);
            tensor.read_iq4_row(row, &mut codes, &mut scales);
            take_first(&mut self.codes, &codes[first_col..]);
            take_first(&mut self.scales, &scales[first_col / CODEBOOK_GROUP..]);
        }
        let mut error = ErrorSum::default();
        let groups = self.row.chunks_exact(CODEBOOK_GROUP).zip(self.codes.chunks_exact(CODEBOOK_GROUP));
        for (group, ((weights, codes), scale)) in groups.zip(&self.scales).enumerate() {
            if !scale.is_finite() {
                return Err(group * CODEBOOK_GROUP);
            }
            for (weight, code) in weights.iter().zip(codes) {
                error.add(*weight, f32::from(Codebook::Iq4.level(*code)) * scale.to_f32());
            }
        }
        self.write_codes(row_in_tile);
        self.write_scales(row_in_tile);
        Ok(error)
    }

    /// Writes `self.codes`, four bits each.
    fn write_codes(&mut self, row_in_tile: usize) {
        for (chunk, codes) in self.codes.chunks_exact(32).enumerate() {
            let mut words = [0u32; 32 / INT4_PER_WORD];
            pack_int4(codes, &mut words);
            write_chunk(self.layout, self.tile, chunk, row_in_tile, words.map(u32::to_le_bytes).as_flattened());
        }
    }

    /// Writes `self.scales`.
    fn write_scales(&mut self, row_in_tile: usize) {
        for (block, scale) in self.scales.iter().enumerate() {
            let at = self.layout.param_offset(block, row_in_tile);
            self.tile[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }

    /// Writes `self.codes` and, in the width of the format, `self.wide`.
    fn write_int4(&mut self, row_in_tile: usize) {
        self.write_codes(row_in_tile);
        for (block, params) in self.wide.iter().enumerate() {
            let at = self.layout.param_offset(block, row_in_tile);
            if self.layout.format.is_wide() {
                self.tile[at..at + 4].copy_from_slice(&params.0.to_le_bytes());
            } else {
                let narrow = Int4Params::new(params.scale(), params.zero());
                self.tile[at..at + 2].copy_from_slice(&narrow.0.to_le_bytes());
            }
        }
    }

    /// Quantises `self.row` and writes it; an error is the column of a weight that the format cannot hold.
    fn put(&mut self, row_in_tile: usize) -> std::result::Result<ErrorSum, usize> {
        match self.layout.format {
            WeightFormat::Int4 { group } | WeightFormat::WideInt4 { group } => {
                let group = group as usize;
                let error = quantize_int4_row(&self.row, self.importance, group, &mut self.codes, &mut self.params)?;
                for (wide, params) in self.wide.iter_mut().zip(&self.params) {
                    *wide = WideInt4Params::new(f16::from_f32(params.scale()), params.zero());
                }
                self.write_int4(row_in_tile);
                Ok(error)
            }
            WeightFormat::Int8 => {
                let error = quantize_int8_row(&self.row, &mut self.signed, &mut self.scales)?;
                for (chunk, codes) in self.signed.chunks_exact(16).enumerate() {
                    write_chunk(self.layout, self.tile, chunk, row_in_tile, bytemuck::cast_slice(codes));
                }
                self.write_scales(row_in_tile);
                Ok(error)
            }
            WeightFormat::Fp4 => {
                let error = quantize_fp4_row(&self.row, &mut self.codes, &mut self.scales)?;
                self.write_codes(row_in_tile);
                self.write_scales(row_in_tile);
                Ok(error)
            }
            WeightFormat::Iq4 => unreachable!("IQ4 is kept, and nothing is quantised to it"),
            WeightFormat::F16 => {
                let mut error = ErrorSum::default();
                for (chunk, weights) in self.row.chunks_exact(8).enumerate() {
                    let halves: [f16; 8] = std::array::from_fn(|i| f16::from_f32(weights[i]));
                    for (i, (weight, half)) in weights.iter().zip(halves).enumerate() {
                        if !half.is_finite() {
                            return Err(8 * chunk + i);
                        }
                        error.add(*weight, half.to_f32());
                    }
                    write_chunk(self.layout, self.tile, chunk, row_in_tile, bytemuck::cast_slice(&halves));
                }
                Ok(error)
            }
        }
    }
}

/// Fills `out` with the first elements of `from`, which has as many or more.
fn take_first<T: Copy>(out: &mut [T], from: &[T]) {
    out.copy_from_slice(&from[..out.len()]);
}

/// `bytes` (16) as the `index`-th chunk of a row.
fn write_chunk(layout: &WeightLayout, tile: &mut [u8], index: usize, row_in_tile: usize, bytes: &[u8]) {
    let chunks_per_block = layout.format.chunks_per_block();
    let at = layout.chunk_offset(index / chunks_per_block, index % chunks_per_block, row_in_tile);
    tile[at..at + WORD_BYTES].copy_from_slice(bytes);
}
