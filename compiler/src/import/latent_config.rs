//! Latent attention in a model's config.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits;

/// Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434) in its absorbed form: each token keeps one vector of `rank` elements,
/// from which every head's key and value follow by a matrix of the head, and `rope_dim` rotated elements that all heads' keys share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LatentConfig {
    /// Width of the vector that queries are made from, after a norm; `None`: they are made from the stream.
    pub(crate) query_rank: Option<usize>,
    /// Elements of a token's latent vector.
    pub(crate) rank: usize,
    /// Elements of a head's query and key that are not rotated.
    pub(crate) nope_dim: usize,
    /// Elements of a head's query, and of the key that heads share, that are rotated.
    pub(crate) rope_dim: usize,
    /// Elements of a head's value.
    pub(crate) value_dim: usize,
    /// Whether the elements of a rotary pair are adjacent in the source.
    pub(crate) interleaved: bool,
}

impl LatentConfig {
    /// Elements of what the cache has of a token: its latent vector, then the rotated elements that all heads' keys share.
    pub(crate) fn cached_dim(&self) -> usize {
        self.rank + self.rope_dim
    }

    /// Elements of a head's query before absorption.
    pub(crate) fn query_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }

    pub(super) fn check(&self) -> Result<(), String> {
        for (name, value, most) in [
            ("q_lora_rank", self.query_rank.unwrap_or(1), limits::HIDDEN_SIZE),
            ("kv_lora_rank", self.rank, limits::LATENT_RANK),
            ("qk_nope_head_dim", self.nope_dim, limits::HEAD_DIM),
            ("qk_rope_head_dim", self.rope_dim, limits::HEAD_DIM),
            ("v_head_dim", self.value_dim, limits::HEAD_DIM),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{name} is {value}, expected 1 to {most}"));
            }
        }
        if !self.rope_dim.is_multiple_of(2) {
            return Err(format!("qk_rope_head_dim is {}, expected an even number", self.rope_dim));
        }
        Ok(())
    }

    /// The tensors of layer `layer` in `ModelConfig::tensor_shapes`, with `n_heads` heads over a stream of `hidden` elements.
    pub(super) fn add_shapes(
        &self,
        layer: usize,
        hidden: usize,
        n_heads: usize,
        shapes: &mut BTreeMap<String, Vec<usize>>,
    ) {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.insert(format!("layers.{layer}.self_attn.{name}.weight"), shape.to_vec());
        };
        let queries = n_heads * self.query_dim();
        match self.query_rank {
            Some(rank) => {
                add("q_a_proj", &[rank, hidden]);
                add("q_a_layernorm", &[rank]);
                add("q_b_proj", &[queries, rank]);
            }
            None => add("q_proj", &[queries, hidden]),
        }
        add("kv_a_proj", &[self.rank, hidden]);
        add("kv_a_layernorm", &[self.rank]);
        add("k_rope_proj", &[self.rope_dim, hidden]);
        for head in 0..n_heads {
            add(&format!("k_b_proj.{head}"), &[self.rank, self.nope_dim]);
            add(&format!("v_b_proj.{head}"), &[self.value_dim, self.rank]);
        }
        add("o_proj", &[hidden, n_heads * self.value_dim]);
    }
}
