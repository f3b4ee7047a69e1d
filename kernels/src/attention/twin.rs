//! The kernel in plain loops, to check it by.

use super::spec::AttentionSpec;
use crate::cache::{Cell, Side};
use crate::combine::{MASKED, partial_quads, store_heads, with_sink};

/// Buffers of the twin; caches as `heads` writes them.
pub struct AttentionInputs<'a> {
    /// Queries as `heads` writes them, in rows of `query_stride`.
    pub queries: &'a [f32],
    /// f32 elements between rows of `queries`.
    pub query_stride: usize,
    /// Pool of key pages, in 32-bit words.
    pub keys: &'a [u32],
    /// Pool of value pages, in 32-bit words.
    pub values: &'a [u32],
    /// Position of each row in the sequence, in tokens.
    pub positions: &'a [u32],
    /// Last token that each row attends to: its own or, of a row of an image, the image's last.
    pub last_seen: &'a [u32],
    /// Page of the pool for each page of the sequence.
    pub block_table: &'a [u32],
    /// Sink of each query head; empty if the spec has none.
    pub sinks: &'a [f32],
}

/// The kernel in plain loops, all rows of one sequence, after its prologue: two passes over the tokens of each split, no
/// online rescaling. `output` is in words: the partial results, or rows of the spec's format.
pub fn twin(spec: &AttentionSpec, inputs: &AttentionInputs, output: &mut [u32]) {
    let (dim, value_dim) = (spec.cache.head_dim, spec.cache.value_dim());
    let partial_len = 4 * partial_quads(value_dim);
    for (row, &position) in inputs.positions.iter().enumerate() {
        let (position, last) = (position as usize, inputs.last_seen[row] as usize);
        let group = row / spec.split.rows_per_group * spec.split.rows_per_group;
        let last_of_group = inputs.positions.len().min(group + spec.split.rows_per_group) - 1;
        let parts = spec.split.parts(inputs.positions[group], inputs.last_seen[last_of_group]);
        let mut result = Vec::new();
        for head in 0..spec.n_heads() {
            let query = &inputs.queries[row * inputs.query_stride + head * dim..][..dim];
            for (split, part) in parts.iter().enumerate() {
                let newest = (split == 0 && spec.split.newest_apart).then_some(position);
                let seen =
                    |token: &usize| *token <= last && spec.split.window.is_none_or(|window| token + window > position);
                let tokens: Vec<usize> = part.clone().filter(seen).chain(newest).collect();
                let (sums, largest, total) = weighted_sum(spec, inputs, query, head / spec.gqa, &tokens);
                if spec.split.is_partial() {
                    let at = ((row * spec.n_heads() + head) * spec.split.max_splits + split) * partial_len;
                    let mut partial = sums;
                    partial.resize(partial_len - 4, 0.0);
                    partial.extend([largest, total, parts.len() as f32, 0.0]);
                    output[at..at + partial_len]
                        .copy_from_slice(&partial.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
                } else {
                    let total = with_sink(total, largest, inputs.sinks.get(head));
                    result.extend(sums.iter().map(|x| x / total));
                }
            }
        }
        if !spec.split.is_partial() {
            let heads = [value_dim, spec.result_stride()];
            store_heads(spec.output, &result, heads, &mut output[row * spec.output_stride..]);
        }
    }
}

/// Σ e^(score - max) · v over `tokens`, the maximum score `max`, and Σ e^(score - max).
fn weighted_sum(
    spec: &AttentionSpec,
    inputs: &AttentionInputs,
    query: &[f32],
    kv_head: usize,
    tokens: &[usize],
) -> (Vec<f32>, f32, f32) {
    let page_tokens = spec.cache.page_tokens;
    let cell = |token: usize| Cell {
        page: inputs.block_table[token / page_tokens] as usize,
        kv_head,
        slot: token % page_tokens,
    };
    let score = |token: &usize| {
        let key = |i: usize| match spec.cache.latent_value {
            Some(_) => spec.cache.get_latent(inputs.keys, inputs.values, cell(*token), i),
            None => spec.cache.get(Side::Keys, inputs.keys, cell(*token), i),
        };
        let score: f32 = query.iter().enumerate().map(|(i, x)| x * key(i)).sum();
        spec.softcap.map_or(score, |cap| cap.get() * (score / cap.get()).tanh())
    };
    let scores: Vec<f32> = tokens.iter().map(score).collect();
    let largest = scores.iter().copied().fold(MASKED, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
    let value = |token: usize, i: usize| match spec.cache.latent_value {
        Some(_) => spec.cache.get_latent(inputs.keys, inputs.values, cell(token), i),
        None => spec.cache.get(Side::Values, inputs.values, cell(token), i),
    };
    let sum = |i: usize| weights.iter().zip(tokens).map(|(weight, &token)| weight * value(token, i)).sum();
    // A partial result is whole quads; behind a latent value come the other elements of its vector.
    let behind = spec.split.is_partial() && spec.cache.latent_value.is_some();
    let value_dim = spec.cache.value_dim();
    let sums = if behind { value_dim.next_multiple_of(4).min(spec.cache.head_dim) } else { value_dim };
    ((0..sums).map(sum).collect(), largest, weights.iter().sum())
}
