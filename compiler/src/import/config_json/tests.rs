//! config.json as each family writes it, in both dialects, and what is refused.

use serde_json::json;

use super::*;
use crate::import::config::FolderLayout;
use crate::import::config::{QkNorm, QueryGrowth};

fn read(config: &Value) -> Result<ModelConfig> {
    model_config(Path::new("config.json"), config)
}

fn ok(config: Value) -> ModelConfig {
    read(&config).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(config: Value) -> String {
    read(&config).expect_err("this config is refused").to_string()
}

/// `base` with fields replaced; a field that is `null` in `changes` is written as `null`.
fn with(mut base: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { panic!("changes are an object") };
    base.as_object_mut().unwrap().extend(changes);
    base
}

fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.window).collect()
}

fn ropes(config: &ModelConfig) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.rope).collect()
}

fn small(architecture: &str) -> Value {
    json!({
        "architectures": [architecture], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
    })
}

#[test]
fn layers_with_experts_are_those_of_the_step_but_for_the_listed() {
    let sizes = json!({ "num_hidden_layers": 6, "num_experts": 8, "moe_intermediate_size": 24 });
    let with_experts = |changes: Value| -> Vec<bool> {
        let config = ok(with(with(small("Qwen3MoeForCausalLM"), sizes.clone()), changes));
        config.layers.iter().map(|layer| layer.has_experts).collect()
    };
    assert_eq!(with_experts(json!({})), [true; 6]);
    let some = json!({ "decoder_sparse_step": 2, "mlp_only_layers": [3] });
    assert_eq!(with_experts(some), [false, true, false, false, false, true]);
    let more = with(small("Qwen3MoeForCausalLM"), json!({ "num_experts": 4, "num_experts_per_tok": 5 }));
    assert!(refusal(more).contains("number of experts of a token is 5, expected 1 to 4"));
    let clipped = refusal(with(small("OlmoeForCausalLM"), json!({ "clip_qkv": 8.0 })));
    assert!(clipped.contains("clip_qkv"), "{clipped}");
}

/// The second frequency of a rotary embedding shows its base: `base^(-2/dim)`.
fn theta(config: &ModelConfig, rope: usize) -> f64 {
    let rope = &config.ropes[rope];
    rope.inv_freq[1].powf(-(rope.rotary_dim() as f64) / 2.0).round()
}

#[test]
fn llama_3_2_1b_reads_the_same_in_both_dialects() {
    let sizes = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "vocab_size": 128256,
    });
    let scaling = json!({ "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3" });
    let v4 =
        ok(with(sizes.clone(), json!({ "rope_theta": 500000.0, "rope_scaling": scaling, "torch_dtype": "bfloat16" })));
    let v5 = ok(with(
        sizes,
        json!({ "rope_parameters": with(scaling, json!({ "rope_theta": 500000.0 })), "dtype": "bfloat16" }),
    ));
    assert_eq!(v4.ropes, v5.ropes);
    assert_eq!((v4.n_heads, v4.n_kv_heads, v4.head_dim), (32, 8, 64));
    assert_eq!((v4.query_scale, v4.norm_offset, v4.embedding_scale), (0.125, 0.0, 1.0));
    assert!(v4.tied_embeddings && !v4.qkv_bias && !v4.o_bias && !v4.mlp_bias && !v4.post_norms);
    assert_eq!(v4.qk_norm, QkNorm::None);
    assert_eq!(theta(&v4, 0), 500000.0);
}

#[test]
fn an_almost_empty_llama_takes_the_defaults() {
    let config = ok(json!({ "model_type": "llama" }));
    assert_eq!((config.hidden_size, config.intermediate_size, config.layers.len()), (4096, 11008, 32));
    assert_eq!((config.n_kv_heads, config.head_dim, config.max_positions), (32, 128, 2048));
    assert_eq!((config.rms_norm_eps, config.tied_embeddings), (1e-6, false));
    assert_eq!(theta(&config, 0), 10000.0);
}

#[test]
fn llama_biases_are_as_configured() {
    let config = ok(with(small("LlamaForCausalLM"), json!({ "attention_bias": true, "mlp_bias": true })));
    assert!(config.qkv_bias && config.o_bias && config.mlp_bias);
}

