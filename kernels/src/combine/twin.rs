//! The kernel in plain loops, to check it by.

use super::spec::{CombineSpec, MASKED, partial_quads};
use crate::activation_format::{ATTENTION_FACTOR, ActivationFormat, encode_divided_row};

/// The kernel in plain loops, for `n_rows` rows; `sinks` is empty if the spec has none, `output` is in words of the spec's format.
pub fn twin(spec: &CombineSpec, partials: &[f32], sinks: &[f32], n_rows: usize, output: &mut [u32]) {
    let partial_len = 4 * partial_quads(spec.head_dim);
    let (maximum, sum, splits) = (partial_len - 4, partial_len - 3, partial_len - 2);
    for row in 0..n_rows {
        let mut result = Vec::new();
        for head in 0..spec.n_heads {
            let of_head = &partials[(row * spec.n_heads + head) * spec.max_splits * partial_len..];
            let found: Vec<&[f32]> = of_head.chunks(partial_len).take(of_head[splits] as usize).collect();
            let largest = found.iter().map(|part| part[maximum]).fold(MASKED, f32::max);
            let weights: Vec<f32> = found.iter().map(|part| (part[maximum] - largest).exp()).collect();
            let over = |i: usize| found.iter().zip(&weights).map(|(part, weight)| weight * part[i]).sum::<f32>();
            let total = with_sink(over(sum), largest, sinks.get(head));
            result.extend((0..spec.head_dim).map(|i| over(i) / total));
        }
        store_heads(spec.output, &result, [spec.head_dim, spec.head_stride], &mut output[row * spec.output_stride..]);
    }
}

/// Writes a row's results, `head_dim` elements a head, in the words of `format`: as one row, or each head as a row of its own.
pub(crate) fn store_heads(
    format: ActivationFormat,
    result: &[f32],
    [head_dim, head_stride]: [usize; 2],
    output: &mut [u32],
) {
    let rows = if head_stride == head_dim { result.len() } else { head_dim };
    for (index, row) in result.chunks(rows).enumerate() {
        let words = encode_divided_row(format, row, ATTENTION_FACTOR);
        output[index * head_stride..][..words.len()].copy_from_slice(&words);
    }
}

/// `Σ e^(score - max)` with the head's sink, if it has one.
pub(crate) fn with_sink(total: f32, max: f32, sink: Option<&f32>) -> f32 {
    total + sink.map_or(0.0, |sink| (sink - max).exp())
}
