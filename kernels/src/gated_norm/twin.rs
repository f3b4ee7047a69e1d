//! The kernel in plain loops, to check it by.

use super::spec::{GatedForm, GatedNormSpec};
use crate::activation::Activation;

/// One row in plain loops; `weight` is (head_dim).
pub fn twin_row(spec: &GatedNormSpec, input: &[f32], gate: &[f32], weight: &[f32]) -> Vec<f32> {
    let heads = input.chunks_exact(spec.head_dim).zip(gate.chunks_exact(spec.head_dim)).take(spec.heads);
    let normed = heads.flat_map(|(input, gate)| {
        let squares: f32 = input.iter().map(|x| x * x).sum();
        let scale = 1.0 / (squares / spec.head_dim as f32 + spec.eps.get()).sqrt();
        let of = move |((x, gate), weight): ((&f32, &f32), &f32)| match spec.form {
            GatedForm::Silu => x * scale * weight * Activation::Silu.apply(*gate),
            GatedForm::Sum => x * scale * weight + gate,
        };
        input.iter().zip(gate).zip(weight).map(of)
    });
    normed.collect()
}
