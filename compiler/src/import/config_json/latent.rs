//! The fields of latent attention.

use super::super::families::FamilyDefaults;
use super::super::json::Fields;
use super::super::latent_config::LatentConfig;
use super::super::limits;
use crate::error::{CompileError, Result};

/// The sizes of latent attention; `None`: heads have keys and values.
///
/// # Errors
/// When its projections have biases.
pub(super) fn latent(text: &Fields, defaults: &FamilyDefaults) -> Result<Option<LatentConfig>> {
    let Some(defaults) = &defaults.latent else { return Ok(None) };
    if text.flag("attention_bias")?.unwrap_or(false) {
        return Err(CompileError::Unsupported {
            what: "attention_bias true beside kv_lora_rank".to_owned(),
            detail: "latent attention without biases is compiled".to_owned(),
        });
    }
    let size = |name: &str, default: usize| Ok(text.size(name, limits::HIDDEN_SIZE)?.unwrap_or(default));
    let query_rank = match text.size("q_lora_rank", limits::HIDDEN_SIZE)? {
        Some(rank) => Some(rank),
        None if text.is_written("q_lora_rank") => None,
        None => defaults.query_rank,
    };
    Ok(Some(LatentConfig {
        query_rank,
        rank: size("kv_lora_rank", defaults.rank)?,
        nope_dim: size("qk_nope_head_dim", defaults.nope_dim)?,
        rope_dim: size("qk_rope_head_dim", defaults.rope_dim)?,
        value_dim: size("v_head_dim", defaults.value_dim)?,
        interleaved: text.flag("rope_interleave")?.unwrap_or(true),
    }))
}

