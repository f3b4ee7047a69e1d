//! The record of a model's config as artifacts of format version 8 kept it before mixtures of experts.

use serde::Deserialize;
use unicorn_artifact::codec;

use super::config::{Activation, LayerConfig, ModelConfig, QkNorm, RopeConfig};

/// Without `has_experts`.
#[derive(Deserialize)]
struct EarlierLayer {
    window: Option<usize>,
    rope: Option<usize>,
}

/// Fields in their order, each as [`ModelConfig`] explains it.
#[derive(Deserialize)]
struct EarlierConfig {
    architecture: String,
    hidden_size: usize,
    intermediate_size: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    max_positions: usize,
    layers: Vec<EarlierLayer>,
    ropes: Vec<RopeConfig>,
    rms_norm_eps: f32,
    norm_offset: f32,
    activation: Activation,
    tied_embeddings: bool,
    embedding_scale: f32,
    query_scale: f32,
    attention_softcap: Option<f32>,
    final_softcap: Option<f32>,
    post_norms: bool,
    qk_norm: bool,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    fused_projections: bool,
}

/// `None`: the bytes are no such record.
pub fn decode(bytes: &[u8]) -> Option<ModelConfig> {
    let earlier: EarlierConfig = codec::decode("config", bytes).ok()?;
    let layer = |layer: EarlierLayer| LayerConfig { window: layer.window, rope: layer.rope, has_experts: false };
    Some(ModelConfig {
        architecture: earlier.architecture,
        hidden_size: earlier.hidden_size,
        intermediate_size: earlier.intermediate_size,
        n_heads: earlier.n_heads,
        n_kv_heads: earlier.n_kv_heads,
        head_dim: earlier.head_dim,
        vocab_size: earlier.vocab_size,
        max_positions: earlier.max_positions,
        layers: earlier.layers.into_iter().map(layer).collect(),
        ropes: earlier.ropes,
        rms_norm_eps: earlier.rms_norm_eps,
        norm_offset: earlier.norm_offset,
        activation: earlier.activation,
        tied_embeddings: earlier.tied_embeddings,
        embedding_scale: earlier.embedding_scale,
        query_scale: earlier.query_scale,
        attention_softcap: earlier.attention_softcap,
        final_softcap: earlier.final_softcap,
        post_norms: earlier.post_norms,
        qk_norm: if earlier.qk_norm { QkNorm::Heads } else { QkNorm::None },
        qkv_bias: earlier.qkv_bias,
        o_bias: earlier.o_bias,
        mlp_bias: earlier.mlp_bias,
        fused_projections: earlier.fused_projections,
        experts: None,
    })
}