#[test]
fn mistral_slides_everywhere_unless_its_window_is_null() {
    assert_eq!(windows(&ok(small("MistralForCausalLM"))), [Some(4096); 3]);
    assert_eq!(windows(&ok(with(small("MistralForCausalLM"), json!({ "sliding_window": null })))), [None; 3]);
    let config = ok(with(small("MistralForCausalLM"), json!({ "sliding_window": 16, "head_dim": 32 })));
    assert_eq!((windows(&config), config.head_dim), (vec![Some(16); 3], 32));
}

#[test]
fn qwen2_slides_only_when_asked() {
    let qwen2 = small("Qwen2ForCausalLM");
    let config = ok(with(qwen2.clone(), json!({ "sliding_window": 32, "max_window_layers": 1 })));
    assert_eq!(windows(&config), [None; 3]);
    assert!(config.qkv_bias && !config.o_bias);
    let requested = with(qwen2, json!({ "use_sliding_window": true, "sliding_window": 32, "max_window_layers": 1 }));
    assert_eq!(windows(&ok(requested.clone())), [None, Some(32), Some(32)]);
    let typed = json!({ "layer_types": ["sliding_attention", "full_attention", "full_attention"] });
    assert_eq!(windows(&ok(with(requested, typed))), [Some(32), None, None]);
}

/// As transformers' classes have it, in which the mixtures differ from the dense models and from each other.
#[test]
fn asked_windows_of_mixtures_are_in_other_layers() {
    let asked = json!({ "use_sliding_window": true, "sliding_window": 32, "max_window_layers": 2,
        "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2 });
    let qwen2 = with(small("Qwen2MoeForCausalLM"), asked.clone());
    assert_eq!(windows(&ok(qwen2.clone())), [Some(32), None, None, None]);
    let typed = json!({ "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"] });
    assert_eq!(windows(&ok(with(qwen2, typed.clone()))), [None, None, Some(32), None]);
    let qwen3 = with(small("Qwen3MoeForCausalLM"), asked);
    assert_eq!(windows(&ok(with(qwen3.clone(), typed))), [Some(32); 4]);
    assert_eq!(windows(&ok(with(qwen3, json!({ "use_sliding_window": false })))), [None; 4]);
}

#[test]
fn biases_of_qwen2_s_mixture_can_be_absent() {
    let qwen2 = with(small("Qwen2MoeForCausalLM"), json!({ "num_experts": 4 }));
    assert!(ok(qwen2.clone()).qkv_bias && !ok(with(qwen2, json!({ "qkv_bias": false }))).qkv_bias);
    assert!(ok(with(small("Qwen2ForCausalLM"), json!({ "qkv_bias": false }))).qkv_bias);
}

#[test]
fn the_number_of_experts_has_two_names() {
    for architecture in ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM"] {
        for name in ["num_experts", "num_local_experts"] {
            let config = ok(with(small(architecture), json!({ (name): 7, "num_experts_per_tok": 2 })));
            assert_eq!(config.experts.expect("experts").count, 7, "{architecture}");
        }
    }
}

#[test]
fn qwen3_heads_have_128_dimensions_and_a_norm() {
    let config = ok(with(small("Qwen3ForCausalLM"), json!({ "rope_theta": 1000000 })));
    assert_eq!((config.head_dim, config.qk_norm, config.qkv_bias), (128, QkNorm::Heads, false));
    assert_eq!(theta(&config, 0), 1000000.0);
}

#[test]
fn yarn_stretches_the_context_that_the_config_forgot_to() {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512 });
    let config = ok(with(small("Qwen3ForCausalLM"), json!({ "rope_scaling": yarn })));
    assert_eq!(config.max_positions, 2048);
    assert!((config.ropes[0].attention_factor - 1.138629436111989).abs() < 1e-12);
}

