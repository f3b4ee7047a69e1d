//! What Gemma 4 has in a layer, as transformers' `modeling_gemma4` has it; inputs of layers are also Gemma 3n's.

use super::config::Experts;
use super::{Reference, activate, add};

impl Reference {
    /// (tokens, hidden) to (tokens, hidden): the MLP of `normed`, and experts of `stream`, each before a norm of its own.
    pub(super) fn mlp_beside_experts(
        &self,
        layer: usize,
        experts: &Experts,
        normed: &[f32],
        stream: &[f32],
    ) -> Vec<f32> {
        let block = format!("layers.{layer}");
        let norm = |name: &str, rows: &[f32]| self.norm(&format!("{block}.{name}.weight"), rows);
        let mut sum = norm("post_feedforward_layernorm_1", &self.dense_feed_forward(layer, normed));
        // The norm in front of the router has no weights; behind it comes a scale for each channel.
        let scale = &self.weights.get(&format!("{block}.router.scale")).values;
        let mut routed = stream.to_vec();
        for row in routed.chunks_exact_mut(scale.len()) {
            let mean_square = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
            let inverse = 1.0 / (mean_square + self.config.norm_epsilon).sqrt();
            let root = (row.len() as f32).sqrt();
            row.iter_mut().zip(scale).for_each(|(value, scale)| *value *= inverse * scale / root);
        }
        let input = norm("pre_feedforward_layernorm_2", stream);
        let mixed = self.mixture(&block, experts, &routed, &input);
        add(&mut sum, &norm("post_feedforward_layernorm_2", &mixed), 1.0);
        sum
    }

    /// (tokens, layers * width): an input of each layer for each token; `None`: the model has none.
    pub(super) fn layer_inputs(&self, tokens: &[i32], embedded: &[f32]) -> Option<Vec<f32>> {
        let table = self.weights.find("embed_tokens_per_layer.weight")?;
        let width = self.weights.get("per_layer_projection_norm.weight").shape[0];
        let mut projected = self.multiply("per_layer_model_projection.weight", embedded);
        let root = ((embedded.len() / tokens.len()) as f32).sqrt();
        projected.iter_mut().for_each(|value| *value /= root);
        let mut inputs = self.norm("per_layer_projection_norm.weight", &projected);
        for (row, &token) in inputs.chunks_exact_mut(table.shape[1]).zip(tokens) {
            // Gemma 3n may have more tokens than this table.
            let token = if (token as usize) < table.shape[0] { token as usize } else { 0 };
            let of_token = &table.values[token * table.shape[1]..];
            for (value, embedding) in row.iter_mut().zip(of_token) {
                *value = (*value + embedding * (width as f32).sqrt()) / 2f32.sqrt();
            }
        }
        Some(inputs)
    }

    /// (tokens, hidden): the stream's gate times the layer's input, projected, after a norm.
    pub(super) fn gated_input(&self, layer: usize, stream: &[f32], inputs: &[f32]) -> Vec<f32> {
        let name = |name: &str| format!("layers.{layer}.{name}.weight");
        let mut gate = self.multiply(&name("per_layer_input_gate"), stream);
        let width = self.weights.get(&name("per_layer_input_gate")).shape[0];
        let all = width * self.config.layers;
        for (gate, inputs) in gate.chunks_exact_mut(width).zip(inputs.chunks_exact(all)) {
            for (gate, input) in gate.iter_mut().zip(&inputs[layer * width..]) {
                *gate = activate(self.config.activation, *gate) * input;
            }
        }
        self.norm(&name("post_per_layer_input_norm"), &self.multiply(&name("per_layer_projection"), &gate))
    }
}
