//! Qwen 3.5 and 3.6 with experts: most layers have a gated delta net, the others attention with a gate.

use super::{Config, MOSTLY_Q4_0, Metadata, Shape, Tensor};
use crate::random_gguf::encoding::Encoding;

pub fn shape(config: &Config) -> Result<Shape, String> {
    let (hidden, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    let (head_dim, kv_heads) = (config.size("head_dim")?, config.size("num_key_value_heads")?);
    let (key_dim, value_dim) = (config.size("linear_key_head_dim")?, config.size("linear_value_head_dim")?);
    let (key_heads, value_heads) = (config.size("linear_num_key_heads")?, config.size("linear_num_value_heads")?);
    let (taps, interval) = (config.size("linear_conv_kernel_dim")?, config.size("full_attention_interval")?);
    let (experts, expert) = (config.size("num_experts")?, config.size("moe_intermediate_size")?);
    let shared = config.size("shared_expert_intermediate_size")?;
    if key_dim != value_dim {
        return Err(format!("linear_value_head_dim must be linear_key_head_dim, {key_dim}, found {value_dim}"));
    }

    let rope = config.at("rope_parameters");
    let rotated = (rope.decimal("partial_rotary_factor")? * head_dim as f32) as u32;
    let pairs = rotated / 2;
    // Pairs that are rotated by the position in time, in height and in width; a text's are the same.
    let sections = [pairs.div_ceil(3), (pairs - pairs.div_ceil(3)).div_ceil(2), pairs / 3, 0];
    let mut metadata = super::metadata(config)?;
    metadata.extend([
        ("rope.freq_base", Metadata::Float(rope.decimal("rope_theta")?)),
        ("rope.dimension_sections", Metadata::Numbers(sections.to_vec())),
    ]);
    metadata.extend(super::numbers([
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("rope.dimension_count", rotated),
        ("full_attention_interval", interval),
        ("ssm.conv_kernel", taps),
        ("ssm.state_size", key_dim),
        ("ssm.group_count", key_heads),
        ("ssm.time_step_rank", value_heads),
        ("ssm.inner_size", value_heads * value_dim),
        ("expert_count", experts),
        ("expert_used_count", config.size("num_experts_per_tok")?),
        ("expert_feed_forward_length", expert),
        ("expert_shared_feed_forward_length", shared),
    ]));

    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let (delta_keys, delta_values) = (key_heads * key_dim, value_heads * value_dim);
    let mut tensors = super::outer_tensors(config)?;
    for (layer, is_full) in config.attends_to_all(interval)?.into_iter().enumerate() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors
            .extend([Tensor::vector(name("attn_norm"), hidden), Tensor::vector(name("post_attention_norm"), hidden)]);
        if is_full {
            tensors.extend([
                // Of each head, a query and its gate.
                Tensor::matrix(name("attn_q"), 2 * queries, hidden),
                Tensor::matrix(name("attn_k"), keys, hidden),
                Tensor::matrix(name("attn_v"), keys, hidden),
                Tensor::matrix(name("attn_output"), hidden, queries),
                Tensor::vector(name("attn_q_norm"), head_dim),
                Tensor::vector(name("attn_k_norm"), head_dim),
            ]);
        } else {
            let channels = 2 * delta_keys + delta_values;
            tensors.extend([
                Tensor::matrix(name("attn_qkv"), channels, hidden),
                Tensor::matrix(name("attn_gate"), delta_values, hidden),
                Tensor::matrix(name("ssm_conv1d"), channels, taps).random_in(Encoding::F32),
                Tensor::vector(format!("blk.{layer}.ssm_dt.bias"), value_heads).of(0.0),
                // The decay's factor, which is below 0.
                Tensor::vector(format!("blk.{layer}.ssm_a"), value_heads).of(-1.0),
                Tensor::matrix(name("ssm_beta"), value_heads, hidden),
                Tensor::matrix(name("ssm_alpha"), value_heads, hidden),
                Tensor::vector(name("ssm_norm"), value_dim),
                Tensor::matrix(name("ssm_out"), hidden, delta_values),
            ]);
        }
        tensors.extend([
            Tensor::matrix(name("ffn_gate_inp"), experts, hidden).random_in(Encoding::F32),
            Tensor::matrix(name("ffn_gate_exps"), expert, hidden).of_experts(experts),
            Tensor::matrix(name("ffn_up_exps"), expert, hidden).of_experts(experts),
            Tensor::matrix(name("ffn_down_exps"), hidden, expert).of_experts(experts),
            Tensor::vector(name("ffn_gate_inp_shexp"), hidden).random_in(Encoding::F32),
            Tensor::matrix(name("ffn_gate_shexp"), shared, hidden),
            Tensor::matrix(name("ffn_up_shexp"), shared, hidden),
            Tensor::matrix(name("ffn_down_shexp"), hidden, shared),
        ]);
    }
    Ok(Shape { architecture: "qwen35moe", file_type: MOSTLY_Q4_0, metadata, tensors })
}
