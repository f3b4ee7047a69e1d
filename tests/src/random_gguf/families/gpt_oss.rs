//! gpt-oss: biases of every matrix, sinks of attention, and experts in MXFP4, as it is published.

use super::{Config, MOSTLY_MXFP4, Metadata, Shape, Tensor};
use crate::random_gguf::encoding::Encoding;

pub fn shape(config: &Config) -> Result<Shape, String> {
    let (hidden, layers) = (config.size("hidden_size")?, config.size("num_hidden_layers")?);
    let (heads, kv_heads) = (config.size("num_attention_heads")?, config.size("num_key_value_heads")?);
    let (head_dim, experts) = (config.size("head_dim")?, config.size("num_local_experts")?);
    let width = config.size("intermediate_size")?;

    let mut metadata = super::metadata(config)?;
    metadata.push(("rope.freq_base", Metadata::Float(config.decimal("rope_theta")?)));
    metadata.extend(super::numbers([
        ("feed_forward_length", width),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("attention.sliding_window", config.size("sliding_window")?),
        ("expert_count", experts),
        ("expert_used_count", config.size("num_experts_per_tok")?),
        ("expert_feed_forward_length", width),
    ]));
    let scaling = config.at("rope_scaling");
    if scaling.0["rope_type"] != "yarn" {
        return Err(format!("rope_scaling must be of yarn, found {}", scaling.0));
    }
    let original = scaling.size("original_max_position_embeddings")?;
    metadata.extend([
        ("rope.scaling.type", Metadata::Text("yarn")),
        ("rope.scaling.factor", Metadata::Float(scaling.decimal("factor")?)),
        ("rope.scaling.original_context_length", Metadata::Number(original)),
        ("rope.scaling.yarn_beta_fast", Metadata::Float(scaling.decimal("beta_fast")?)),
        ("rope.scaling.yarn_beta_slow", Metadata::Float(scaling.decimal("beta_slow")?)),
    ]);

    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let mut tensors = super::outer_tensors(config)?;
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let bias = |part: &str, rows: u32| Tensor::vector(format!("blk.{layer}.{part}.bias"), rows).of(0.0);
        tensors.extend([
            Tensor::vector(name("attn_norm"), hidden),
            Tensor::vector(name("post_attention_norm"), hidden),
            Tensor::vector(name("attn_sinks"), heads).of(0.0),
            Tensor::matrix(name("ffn_gate_inp"), experts, hidden).random_in(Encoding::F32),
            bias("ffn_gate_inp", experts),
        ]);
        for (part, rows, cols) in [
            ("attn_q", queries, hidden),
            ("attn_k", keys, hidden),
            ("attn_v", keys, hidden),
            ("attn_output", hidden, queries),
        ] {
            tensors.extend([Tensor::matrix(name(part), rows, cols), bias(part, rows)]);
        }
        for (part, rows, cols) in
            [("ffn_gate_exps", width, hidden), ("ffn_up_exps", width, hidden), ("ffn_down_exps", hidden, width)]
        {
            let stack = Tensor::matrix(name(part), rows, cols).of_experts(experts);
            tensors.extend([stack.random_in(Encoding::MxFp4), bias(part, rows).of_experts(experts)]);
        }
    }
    Ok(Shape { architecture: "gpt-oss", file_type: MOSTLY_MXFP4, metadata, tensors })
}
