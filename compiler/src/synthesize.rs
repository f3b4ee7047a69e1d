//! Random weights of a model's exact shape, made in packed form: for benchmarks where no checkpoint is available.
//! The same config gives the same bytes.

use half::f16;
use rayon::prelude::*;
use unicorn_artifact::codebook::Codebook;
use unicorn_artifact::int4::{INT4_MAX, INT8_MAX, Int4Params, WideInt4Params};
use unicorn_kernels::layout::{TILE_ROWS, WORD_BYTES};
use unicorn_kernels::{WeightFormat, WeightLayout};

use crate::error::Result;
use crate::fuse::{FusedGraph, Vector};
use crate::import::ModelConfig;
use crate::pack::{CHUNK_BYTES, packed_image_rope, packed_rope};
use crate::weights::{PackedSource, PackedWeight, product_factor};

/// Standard deviation of a weight times sqrt(cols): activations keep about their size from layer to layer.
const GAIN: f32 = 0.6;
/// Standard deviation of a uniform number on -1..1.
const UNIFORM_DEVIATION: f32 = 0.577;

/// Fills one packed weight of `graph` and passes its bytes to `sink` in order. Norm weights and biases are 1.
pub fn synthesize(
    weight: &PackedWeight,
    graph: &FusedGraph,
    config: &ModelConfig,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    match &weight.source {
        PackedSource::Rope(index) => {
            sink(bytemuck::cast_slice(&packed_rope(&config.ropes[*index], config.max_positions)))
        }
        PackedSource::ImageRope => sink(bytemuck::cast_slice(&packed_image_rope(config))),
        // Rows of inputs have the length of a norm whose weights are 1, rows of matrices about GAIN.
        PackedSource::ProductFactor(_) => {
            let bound = 2.0 * f64::from(GAIN * GAIN) * config.hidden_size as f64;
            sink(bytemuck::cast_slice(&[product_factor(bound); 4]))
        }
        PackedSource::Vector(id) => {
            let mut padded = vector(&graph.vectors[id.0], config);
            padded.resize(weight.len_bytes as usize / 4, 1.0);
            sink(bytemuck::cast_slice(&padded))
        }
        PackedSource::Matrix { layout, first_row, .. } => {
            let seed = weight.name.bytes().fold(*first_row as u64, |seed, byte| mixed(seed ^ u64::from(byte)));
            let tiles_per_chunk = (CHUNK_BYTES / layout.tile_bytes()).max(1);
            let mut buffer = vec![0u8; tiles_per_chunk.min(layout.tiles()) * layout.tile_bytes()];
            for first_tile in (0..layout.tiles()).step_by(tiles_per_chunk) {
                let n_tiles = tiles_per_chunk.min(layout.tiles() - first_tile);
                let chunk = &mut buffer[..n_tiles * layout.tile_bytes()];
                chunk
                    .par_chunks_mut(layout.tile_bytes())
                    .enumerate()
                    .for_each(|(index, tile)| fill_tile(layout, seed ^ ((first_tile + index) as u64) << 32, tile));
                sink(chunk)?;
            }
            Ok(())
        }
    }
}

/// The values of a vector that are not 1: where an operation reads several tensors as one, matrices among them are random, as other matrices
/// are, and norms have their scale. With 1 everywhere, AltUp's coefficients would multiply the streams by 17 in each layer.
fn vector(vector: &Vector, config: &ModelConfig) -> Vec<f32> {
    if vector.stack.is_some() || vector.parts.len() == 1 {
        return Vec::new();
    }
    let shapes = config.tensor_shapes();
    let mut values = Vec::new();
    for part in &vector.parts {
        match shapes[&part.tensor][..] {
            [rows, cols] => (0..rows).for_each(|index| {
                let start = values.len();
                values.resize(start + cols, 0.0);
                row(&part.tensor, index, &mut values[start..]);
            }),
            ref of_vector => values.resize(values.len() + of_vector.iter().product::<usize>(), part.scale),
        }
    }
    values
}

/// One row of a tensor, unpacked, to be packed for an NPU.
pub fn row(tensor: &str, row: usize, values: &mut [f32]) {
    let seed = tensor.bytes().fold(row as u64, |seed, byte| mixed(seed ^ u64::from(byte)));
    let scale = GAIN / (values.len() as f32).sqrt() / UNIFORM_DEVIATION;
    for (index, value) in values.iter_mut().enumerate() {
        *value = uniform(seed.wrapping_add(index as u64)) * scale;
    }
}

/// Uniform on -1..1.
fn uniform(counter: u64) -> f32 {
    (mixed(counter) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

fn fill_tile(layout: &WeightLayout, seed: u64, tile: &mut [u8]) {
    let deviation = GAIN / (layout.cols as f32).sqrt();
    match layout.format {
        WeightFormat::F16 => {
            let scale = deviation / UNIFORM_DEVIATION;
            for (index, pair) in tile.chunks_exact_mut(2).enumerate() {
                pair.copy_from_slice(&f16::from_f32(uniform(seed + index as u64) * scale).to_le_bytes());
            }
            return;
        }
        WeightFormat::Int4 { .. }
        | WeightFormat::WideInt4 { .. }
        | WeightFormat::Int8
        | WeightFormat::Fp4
        | WeightFormat::Iq4 => {
            for (index, eight) in tile.chunks_exact_mut(8).enumerate() {
                eight.copy_from_slice(&mixed(seed + index as u64).to_le_bytes());
            }
        }
    }
    let int4_scale = deviation / UNIFORM_DEVIATION / (f32::from(INT4_MAX) / 2.0);
    let int4_zero = INT4_MAX / 2 + 1;
    let param = match layout.format {
        WeightFormat::Int4 { .. } => u32::from(Int4Params::new(int4_scale, int4_zero).0),
        WeightFormat::WideInt4 { .. } => WideInt4Params::new(f16::from_f32(int4_scale), int4_zero).0,
        WeightFormat::Fp4 => {
            u32::from(f16::from_f32((deviation / level_deviation(Codebook::Fp4)).log2().round().exp2()).to_bits())
        }
        WeightFormat::Iq4 => u32::from(f16::from_f32(deviation / level_deviation(Codebook::Iq4)).to_bits()),
        _ => u32::from(f16::from_f32(deviation / UNIFORM_DEVIATION / f32::from(INT8_MAX)).to_bits()),
    };
    let param_bytes = layout.format.param_bytes();
    for block in tile.chunks_exact_mut(layout.format.block_words() * WORD_BYTES) {
        let at = block.len() - param_bytes * TILE_ROWS;
        block[at..]
            .chunks_exact_mut(param_bytes)
            .for_each(|bytes| bytes.copy_from_slice(&param.to_le_bytes()[..param_bytes]));
    }
}

/// Standard deviation of the levels of random codes.
fn level_deviation(codebook: Codebook) -> f32 {
    ((0..16).map(|q| f32::from(codebook.level(q)).powi(2)).sum::<f32>() / 16.0).sqrt()
}

/// SplitMix64 (Steele, Lea and Flood 2014): one well-mixed word a counter.
fn mixed(counter: u64) -> u64 {
    let z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
