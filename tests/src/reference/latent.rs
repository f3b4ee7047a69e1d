//! Latent attention as transformers' `DeepseekV2Attention` has it: every head's keys and values are made of the latent vectors.

use super::config::Latent;
use super::{Reference, dot, rope, softmax, split_rows};

impl Reference {
    /// (tokens, hidden) to (tokens, hidden)
    pub(super) fn latent_attention(&self, layer: usize, input: &[f32]) -> Vec<f32> {
        let Latent { rank, nope_dim, rope_dim, value_dim } = self.config.latent.expect("latent attention");
        let heads = self.config.heads;
        let name = |name: &str| format!("layers.{layer}.self_attn.{name}.weight");
        let queries = match self.weights.find(&name("q_proj")) {
            Some(_) => self.multiply(&name("q_proj"), input),
            None => {
                let low = self.multiply(&name("q_a_proj"), input);
                self.multiply(&name("q_b_proj"), &self.norm(&name("q_a_layernorm"), &low))
            }
        };
        let (queries, mut rotated_queries) = split_rows(&queries, nope_dim, rope_dim);
        let latent = self.multiply(&name("kv_a_proj_with_mqa"), input);
        let (latent, mut rotated_keys) = split_rows(&latent, rank, rope_dim);
        let expanded = self.multiply(&name("kv_b_proj"), &self.norm(&name("kv_a_layernorm"), &latent));
        let (keys, values) = split_rows(&expanded, nope_dim, value_dim);
        let tokens = latent.len() / rank;
        let (angles, neighbours) = (self.config.full_rope.angles(tokens), self.config.rotated_pairs_are_neighbours);
        rope::rotate(&mut rotated_queries, &angles, heads, rope_dim, neighbours);
        rope::rotate(&mut rotated_keys, &angles, 1, rope_dim, neighbours);
        let mut mixed = vec![0.0; tokens * heads * value_dim];
        for position in 0..tokens {
            for head in 0..heads {
                let own = position * heads + head;
                let score = |seen: usize| {
                    let of_head = &keys[(seen * heads + head) * nope_dim..][..nope_dim];
                    let shared = &rotated_keys[seen * rope_dim..][..rope_dim];
                    let rotated = &rotated_queries[own * rope_dim..][..rope_dim];
                    (dot(&queries[own * nope_dim..][..nope_dim], of_head) + dot(rotated, shared))
                        * self.config.attention_scale
                };
                let mut scores: Vec<f32> = (0..=position).map(score).collect();
                softmax(&mut scores);
                let mixed = &mut mixed[own * value_dim..][..value_dim];
                for (seen, probability) in scores.into_iter().enumerate() {
                    for (sum, value) in mixed.iter_mut().zip(&values[(seen * heads + head) * value_dim..]) {
                        *sum += probability * value;
                    }
                }
            }
        }
        self.multiply(&name("o_proj"), &mixed)
    }
}
