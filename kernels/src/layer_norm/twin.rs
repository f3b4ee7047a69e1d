//! The kernel in plain loops, to check it by.

use super::spec::LayerNormSpec;

/// One row; `weight_and_bias`: (2, width).
pub fn twin_row(spec: &LayerNormSpec, input: &[f32], weight_and_bias: &[f32]) -> Vec<f32> {
    let input = &input[..spec.width];
    let mean = input.iter().sum::<f32>() / spec.width as f32;
    let variance = input.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / spec.width as f32;
    let scale = 1.0 / (variance + spec.eps.get()).sqrt();
    let (weight, bias) = weight_and_bias.split_at(spec.width);
    input.iter().zip(weight).zip(bias).map(|((x, weight), bias)| (x - mean) * scale * weight + bias).collect()
}