#[test]
fn gemma2_alternates_from_a_sliding_layer_and_caps() {
    let config = ok(with(small("Gemma2ForCausalLM"), json!({ "query_pre_attn_scalar": 64, "hidden_act": "gelu" })));
    assert_eq!(windows(&config), [Some(4096), None, Some(4096)]);
    assert_eq!((config.attention_softcap, config.final_softcap), (Some(50.0), Some(30.0)));
    assert_eq!((config.query_scale, config.embedding_scale, config.norm_offset), (0.125, 8.0, 1.0));
    assert_eq!((config.activation, config.head_dim), (Activation::GeluTanh, 256));
    assert!(config.tied_embeddings && config.post_norms && config.qk_norm == QkNorm::None);
    assert_eq!(config.ropes.len(), 1);
    let uncapped = json!({ "attn_logit_softcapping": null, "final_logit_softcapping": null });
    let config = ok(with(small("Gemma2ForCausalLM"), uncapped));
    assert_eq!((config.attention_softcap, config.final_softcap), (None, None));
}

/// config.json of google/gemma-3-4b-it as published, less its vision part.
fn gemma_3_4b() -> Value {
    json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": { "factor": 8.0, "rope_type": "linear" },
            "sliding_window": 1024
        },
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false
        }
    })
}

#[test]
fn gemma_3_4b_reads_from_its_sparse_config() {
    let config = ok(gemma_3_4b());
    assert_eq!((config.hidden_size, config.n_heads, config.n_kv_heads, config.head_dim), (2560, 8, 4, 256));
    assert_eq!((config.vocab_size, config.max_positions), (262208, 131072));
    assert!(config.tied_embeddings && config.qk_norm == QkNorm::Heads && config.post_norms);
    assert_eq!((config.attention_softcap, config.final_softcap, config.query_scale), (None, None, 1.0 / 16.0));
    let full: Vec<usize> = (0..34).filter(|layer| config.layers[*layer].window.is_none()).collect();
    assert_eq!(full, [5, 11, 17, 23, 29]);
    assert_eq!(config.layers[0].window, Some(1024));
    // Sliding layers have a base of their own and no scaling.
    assert_eq!((config.layers[0].rope, config.layers[5].rope), (Some(0), Some(1)));
    assert_eq!((config.ropes[0].inv_freq[0], theta(&config, 0)), (1.0, 10000.0));
    assert_eq!(config.ropes[1].inv_freq[0], 0.125);
    assert_eq!(stop_ids(Path::new("config.json"), &gemma_3_4b()).unwrap(), Some(vec![1, 106]));
}

#[test]
fn gemma3_text_reads_the_same_in_both_dialects() {
    let gemma3 = with(small("Gemma3ForCausalLM"), json!({ "sliding_window": 16, "head_dim": 32 }));
    let v4 = json!({ "sliding_window_pattern": 3, "rope_theta": 500000.0, "rope_local_base_freq": 5000.0,
        "rope_scaling": { "type": "linear", "factor": 4.0 } });
    let v5 = json!({
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": { "rope_theta": 500000.0, "rope_type": "linear", "factor": 4.0 },
            "sliding_attention": { "rope_theta": 5000.0, "rope_type": "default" }
        }
    });
    let (v4, v5) = (ok(with(gemma3.clone(), v4)), ok(with(gemma3, v5)));
    assert_eq!((&v4.ropes, &v4.layers), (&v5.ropes, &v5.layers));
    assert_eq!((windows(&v4), ropes(&v4)), (vec![Some(16), Some(16), None], vec![Some(0), Some(0), Some(1)]));
    assert_eq!(theta(&v4, 0), 5000.0);
}

#[test]
fn phi3_rotates_a_part_of_the_head_with_two_sets_of_factors() {
    let phi3 = with(
        small("Phi3ForCausalLM"),
        json!({ "partial_rotary_factor": 0.75, "rope_scaling": {
        "type": "su", "short_factor": [1, 1, 1, 1, 1, 1], "long_factor": [1, 2, 3, 4, 5, 6] },
        "original_max_position_embeddings": 64 }),
    );
    let config = ok(phi3.clone());
    assert_eq!((config.head_dim, config.ropes[0].rotary_dim(), config.rms_norm_eps), (16, 12, 1e-5));
    let long = config.ropes[0].long.as_ref().unwrap();
    assert_eq!((long.above_tokens, long.inv_freq[1] * 2.0), (64, config.ropes[0].inv_freq[1]));
    // sqrt(1 + ln(512 / 64) / ln(64))
    assert!((config.ropes[0].attention_factor - 1.5f64.sqrt()).abs() < 1e-12);
    assert_eq!(windows(&config), [None; 3]);
    assert_eq!(windows(&ok(with(phi3.clone(), json!({ "sliding_window": 8 })))), [Some(8); 3]);

    let v5 = json!({ "partial_rotary_factor": null, "rope_scaling": null, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "short_factor": [1, 1, 1, 1, 1, 1], "long_factor": [1, 2, 3, 4, 5, 6] } });
    assert_eq!(ok(with(phi3.clone(), v5)).ropes, config.ropes);
    let message = refusal(with(phi3, json!({ "partial_rotary_factor": 1.0 })));
    assert!(message.contains("rope_scaling.short_factor has 6 numbers, expected 8"), "{message}");
}

