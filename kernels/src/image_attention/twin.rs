//! The kernel in plain loops, to check it by.

use super::spec::ImageAttentionSpec;

/// Buffers of the twin, as the kernel binds them, and the patches of the image.
pub struct ImageAttentionInputs<'a> {
    /// Queries, keys and values, in rows of the spec's strides.
    pub values: [&'a [f32]; 3],
    /// Rows of each.
    pub n_rows: usize,
}

/// The kernel in plain loops: writes `output` (n_rows, output_stride).
pub fn twin(spec: &ImageAttentionSpec, inputs: &ImageAttentionInputs<'_>, output: &mut [f32]) {
    let dim = spec.head_dim;
    for head in 0..spec.n_heads {
        let of = |which: usize, row: usize| {
            let at = row * spec.input_strides[which] + spec.input_firsts[which] + head * dim;
            &inputs.values[which][at..at + dim]
        };
        for row in 0..inputs.n_rows {
            let score = |other: usize| {
                let product: f32 = of(0, row).iter().zip(of(1, other)).map(|(q, k)| q * k).sum();
                product * spec.scale.get()
            };
            let scores: Vec<f32> = (0..inputs.n_rows).map(score).collect();
            let largest = scores.iter().copied().fold(f32::MIN, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f32 = weights.iter().sum();
            for element in 0..dim {
                let sum: f32 = weights.iter().enumerate().map(|(other, weight)| weight * of(2, other)[element]).sum();
                output[row * spec.output_stride + head * dim + element] = sum / total;
            }
        }
    }
}
