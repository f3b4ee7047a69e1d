//! The kernel in plain loops, to check it by.

use super::spec::{DeltaRuleSpec, NORM_EPS};

/// Operands of the twin.
pub struct DeltaRuleInputs<'a> {
    /// (rows, input_stride): q, k and v.
    pub input: &'a [f32],
    /// (rows, gate_stride)
    pub decay: &'a [f32],
    /// (rows, gate_stride)
    pub strength: &'a [f32],
    /// (heads)
    pub decay_rate: &'a [f32],
    /// (heads), added to `decay`.
    pub bias: &'a [f32],
}

/// The kernel for rows of one sequence. `states`, (heads, key dim, value dim), are those before the first row on entry, and those
/// after the last row on return.
pub fn twin(spec: &DeltaRuleSpec, inputs: &DeltaRuleInputs, states: &mut [f32], output: &mut [f32]) {
    let (heads, keys, values) = (spec.state.heads, spec.state.key_dim, spec.state.value_dim);
    for (row, x) in inputs.input.chunks_exact(spec.input_stride).enumerate() {
        for (head, state) in states.chunks_exact_mut(keys * values).enumerate() {
            let key_head = head / (heads / spec.key_heads);
            let query = unit(&x[key_head * keys..][..keys]);
            let key = unit(&x[(spec.key_heads + key_head) * keys..][..keys]);
            let value = &x[2 * spec.key_heads * keys + head * values..][..values];
            let gates = row * spec.gate_stride + head;
            let softplus = (inputs.decay[gates + spec.decay_first] + inputs.bias[head]).exp().ln_1p();
            let fading = (-inputs.decay_rate[head].exp() * softplus).exp();
            let strength = 1.0 / (1.0 + (-inputs.strength[gates + spec.strength_first]).exp());
            state.iter_mut().for_each(|s| *s *= fading);
            for (column, v) in value.iter().enumerate() {
                let recalled: f32 = key.iter().zip(state.iter().skip(column).step_by(values)).map(|(k, s)| k * s).sum();
                let correction = strength * (v - recalled);
                let cells = || (0..keys).map(|i| i * values + column);
                cells().zip(&key).for_each(|(cell, k)| state[cell] += k * correction);
                let result: f32 = cells().zip(&query).map(|(cell, q)| state[cell] * q).sum();
                output[row * spec.output_stride + head * values + column] = result / (keys as f32).sqrt();
            }
        }
    }
}

fn unit(vector: &[f32]) -> Vec<f32> {
    let squares: f32 = vector.iter().map(|x| x * x).sum();
    vector.iter().map(|x| x / (squares + NORM_EPS).sqrt()).collect()
}
