//! Gemma 4 with experts beside the MLP: layers that attend to all tokens have heads of their own, whose values can be their keys.

use super::{Config, MOSTLY_Q4_0, Metadata, Shape, Tensor};
use crate::random_gguf::encoding::Encoding;

/// The last of so many layers attends to all tokens.
const PERIOD: u32 = 6;
/// llama.cpp's divisor of the frequencies of pairs that are not rotated.
const NOT_ROTATED: f32 = 1e30;

pub fn shape(config: &Config) -> Result<Shape, String> {
    refuse_other_layers(config)?;
    let (hidden, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    let (mlp, experts) = (config.size("intermediate_size")?, config.size("num_experts")?);
    let (expert, attends_to_all) = (config.size("moe_intermediate_size")?, config.attends_to_all(PERIOD)?);
    let values_are_keys = config.0["attention_k_eq_v"] == true;
    let kv_heads = config.size("num_key_value_heads")?;
    let full_kv_heads = if values_are_keys { config.size("num_global_key_value_heads")? } else { kv_heads };
    let (sliding_dim, full_dim) = (config.size("head_dim")?, config.size("global_head_dim")?);
    // Heads of keys and elements of a head.
    let heads_of = |is_full: bool| if is_full { (full_kv_heads, full_dim) } else { (kv_heads, sliding_dim) };

    let ropes = config.at("rope_parameters");
    let (full_rope, sliding_rope) = (ropes.at("full_attention"), ropes.at("sliding_attention"));
    let mut metadata = super::metadata(config)?;
    metadata.extend([
        ("rope.freq_base", Metadata::Float(full_rope.decimal("rope_theta")?)),
        ("rope.freq_base_swa", Metadata::Float(sliding_rope.decimal("rope_theta")?)),
        ("final_logit_softcapping", Metadata::Float(config.decimal("final_logit_softcapping")?)),
        (
            "attention.head_count_kv",
            Metadata::Numbers(attends_to_all.iter().map(|&is_full| heads_of(is_full).0).collect()),
        ),
        ("attention.sliding_window_pattern", Metadata::Bools(attends_to_all.iter().map(|&is_full| !is_full).collect())),
    ]);
    metadata.extend(super::numbers([
        ("feed_forward_length", mlp),
        ("attention.key_length", full_dim),
        ("attention.value_length", full_dim),
        ("rope.dimension_count", full_dim),
        ("attention.key_length_swa", sliding_dim),
        ("attention.value_length_swa", sliding_dim),
        ("rope.dimension_count_swa", sliding_dim),
        ("attention.sliding_window", config.size("sliding_window")?),
        ("attention.shared_kv_layers", 0),
        ("embedding_length_per_layer_input", 0),
        ("expert_count", experts),
        ("expert_used_count", config.size("top_k_experts")?),
        ("expert_feed_forward_length", expert),
    ]));

    let mut tensors = super::outer_tensors(config)?;
    let pairs = full_dim / 2;
    let rotated = (full_rope.decimal("partial_rotary_factor")? * pairs as f32) as u32;
    let divisors = (0..pairs).map(|pair| if pair < rotated { 1.0 } else { NOT_ROTATED });
    tensors.push(Tensor::values("rope_freqs.weight", divisors.collect()));
    for (layer, &is_full) in attends_to_all.iter().enumerate() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (kv_heads, head_dim) = heads_of(is_full);
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        tensors.extend([
            Tensor::vector(name("attn_norm"), hidden),
            Tensor::matrix(name("attn_q"), queries, hidden),
            Tensor::matrix(name("attn_k"), keys, hidden),
            Tensor::matrix(name("attn_output"), hidden, queries),
            Tensor::vector(name("attn_q_norm"), head_dim),
            Tensor::vector(name("attn_k_norm"), head_dim),
            Tensor::vector(name("layer_output_scale"), 1),
            Tensor::matrix(name("ffn_gate"), mlp, hidden),
            Tensor::matrix(name("ffn_up"), mlp, hidden),
            Tensor::matrix(name("ffn_down"), hidden, mlp),
            Tensor::matrix(name("ffn_gate_inp"), experts, hidden).random_in(Encoding::F32),
            Tensor::vector(format!("blk.{layer}.ffn_gate_inp.scale"), hidden),
            Tensor::matrix(name("ffn_gate_up_exps"), 2 * expert, hidden).of_experts(experts),
            Tensor::matrix(name("ffn_down_exps"), hidden, expert).of_experts(experts),
            Tensor::vector(format!("blk.{layer}.ffn_down_exps.scale"), experts),
        ]);
        if !(is_full && values_are_keys) {
            tensors.push(Tensor::matrix(name("attn_v"), keys, hidden));
        }
        for part in
            ["post_attention_norm", "ffn_norm", "post_ffw_norm", "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]
        {
            tensors.push(Tensor::vector(name(part), hidden));
        }
    }
    Ok(Shape { architecture: "gemma4", file_type: MOSTLY_Q4_0, metadata, tensors })
}

/// The smaller Gemma 4s have layers that these tensors are not.
fn refuse_other_layers(config: &Config) -> Result<(), String> {
    if config.0["enable_moe_block"] != true {
        return Err(format!("enable_moe_block must be true, found {}", config.0["enable_moe_block"]));
    }
    let other =
        ["hidden_size_per_layer_input", "num_kv_shared_layers"].into_iter().find(|key| config.size(key).is_ok());
    other.map_or(Ok(()), |key| Err(format!("{key} must be 0, found {}", config.0[key])))
}