/// Factor of q·k: one over the root of a head's query, times the square of YaRN's `mscale_all_dim` at the factor by which the context is
/// stretched (DeepSeek-V2's `softmax_scale`).
pub(super) fn query_scale(text: &Fields, latent: &LatentConfig) -> Result<f64> {
    let plain = 1.0 / (latent.query_dim() as f64).sqrt();
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(section) = text.object(name)? else { continue };
        let is_stretched = match section.text("rope_type")? {
            Some(kind) => kind != "default",
            None => section.text("type")?.is_some_and(|kind| kind != "default"),
        };
        let (mscale, factor) = (section.number("mscale_all_dim")?.unwrap_or(0.0), section.number("factor")?);
        if let Some(factor) = factor.filter(|factor| is_stretched && mscale != 0.0 && *factor > 1.0) {
            let stretched = 0.1 * mscale * factor.ln() + 1.0;
            return Ok(plain * stretched * stretched);
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};
    use unicorn_kernels::route::ExpertGroups;

    use super::super::model_config;
    use crate::import::ModelConfig;

    /// As published, but for two layers.
    fn deepseek_v2_lite() -> Value {
        json!({
            "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 10944, "vocab_size": 102400,
            "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 16, "first_k_dense_replace": 1,
            "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
            "norm_topk_prob": false, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_method": "greedy",
            "n_group": 1, "topk_group": 1, "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": {
                "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
                "mscale": 0.707, "mscale_all_dim": 0.707
            },
        })
    }

    fn read(config: &Value) -> Result<ModelConfig, String> {
        model_config(Path::new("config.json"), config).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_keeps_one_vector_for_all_heads() {
        let config = read(&deepseek_v2_lite()).unwrap();
        assert_eq!((config.n_heads, config.n_kv_heads, config.head_dim), (16, 1, 576));
        assert_eq!(config.ropes[0].rotary_dim(), 64);
        // The model's `softmax_scale`: 192^-0.5 times the square of 0.1 * 0.707 * ln 40 + 1.
        assert!((config.query_scale - 0.114_721_39).abs() < 1e-7, "{}", config.query_scale);
        assert!((config.ropes[0].attention_factor - 1.0).abs() < 1e-12);
        let shapes = config.tensor_shapes();
        assert_eq!(shapes["layers.0.self_attn.k_b_proj.15.weight"], [512, 128]);
        assert_eq!(shapes["layers.0.self_attn.v_b_proj.15.weight"], [128, 512]);
        assert_eq!(shapes["layers.1.mlp.shared_expert.up_proj.weight"], [2816, 2048]);
        assert!(
            shapes.contains_key("layers.0.mlp.up_proj.weight") && !shapes.contains_key("layers.1.mlp.up_proj.weight")
        );
        assert!(!shapes.contains_key("layers.1.mlp.shared_expert_gate.weight"));
    }

    #[test]
    fn queries_may_be_made_of_a_vector_of_low_rank() {
        let mut config = deepseek_v2_lite();
        config["q_lora_rank"] = json!(1536);
        assert_eq!(read(&config).unwrap().tensor_shapes()["layers.0.self_attn.q_b_proj.weight"], [3072, 1536]);
        // The default of the class is not that of a null.
        config.as_object_mut().unwrap().remove("q_lora_rank");
        assert_eq!(read(&config).unwrap().latent.and_then(|latent| latent.query_rank), Some(1536));
    }

    #[test]
    fn what_is_not_compiled_is_named() {
        for (field, value, expected) in [
            ("attention_bias", json!(true), "attention_bias true beside kv_lora_rank"),
            ("kv_lora_rank", json!(1024), "kv_lora_rank is 1024, expected 1 to 512"),
            ("qk_rope_head_dim", json!(63), "expected an even number"),
            ("num_experts_per_tok", json!(null), "num_experts_per_tok is missing"),
            ("mlp_layer_types", json!(["dense", "odd"]), "has \"odd\", expected sparse or dense"),
            ("routed_scaling_factor", json!(-1), "routed_scaling_factor is -1, expected a finite number above 0"),
        ] {
            let mut config = deepseek_v2_lite();
            config[field] = value;
            let message = read(&config).expect_err(field);
            assert!(message.contains(expected), "{field}: {message}");
        }
        let mut config = deepseek_v2_lite();
        (config["topk_method"], config["n_group"]) = (json!("group_limited_greedy"), json!(8));
        let groups = |config: &Value| read(config).unwrap_or_else(|error| panic!("{error}")).expert_groups;
        assert_eq!(groups(&config), Some(ExpertGroups { count: 8, kept: 1, best_of: 1 }));
        // Groups that are all kept do not matter, and `greedy` ignores them.
        config["topk_group"] = json!(8);
        assert_eq!(groups(&config), None);
        (config["topk_group"], config["topk_method"]) = (json!(1), json!("greedy"));
        assert_eq!(groups(&config), None);
    }

    #[test]
    fn groups_of_experts_are_those_of_the_config() {
        let mut config = deepseek_v2_lite();
        (config["architectures"], config["model_type"]) = (json!(["DeepseekV3ForCausalLM"]), json!("deepseek_v3"));
        (config["n_group"], config["topk_group"]) = (json!(null), json!(null));
        let groups = |config: &Value| read(config).map(|config| config.expert_groups);
        // As transformers assumes.
        assert_eq!(groups(&config), Ok(Some(ExpertGroups { count: 8, kept: 4, best_of: 2 })));
        (config["n_group"], config["topk_group"]) = (json!(4), json!(1));
        assert_eq!(groups(&config), Ok(Some(ExpertGroups { count: 4, kept: 1, best_of: 2 })));
        for (count, kept, expected) in [
            (7, 1, "n_group is 7, expected groups of 2 or more of the 64 experts"),
            (64, 8, "n_group is 64, expected groups of 2 or more of the 64 experts"),
            (32, 2, "topk_group is 2 of 32 groups of 2 experts, expected as many as hold the 6 of a token"),
        ] {
            (config["n_group"], config["topk_group"]) = (json!(count), json!(kept));
            let message = groups(&config).expect_err("such groups");
            assert!(message.contains(expected), "{message}");
        }
    }
}
