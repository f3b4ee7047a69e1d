//! Earlier records of a model's config in artifacts of format version 8: without mixtures of experts, with them, and with all
//! fields except those that gpt-oss, Gemma 4, LFM2 or Gemma 4's experts need.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use unicorn_artifact::codec;

use super::config::{Activation, FolderLayout, LayerConfig, ModelConfig, QkNorm, RopeConfig};
use super::experts_config::ExpertsConfig;

/// Fields in their order, each as [`ModelConfig`] explains it.
#[derive(Deserialize)]
struct EarlierConfig<Layer, Norm, Experts> {
    architecture: String,
    hidden_size: usize,
    intermediate_size: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    max_positions: usize,
    layers: Vec<Layer>,
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
    qk_norm: Norm,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    fused_projections: bool,
    experts: Experts,
}

/// Without experts, and with a norm of heads or without.
type WithoutExperts = EarlierConfig<LayerWithoutExperts, bool, ()>;
type WithExperts = EarlierConfig<LayerWithExperts, QkNorm, Option<ExpertsConfig>>;

#[derive(Deserialize)]
struct LayerWithoutExperts {
    window: Option<usize>,
    rope: Option<usize>,
}

#[derive(Deserialize)]
struct LayerWithExperts {
    window: Option<usize>,
    rope: Option<usize>,
    has_experts: bool,
}

fn with_attention(window: Option<usize>, rope: Option<usize>, has_experts: bool) -> LayerConfig {
    LayerConfig { window, rope, has_experts, is_recurrent: false }
}

/// Number of fields at the end of [`ModelConfig`] that are missing in a record from before streams, heads that predict, groups of experts, images, latent attention, Gemma 4's inputs of layers, its shared
/// caches, its experts, LFM2, Gemma 4 and gpt-oss: each is a byte of 0 where a model does not have what it declares.
const LATER_FIELDS: [usize; 11] = [1, 2, 3, 4, 7, 8, 10, 11, 12, 15, 17];

/// Decodes an earlier record; `None`: the bytes are not one.
pub fn decode(bytes: &[u8]) -> Option<ModelConfig> {
    fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        codec::decode("config", bytes).ok()
    }
    let padded = |fields: usize| read([bytes, &vec![0; fields]].concat().as_slice());
    if let Some(config) = LATER_FIELDS.into_iter().find_map(padded) {
        return Some(config);
    }
    if let Some(earlier) = read::<WithExperts>(bytes) {
        let layer = |LayerWithExperts { window, rope, has_experts }| with_attention(window, rope, has_experts);
        return Some(earlier.today(layer, |qk_norm| qk_norm, |experts| experts));
    }
    let layer = |LayerWithoutExperts { window, rope }| with_attention(window, rope, false);
    let norm = |of_heads| if of_heads { QkNorm::Heads } else { QkNorm::None };
    Some(read::<WithoutExperts>(bytes)?.today(layer, norm, |()| None))
}

impl<Layer, Norm, Experts> EarlierConfig<Layer, Norm, Experts> {
    fn today(
        self,
        layer: impl Fn(Layer) -> LayerConfig,
        norm: impl Fn(Norm) -> QkNorm,
        experts: impl Fn(Experts) -> Option<ExpertsConfig>,
    ) -> ModelConfig {
        ModelConfig {
            architecture: self.architecture,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            max_positions: self.max_positions,
            layers: self.layers.into_iter().map(layer).collect(),
            ropes: self.ropes,
            rms_norm_eps: self.rms_norm_eps,
            norm_offset: self.norm_offset,
            activation: self.activation,
            tied_embeddings: self.tied_embeddings,
            embedding_scale: self.embedding_scale,
            query_scale: self.query_scale,
            query_growth: None,
            attention_softcap: self.attention_softcap,
            final_softcap: self.final_softcap,
            logits_scale: 1.0,
            pre_norms: true,
            post_norms: self.post_norms,
            qk_norm: norm(self.qk_norm),
            qkv_bias: self.qkv_bias,
            o_bias: self.o_bias,
            mlp_bias: self.mlp_bias,
            folder: if self.fused_projections { FolderLayout::Joined } else { FolderLayout::Separate },
            experts: experts(self.experts),
            delta: None,
            attention_gate: false,
            kept_codes: BTreeMap::new(),
            attention_sinks: false,
            expert_bias: false,
            full_heads: None,
            value_norm: false,
            layer_scalars: false,
            short_conv_taps: None,
            experts_beside_mlp: false,
            kv_shared_layers: 0,
            double_wide_mlp: false,
            per_layer_inputs: None,
            routing: None,
            shared_expert_ungated: false,
            latent: None,
            vision: None,
            expert_groups: None,
            predictor: false,
            streams: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::import::config_json::model_config;

    /// Fields that came with gpt-oss and what followed it are bytes at its end.
    #[test]
    fn a_record_from_before_a_family_has_none_of_its_fields() {
        let json = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_experts": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        });
        let config = model_config(Path::new("config.json"), &json).unwrap_or_else(|error| panic!("{error}"));
        let today = config.encode();
        for fields in LATER_FIELDS {
            let earlier = &today[..today.len() - fields];
            assert_eq!(decode(earlier).map(|found| found.encode()), Some(today.clone()));
            assert_eq!(ModelConfig::decode(earlier).map(|found| found.encode()), Ok(today.clone()));
        }
        // Bytes of another length are not a record of any version.
        for fields in (1..18).filter(|fields| !LATER_FIELDS.contains(fields)) {
            assert!(decode(&today[..today.len() - fields]).is_none(), "{fields} fields less");
        }
    }
}
