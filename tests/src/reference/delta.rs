//! The gated delta net of Qwen3-Next and Qwen 3.5, token by token: "Gated Delta Networks" (Yang, Kautz and Hatamizadeh 2024), in the
//! details of transformers' `torch_recurrent_gated_delta_rule`.

use super::config::{Activation, Delta};
use super::{Reference, activate, dot, sigmoid, split_rows};

/// What the net takes from a token's hidden state, each (tokens, heads * width) or (tokens, value heads).
struct Projected {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    gate: Vec<f32>,
    strength: Vec<f32>,
    decay: Vec<f32>,
}

impl Reference {
    /// (tokens, hidden) to (tokens, hidden)
    pub(super) fn delta_net(&self, layer: usize, delta: &Delta, input: &[f32]) -> Vec<f32> {
        let &Delta { key_heads, value_heads, key_dim, value_dim } = delta;
        let block = format!("layers.{layer}.linear_attn");
        let vector = |name: &str| &self.weights.get(&format!("{block}.{name}")).values;
        let mut projected = self.project(&block, delta, input);
        // A filter for each channel, those of queries first, then of keys, then of values.
        let filters = vector("conv1d.weight");
        let taps = filters.len() / (2 * key_heads * key_dim + value_heads * value_dim);
        let (of_query, rest) = filters.split_at(key_heads * key_dim * taps);
        let (of_key, of_value) = rest.split_at(key_heads * key_dim * taps);
        convolve(&mut projected.query, of_query, taps);
        convolve(&mut projected.key, of_key, taps);
        convolve(&mut projected.value, of_value, taps);
        let Projected { query, key, value, gate, strength, decay } = projected;

        let tokens = value.len() / (value_heads * value_dim);
        let mut output = vec![0.0; value.len()];
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads);
            let (rate, bias) = (vector("A_log")[head].exp(), vector("dt_bias")[head]);
            let mut memory = vec![0.0; key_dim * value_dim];
            for token in 0..tokens {
                let of_key_head = (token * key_heads + key_head) * key_dim;
                let query = of_length_one(&query[of_key_head..][..key_dim]);
                let key = of_length_one(&key[of_key_head..][..key_dim]);
                let of_head = token * value_heads + head;
                let kept = (-rate * (decay[of_head] + bias).exp().ln_1p()).exp();
                memory.iter_mut().for_each(|cell| *cell *= kept);
                for column in 0..value_dim {
                    let recalled: f32 = (0..key_dim).map(|row| memory[row * value_dim + column] * key[row]).sum();
                    let change = sigmoid(strength[of_head]) * (value[of_head * value_dim + column] - recalled);
                    (0..key_dim).for_each(|row| memory[row * value_dim + column] += key[row] * change);
                    let read: f32 = (0..key_dim).map(|row| memory[row * value_dim + column] * query[row]).sum();
                    output[of_head * value_dim + column] = read / (key_dim as f32).sqrt();
                }
            }
        }

        let weight = vector("norm.weight");
        for (output, gate) in output.chunks_exact_mut(value_dim).zip(gate.chunks_exact(value_dim)) {
            let scale = 1.0 / (dot(output, output) / value_dim as f32 + self.config.norm_epsilon).sqrt();
            for ((value, gate), weight) in output.iter_mut().zip(gate).zip(weight) {
                *value *= scale * weight * activate(Activation::Silu, *gate);
            }
        }
        self.multiply(&format!("{block}.out_proj.weight"), &output)
    }

    fn project(&self, block: &str, delta: &Delta, input: &[f32]) -> Projected {
        let product = |name: &str| self.multiply(&format!("{block}.{name}.weight"), input);
        let (keys, values) = (delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim);
        if self.weights.find(&format!("{block}.in_proj_qkvz.weight")).is_none() {
            let (query, key_value) = split_rows(&product("in_proj_qkv"), keys, keys + values);
            let (key, value) = split_rows(&key_value, keys, values);
            let (gate, strength, decay) = (product("in_proj_z"), product("in_proj_b"), product("in_proj_a"));
            return Projected { query, key, value, gate, strength, decay };
        }
        // Qwen3-Next: query, key, values and gates of one key head, then of the next.
        let shared = delta.value_heads / delta.key_heads;
        let of_head = shared * delta.value_dim;
        let (query, rest) = split_rows(&product("in_proj_qkvz"), delta.key_dim, delta.key_dim + 2 * of_head);
        let (key, value_gate) = split_rows(&rest, delta.key_dim, 2 * of_head);
        let (value, gate) = split_rows(&value_gate, of_head, of_head);
        let (strength, decay) = split_rows(&product("in_proj_ba"), shared, shared);
        Projected { query, key, value, gate, strength, decay }
    }
}

/// Each channel with its filter over this token and those before, zeros before the first; then SiLU.
fn convolve(values: &mut [f32], filters: &[f32], taps: usize) {
    let channels = filters.len() / taps;
    let before = values.to_vec();
    for (index, value) in values.iter_mut().enumerate() {
        let (token, channel) = (index / channels, index % channels);
        let filter = &filters[channel * taps..][..taps];
        // The last tap is of the token itself.
        let seen = (0..taps.min(token + 1)).map(|back| filter[taps - 1 - back] * before[index - back * channels]);
        *value = activate(Activation::Silu, seen.sum());
    }
}

fn of_length_one(vector: &[f32]) -> Vec<f32> {
    let length = (dot(vector, vector) + 1e-6).sqrt();
    vector.iter().map(|value| value / length).collect()
}
