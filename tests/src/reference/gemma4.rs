//! What Gemma 4 has in a layer that no other family has, as transformers' `modeling_gemma4` has it.

use super::config::Experts;
use super::{Reference, add};

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
}