#[test]
fn smollm3_rotates_three_layers_of_four() {
    let smollm3 = with(small("SmolLM3ForCausalLM"), json!({ "num_hidden_layers": 4 }));
    let config = ok(smollm3.clone());
    assert_eq!((ropes(&config), config.ropes.len()), (vec![Some(0), Some(0), Some(0), None], 1));
    assert!(config.tied_embeddings && windows(&config) == [None; 4]);
    let written = ok(with(smollm3.clone(), json!({ "no_rope_layers": [0, 1, 0, 1] })));
    assert_eq!(ropes(&written), [None, Some(0), None, Some(0)]);
    let windowed = json!({ "use_sliding_window": true, "sliding_window": 16 });
    assert_eq!(windows(&ok(with(smollm3.clone(), windowed))), [None, None, None, Some(16)]);
    let nowhere = ok(with(smollm3.clone(), json!({ "no_rope_layers": [0, 0, 0, 0] })));
    assert_eq!((ropes(&nowhere), nowhere.ropes.len()), (vec![None; 4], 0));
    let message = refusal(with(smollm3, json!({ "no_rope_layers": [1] })));
    assert!(message.contains("no_rope_layers has 1 entries, expected num_hidden_layers, 4"), "{message}");
}

#[test]
fn olmo_norms_what_blocks_return_and_scales_no_windows() {
    let olmo2 = ok(small("Olmo2ForCausalLM"));
    assert_eq!((olmo2.pre_norms, olmo2.post_norms, olmo2.qk_norm), (false, true, QkNorm::Projection));
    assert_eq!((windows(&olmo2), olmo2.rms_norm_eps), (vec![None; 3], 1e-5));
    let shapes = olmo2.tensor_shapes();
    assert!(!shapes.contains_key("layers.0.input_layernorm.weight"));
    assert!(!shapes.contains_key("layers.0.pre_feedforward_layernorm.weight"));
    assert_eq!(shapes["layers.0.self_attn.q_norm.weight"], [64]);

    let olmo3 = with(
        small("Olmo3ForCausalLM"),
        json!({ "num_hidden_layers": 4, "sliding_window": 16, "rope_theta": 500000.0, "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512 } }),
    );
    let config = ok(olmo3.clone());
    assert_eq!(windows(&config), [Some(16), Some(16), Some(16), None]);
    assert_eq!((ropes(&config), config.ropes[0].attention_factor), (vec![Some(0), Some(0), Some(0), Some(1)], 1.0));
    assert!((config.ropes[1].attention_factor - 1.2079441541679836).abs() < 1e-12);
    assert_eq!((theta(&config, 0), config.max_positions), (500000.0, 4096));
    let flat = json!({ "rope_scaling": null, "rope_theta": null,
        "rope_parameters": { "rope_type": "default", "rope_theta": 10000.0 } });
    let config = ok(with(olmo3.clone(), flat));
    assert_eq!((config.ropes.len(), theta(&config, 0)), (1, 500000.0));
    let nested = json!({ "rope_scaling": null, "rope_theta": null, "rope_parameters": {
        "full_attention": { "rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 5000.0 } } });
    let config = ok(with(olmo3.clone(), nested));
    assert_eq!((theta(&config, 0), config.ropes[1].inv_freq[0]), (5000.0, 0.5));
    let scaled = json!({ "rope_scaling": null, "rope_parameters": { "rope_type": "linear", "factor": 2.0 } });
    let message = refusal(with(olmo3.clone(), scaled));
    assert!(message.contains("for all layer types, with rope_type linear is not supported"), "{message}");
    let biased = ok(with(olmo3, json!({ "attention_bias": true, "mlp_bias": true })));
    assert!(biased.qkv_bias && biased.o_bias && !biased.mlp_bias);
}

#[test]
fn granite_multiplies_embedding_residual_scores_and_logits() {
    let granite = with(
        small("GraniteForCausalLM"),
        json!({ "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.015625,
            "logits_scaling": 8.0, "rms_norm_eps": 1e-5 }),
    );
    let config = ok(granite.clone());
    // The stream is stored divided by the residual's multiplier.
    assert_eq!((config.embedding_scale, config.rms_norm_eps), (48.0, 1.6e-4));
    assert_eq!((config.query_scale, config.logits_scale), (0.015625, 0.125));
    let plain = ok(small("GraniteForCausalLM"));
    assert_eq!((plain.embedding_scale, plain.query_scale, plain.logits_scale), (1.0, 1.0, 1.0));
    let message = refusal(with(granite, json!({ "residual_multiplier": 0 })));
    assert!(message.contains("residual_multiplier is 0, expected a finite number above 0"), "{message}");
}

#[test]
fn granite_4_is_read_where_it_is_dense() {
    let granite = with(
        small("GraniteMoeHybridForCausalLM"),
        json!({ "num_local_experts": 0, "layer_types": ["attention", "attention", "attention"],
            "shared_intermediate_size": 40, "position_embedding_type": "rope" }),
    );
    let config = ok(granite.clone());
    assert_eq!(
        (config.intermediate_size, config.folder, ropes(&config)),
        (40, FolderLayout::Granite4, vec![Some(0); 3])
    );
    let unrotated = ok(with(granite.clone(), json!({ "position_embedding_type": "nope" })));
    assert_eq!(ropes(&unrotated), [None; 3]);
    for (changes, expected) in [
        (json!({ "layer_types": ["mamba", "attention", "mamba"] }), "layer type mamba is not supported"),
        (json!({ "layer_types": null }), "layers of Mamba in GraniteMoeHybridForCausalLM is not supported"),
        (json!({ "num_local_experts": 4 }), "num_local_experts 4 of GraniteMoeHybridForCausalLM is not supported"),
        (json!({ "position_embedding_type": "learned" }), "position_embedding_type learned is not supported"),
    ] {
        let message = refusal(with(granite.clone(), changes));
        assert!(message.contains(expected), "{message}");
    }
}

/// LFM2-1.2B's config.json as published, and as transformers 5 writes it.
#[test]
fn lfm2_convolves_in_the_layers_without_attention() {
    let published = json!({
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": true, "block_ff_dim": 12288,
        "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "conv_L_cache": 3, "conv_bias": false,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "max_position_embeddings": 128_000, "model_type": "lfm2",
        "norm_eps": 1e-5, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "rope_theta": 1_000_000.0, "tie_embedding": true, "vocab_size": 65_536,
    });
    let config = ok(published.clone());
    assert_eq!((config.intermediate_size, config.short_conv_taps, config.tied_embeddings), (8192, Some(3), true));
    assert_eq!((config.rms_norm_eps, config.conv_channels(), config.attention_gate), (1e-5, 2048, false));
    let recurrent = |config: &ModelConfig| -> Vec<usize> {
        (0..config.layers.len()).filter(|&layer| config.layers[layer].is_recurrent).collect()
    };
    assert_eq!(recurrent(&config), [0, 1, 3, 4, 6, 7, 9, 11, 13, 15]);
    assert_eq!((ropes(&config)[0], ropes(&config)[2]), (None, Some(0)));
    let types =
        json!({ "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "full_attn_idxs": null });
    assert_eq!(recurrent(&ok(with(published.clone(), types))), [0, 2]);

    let size = |changes: Value| ok(with(published.clone(), changes)).intermediate_size;
    assert_eq!(size(json!({ "block_ffn_dim_multiplier": 1.3 })), 10_752, "10,649 rounded up to a multiple of 256");
    assert_eq!(size(json!({ "block_ffn_dim_multiplier": null })), 8192);
    assert_eq!(size(json!({ "block_auto_adjust_ff_dim": false })), 12_288);

    assert!(refusal(with(published.clone(), json!({ "conv_bias": true }))).contains("conv_bias true"));
    assert!(
        refusal(with(published.clone(), json!({ "conv_L_cache": 1 }))).contains("conv_L_cache is 1, expected 2 to")
    );
    let types = json!({ "num_hidden_layers": 1, "layer_types": ["linear_attention"] });
    assert!(refusal(with(published, types)).contains("have attention or conv"));
    let types = json!({ "layer_types": ["conv", "full_attention", "conv"] });
    assert!(refusal(with(small("LlamaForCausalLM"), types)).contains("layer type conv"));
}

#[test]
fn glm_4_rotates_half_a_head_in_neighbours() {
    let config = ok(with(small("Glm4ForCausalLM"), json!({ "head_dim": 32 })));
    assert_eq!((config.head_dim, config.ropes[0].rotary_dim()), (32, 16));
    assert!(config.qkv_bias && !config.o_bias && config.pre_norms && config.post_norms);
    assert_eq!((config.folder, config.rms_norm_eps), (FolderLayout::Glm4, 1.5625e-7));
    let v5 = json!({ "head_dim": 32, "attention_bias": false, "rope_parameters": {
        "rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25 } });
    let config = ok(with(small("Glm4ForCausalLM"), v5));
    assert_eq!((config.ropes[0].rotary_dim(), theta(&config, 0), config.qkv_bias), (8, 5000.0, false));
    let before = ok(with(small("GlmForCausalLM"), json!({ "head_dim": 32 })));
    assert_eq!((before.folder, before.ropes[0].rotary_dim(), before.post_norms), (FolderLayout::Glm, 16, false));
}

#[test]
fn mistral_3_has_one_of_three_text_models() {
    let text = |model_type: &str, changes| {
        let mut text = with(small("MistralForCausalLM"), json!({ "model_type": model_type, "head_dim": 16 }));
        text.as_object_mut().expect("an object").remove("architectures");
        json!({ "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
            "text_config": with(text, changes) })
    };
    let mistral = text("mistral", json!({ "sliding_window": null }));
    let config = ok(mistral.clone());
    assert_eq!((config.architecture.as_str(), windows(&config)), ("Mistral3ForConditionalGeneration", vec![None; 3]));
    let alone = text_config(Path::new("config.json"), &mistral, &config).unwrap();
    assert_eq!(alone["architectures"], json!(["MistralForCausalLM"]));

    let sliding =
        json!({ "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention", "full_attention"] });
    assert_eq!(windows(&ok(text("ministral", sliding))), [None, Some(8), None]);

    let rope = json!({ "rope_parameters": { "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
        "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1 } });
    let ministral3 = text("ministral3", rope);
    let config = ok(ministral3.clone());
    assert_eq!(config.query_growth, Some(QueryGrowth { beta: 0.1, interval: 32 }));
    assert_eq!((config.ropes[0].attention_factor, config.rms_norm_eps), (1.0, 1e-5));
    let alone = text_config(Path::new("config.json"), &ministral3, &config).unwrap();
    assert_eq!(alone["architectures"], json!(["Ministral3ForCausalLM"]));

    let message = refusal(text("ministral3", json!({})));
    assert!(message.contains("rope_parameters is missing, expected an object"), "{message}");
    let message = refusal(text("mistral4", json!({})));
    assert!(message.contains("text_config of model_type mistral4 is not supported"), "{message}");
}

#[test]
fn what_we_do_not_do_is_refused_by_name() {
    let llama = |changes| refusal(with(small("LlamaForCausalLM"), changes));
    for (changes, expected) in [
        (
            json!({ "architectures": ["MambaForCausalLM"] }),
            "architecture MambaForCausalLM is not supported; supported are:\n  LlamaForCausalLM, Mistral",
        ),
        (json!({ "architectures": [] }), "config.json: architectures is missing, expected a list of one name"),
        (
            json!({ "quantization_config": { "quant_method": "bitsandbytes" } }),
            "quantization_config (method bitsandbytes) is not supported",
        ),
        (json!({ "hidden_act": "gelu" }), "hidden_act gelu is not supported: supported are silu and gelu_pytorch_tanh"),
        (
            json!({ "layer_types": ["chunked_attention", "full_attention", "full_attention"] }),
            "layer type chunked_attention is not supported",
        ),
        (json!({ "layer_types": ["full_attention"] }), "layer_types has 1 entries, expected num_hidden_layers, 3"),
        (json!({ "use_bidirectional_attention": true }), "use_bidirectional_attention is not supported"),
        (json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor 0.5 is not supported"),
        (
            json!({ "rope_scaling": { "rope_type": "proportional" } }),
            "rope_type proportional of LlamaForCausalLM is not supported",
        ),
        (json!({ "rope_scaling": { "type": "linear" } }), "rope_scaling.factor is missing, expected a number"),
    ] {
        let message = llama(changes);
        assert!(message.contains(expected), "{message}\nhas not: {expected}");
    }
}

#[test]
fn sizes_that_make_no_model_are_refused() {
    let llama = |changes| refusal(with(small("LlamaForCausalLM"), changes));
    for (changes, expected) in [
        (
            json!({ "hidden_size": 1u64 << 60 }),
            "hidden_size is 1152921504606846976, expected an integer from 1 to 1048576",
        ),
        (json!({ "num_hidden_layers": u64::MAX }), "num_hidden_layers is 18446744073709551615"),
        (json!({ "num_attention_heads": 0 }), "num_attention_heads is 0, expected an integer from 1"),
        (json!({ "vocab_size": -1 }), "vocab_size is -1"),
        (json!({ "vocab_size": "many" }), "vocab_size is \"many\""),
        (json!({ "hidden_size": 66 }), "hidden_size is 66, expected a multiple of num_attention_heads, 4"),
        (json!({ "head_dim": 15 }), "head_dim is 15, expected an even number"),
        (
            json!({ "num_key_value_heads": 3 }),
            "num_attention_heads is 4, expected a multiple of num_key_value_heads, 3",
        ),
        (json!({ "rms_norm_eps": 0 }), "rms_norm_eps is 0, expected a finite number above 0"),
        (json!({ "rope_theta": 0 }), "rotary frequency is inf"),
        (json!({ "rope_theta": -5.5 }), "rotary frequency is NaN"),
        (json!({ "rope_scaling": { "type": "linear", "factor": 0 } }), "rotary frequency is inf"),
    ] {
        let message = llama(changes);
        assert!(message.contains(expected), "{message}\nhas not: {expected}");
    }
}

/// Fields of Qwen3-VL-4B-Instruct, shortened.
fn qwen3_vl() -> Value {
    json!({
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": true,
        "text_config": {
            "model_type": "qwen3_vl_text", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 2,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5_000_000,
            "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
        },
    })
}

#[test]
fn the_text_of_qwen3_vl_is_a_qwen3() {
    let config = ok(qwen3_vl());
    assert_eq!((config.qk_norm, config.tied_embeddings), (QkNorm::Heads, true));
    assert!((theta(&config, 0) / 5e6 - 1.0).abs() < 1e-9);
    assert_eq!(windows(&config), [None, None]);
    // The text part's own field is for the text part alone.
    let mut untied = qwen3_vl();
    untied["tie_word_embeddings"] = json!(false);
    untied["text_config"]["tie_word_embeddings"] = json!(true);
    assert!(!ok(untied.clone()).tied_embeddings);
    let may_be_missing = |config: &Value| head_may_be_missing(Path::new("config.json"), config).unwrap();
    assert!(!may_be_missing(&untied));
    // As transformers writes it of a model that stated nothing outside its text part: a head that the folder has is its own.
    untied["tie_word_embeddings"] = json!(true);
    untied["text_config"]["tie_word_embeddings"] = json!(false);
    assert!(!ok(untied.clone()).tied_embeddings && may_be_missing(&untied));
    untied["text_config"]["tie_word_embeddings"] = json!(true);
    untied.as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(ok(untied).tied_embeddings);
    let alone = text_config(Path::new("config.json"), &qwen3_vl(), &config).unwrap();
    assert_eq!((&alone["architectures"][0], &alone["model_type"]), (&json!("Qwen3ForCausalLM"), &json!("qwen3")));
}
