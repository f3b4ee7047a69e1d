//! The kernel in plain loops, to check it by.

use super::spec::ExpertSumSpec;

/// One row of the output; `input` holds its experts' rows, `stride` elements apart.
pub fn twin_row(spec: &ExpertSumSpec, input: &[f32], weights: &[f32]) -> Vec<f32> {
    let mut sum = vec![0.0; spec.width];
    for (row, weight) in input.chunks(spec.stride).zip(weights) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += weight * value;
        }
    }
    sum
}
