//! The kernel in plain loops, to check it by.

use std::f32::consts::FRAC_1_SQRT_2;

use super::spec::LaurelSpec;

/// One row of the stream, attention's result and the layer's, each (width); `weights`: those of their norms, (3, width).
pub fn twin_row(spec: &LaurelSpec, stream: &[f32], attended: &[f32], laurel: &[f32], weights: &[f32]) -> Vec<f32> {
    let normed = |row: &[f32], weights: &[f32]| {
        let row = &row[..spec.width];
        let squares: f32 = row.iter().map(|x| x * x).sum();
        let scale = 1.0 / (squares / spec.width as f32 + spec.eps.get()).sqrt();
        row.iter().zip(weights).map(|(x, weight)| x * scale * weight).collect::<Vec<f32>>()
    };
    let branches: Vec<Vec<f32>> = [stream, attended, laurel]
        .iter()
        .zip(weights.chunks(spec.width))
        .map(|(row, of_row)| normed(row, of_row))
        .collect();
    let sum = |column: usize| stream[column] + branches.iter().map(|branch| branch[column]).sum::<f32>();
    (0..spec.width).map(|column| sum(column) * FRAC_1_SQRT_2).collect()
}
