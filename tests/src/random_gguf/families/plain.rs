//! Llama, and what differs from it in norms and experts only: Gemma 3, Qwen 3 and Qwen3-MoE. The divisors of Llama 3's frequencies are
//! left out, with which a step takes as long.

use super::{Config, MOSTLY_Q4_0, Metadata, Shape, Tensor};

/// Llama's.
pub fn shape(config: &Config) -> Result<Shape, String> {
    shape_of(config, "llama", Norms::default())
}

pub fn gemma3(config: &Config) -> Result<Shape, String> {
    shape_of(config, "gemma3", Norms { of_heads: true, behind: true })
}

pub fn qwen3(config: &Config) -> Result<Shape, String> {
    shape_of(config, "qwen3", Norms { of_heads: true, behind: false })
}

pub fn qwen3_moe(config: &Config) -> Result<Shape, String> {
    shape_of(config, "qwen3moe", Norms { of_heads: true, behind: false })
}

#[derive(Clone, Copy, Default)]
struct Norms {
    /// Of q and k.
    of_heads: bool,
    /// After attention and feed-forward.
    behind: bool,
}

fn shape_of(config: &Config, architecture: &'static str, norms: Norms) -> Result<Shape, String> {
    let (hidden, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    let (layers, kv_heads) = (config.size("num_hidden_layers")?, config.size("num_key_value_heads")?);
    let head_dim = config.size("head_dim").unwrap_or(hidden / heads);
    let feed_forward = config.size("intermediate_size")?;
    let experts = match architecture {
        "qwen3moe" => Some((config.size("num_experts")?, config.size("moe_intermediate_size")?)),
        _ => None,
    };

    let mut metadata = super::metadata(config)?;
    metadata.push(("rope.freq_base", Metadata::Float(config.decimal("rope_theta")?)));
    metadata.extend(super::numbers([
        ("feed_forward_length", feed_forward),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("rope.dimension_count", head_dim),
    ]));
    let scaling = config.at("rope_scaling");
    if scaling.0["rope_type"] == "linear" {
        metadata.extend([
            ("rope.scaling.type", Metadata::Text("linear")),
            ("rope.scaling.factor", Metadata::Float(scaling.decimal("factor")?)),
        ]);
    }
    if let Ok(window) = config.size("sliding_window") {
        metadata.push(("attention.sliding_window", Metadata::Number(window)));
    }
    if let Some((count, width)) = experts {
        metadata.extend(super::numbers([
            ("expert_count", count),
            ("expert_used_count", config.size("num_experts_per_tok")?),
            ("expert_feed_forward_length", width),
        ]));
    }

    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let mut tensors = super::outer_tensors(config)?;
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors.extend([
            Tensor::vector(name("attn_norm"), hidden),
            Tensor::matrix(name("attn_q"), queries, hidden),
            Tensor::matrix(name("attn_k"), keys, hidden),
            Tensor::matrix(name("attn_v"), keys, hidden),
            Tensor::matrix(name("attn_output"), hidden, queries),
            Tensor::vector(name("ffn_norm"), hidden),
        ]);
        match experts {
            None => tensors.extend([
                Tensor::matrix(name("ffn_gate"), feed_forward, hidden),
                Tensor::matrix(name("ffn_up"), feed_forward, hidden),
                Tensor::matrix(name("ffn_down"), hidden, feed_forward),
            ]),
            Some((count, width)) => tensors.extend([
                Tensor::matrix(name("ffn_gate_inp"), count, hidden),
                Tensor::matrix(name("ffn_gate_exps"), width, hidden).of_experts(count),
                Tensor::matrix(name("ffn_up_exps"), width, hidden).of_experts(count),
                Tensor::matrix(name("ffn_down_exps"), hidden, width).of_experts(count),
            ]),
        }
        if norms.of_heads {
            tensors.extend(["attn_q_norm", "attn_k_norm"].map(|part| Tensor::vector(name(part), head_dim)));
        }
        if norms.behind {
            tensors.extend(["post_attention_norm", "post_ffw_norm"].map(|part| Tensor::vector(name(part), hidden)));
        }
    }
    Ok(Shape { architecture, file_type: MOSTLY_Q4_0, metadata, tensors })
}
