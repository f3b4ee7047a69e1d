//! The kernel in plain loops, to check it by.

use super::spec::{Destination, HeadsSpec, NormOf, ROPE_FINE, RopePositions};
use crate::activation_format::ActivationFormat;
use crate::cache::{Cell, Side};
use crate::norm::{NormSpec, norm_row};

/// Buffers of the twin; caches in 32-bit words.
pub struct HeadsInputs<'a> {
    /// (rows, input_stride), whose values are keys if the spec has `values_are_keys`.
    pub input: &'a [f32],
    /// (head_dim), weight of the RMS norm of query heads; empty if there is none.
    pub query_norm: &'a [f32],
    /// (head_dim), weight of the RMS norm of key heads; empty if there is none.
    pub key_norm: &'a [f32],
    /// (cos, sin) pairs, as `rope_table` makes them.
    pub rope_table: &'a [[f32; 2]],
    /// Position of each row in the sequence, in tokens.
    pub positions: &'a [u32],
    /// Page of the pool for each page of the sequence, in this KV group.
    pub block_table: &'a [u32],
    /// Token of each row; empty where no angle depends on it.
    pub tokens: &'a [u32],
    /// Variant of the RoPE table: 0, or 1 for LongRoPE's long frequencies; of a model that takes images of any size, what
    /// `unicorn_artifact::step::rope_word` makes.
    pub rope_variant: u32,
}

/// The kernel in plain loops, all rows of one sequence.
pub fn twin(spec: &HeadsSpec, inputs: &HeadsInputs, output: &mut [f32], keys: &mut [u32], values: &mut [u32]) {
    let dim = spec.cache.head_dim;
    let page_tokens = spec.cache.page_tokens;
    for (row, &position) in inputs.positions.iter().enumerate() {
        let page = inputs.block_table.get(position as usize / page_tokens).map_or(0, |&page| page as usize);
        let slot = position as usize % page_tokens;
        for (index, part) in spec.parts.iter().enumerate() {
            for part_head in 0..part.n_heads {
                let at = row * spec.input_stride + (spec.source_head(index) + part_head) * dim;
                let mut vector = inputs.input[at..at + dim].to_vec();
                if let Some(of) = part.norm {
                    let weight = match of {
                        NormOf::Query => inputs.query_norm,
                        NormOf::Key => inputs.key_norm,
                        NormOf::Value => &vec![1.0; dim],
                    };
                    vector = norm_row(&spec.head_norm(), &vector, &[], &[], weight).1;
                }
                if part.rope {
                    rope(spec, inputs, row, &mut vector);
                }
                let cell = Cell { page, kv_head: part_head, slot };
                match part.to {
                    Destination::Output => {
                        for (i, value) in vector.iter().enumerate() {
                            output[row * spec.output_stride + part_head * dim + i] =
                                value * part.scale_at(position as usize);
                        }
                    }
                    Destination::Keys => spec.cache.put(Side::Keys, keys, cell, &vector),
                    Destination::Latent => spec.cache.put_latent(keys, values, cell, &vector),
                    Destination::Values => spec.cache.put(Side::Values, values, cell, &vector),
                }
            }
        }
    }
}

impl HeadsSpec {
    fn head_norm(&self) -> NormSpec {
        NormSpec {
            width: self.cache.head_dim,
            stride: self.cache.head_dim,
            eps: self.eps,
            add: false,
            stores_sum: false,
            post_norm: false,
            scale_sum: false,
            norm_sum: true,
            fixed_sums: false,
            format: ActivationFormat::F32,
            also_f32: false,
            lanes: 0,
            subgroup_size: 0,
            counter_sync: false,
        }
    }
}

fn rope(spec: &HeadsSpec, inputs: &HeadsInputs, row: usize, vector: &mut [f32]) {
    let pairs = spec.rotary_dim / 2;
    let word = inputs.rope_variant;
    let variant = if spec.positions == RopePositions::Own { word as usize } else { 0 };
    let variant = variant * (spec.rope_coarse + ROPE_FINE) * pairs;
    for i in 0..pairs {
        let token = inputs.tokens.get(row).copied().unwrap_or(0);
        let position = spec.positions.of(i, inputs.positions[row], token, word) as usize;
        let [coarse_cos, coarse_sin] = inputs.rope_table[variant + position / ROPE_FINE * pairs + i];
        let [fine_cos, fine_sin] = inputs.rope_table[variant + (spec.rope_coarse + position % ROPE_FINE) * pairs + i];
        let cos = coarse_cos * fine_cos - coarse_sin * fine_sin;
        let sin = coarse_sin * fine_cos + coarse_cos * fine_sin;
        let at = spec.rotary_begins + i;
        let (low, high) = (vector[at], vector[at + pairs]);
        vector[at] = low * cos - high * sin;
        vector[at + pairs] = high * cos + low * sin;
    }
}
