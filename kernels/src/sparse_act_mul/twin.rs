//! The kernel in plain loops, to check it by.

use super::spec::SparseActMulSpec;

/// One row of gate and up, each (width).
pub fn twin_row(spec: &SparseActMulSpec, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let gate = &gate[..spec.width];
    let mean = gate.iter().sum::<f32>() / spec.width as f32;
    let variance = gate.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / spec.width as f32;
    let cutoff = mean + spec.deviations.get() * variance.sqrt();
    gate.iter().zip(up).map(|(gate, up)| spec.activation.gated((gate - cutoff).max(0.0), *up)).collect()
}
