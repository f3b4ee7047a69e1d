//! Gemma 3n: several streams of the residual, mixed before each layer and corrected behind it.

use super::{Config, MOSTLY_Q4_0, Metadata, Shape, Tensor};
use crate::random_gguf::encoding::Encoding;

/// The last of so many layers attends to all tokens.
const PERIOD: u32 = 5;
/// The share of gates that the published models cut, and how many standard deviations above the mean these end.
const CUT: (f32, f32) = (0.95, 1.644_853_6);

pub fn shape(config: &Config) -> Result<Shape, String> {
    let (hidden, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    let (kv_heads, head_dim) = (config.size("num_key_value_heads")?, config.size("head_dim")?);
    let (mlp, rank) = (config.size("intermediate_size")?, config.size("laurel_rank")?);
    let (streams, inputs) = (config.size("altup_num_inputs")?, config.size("hidden_size_per_layer_input")?);
    let attends_to_all = config.attends_to_all(PERIOD)?;
    let layers = attends_to_all.len() as u32;
    let ropes = config.at("rope_parameters");

    let mut metadata = super::metadata(config)?;
    metadata.extend([
        ("rope.freq_base", Metadata::Float(ropes.at("full_attention").decimal("rope_theta")?)),
        ("final_logit_softcapping", Metadata::Float(config.decimal("final_logit_softcapping")?)),
        ("attention.sliding_window_pattern", Metadata::Bools(attends_to_all.iter().map(|&is_full| !is_full).collect())),
        ("activation_sparsity_scale", Metadata::Floats(deviations(config)?)),
    ]);
    metadata.extend(super::numbers([
        ("feed_forward_length", mlp),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("attention.sliding_window", config.size("sliding_window")?),
        ("attention.shared_kv_layers", config.size("num_kv_shared_layers")?),
        ("embedding_length_per_layer_input", inputs),
        ("altup.num_inputs", streams),
        ("altup.active_idx", 0),
    ]));

    // llama.cpp keeps the small matrices that mix the streams as they are.
    let mixing = |name: String, rows, cols| Tensor::matrix(name, rows, cols).random_in(Encoding::F32);
    let mut tensors = super::outer_tensors(config)?;
    tensors.extend([
        Tensor::matrix("altup_proj.weight", hidden, hidden).of_experts(streams - 1),
        Tensor::matrix("altup_unembd_proj.weight", hidden, hidden).of_experts(streams - 1),
        Tensor::matrix("per_layer_token_embd.weight", config.size("vocab_size_per_layer_input")?, layers * inputs),
        Tensor::matrix("per_layer_model_proj.weight", layers * inputs, hidden),
        Tensor::vector("per_layer_proj_norm.weight", inputs),
    ]);
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors.extend([
            Tensor::matrix(name("attn_q"), queries, hidden),
            Tensor::matrix(name("attn_k"), keys, hidden),
            Tensor::matrix(name("attn_v"), keys, hidden),
            Tensor::matrix(name("attn_output"), hidden, queries),
            Tensor::matrix(name("ffn_gate"), mlp, hidden),
            Tensor::matrix(name("ffn_up"), mlp, hidden),
            Tensor::matrix(name("ffn_down"), hidden, mlp),
            Tensor::matrix(name("laurel_l"), rank, hidden),
            Tensor::matrix(name("laurel_r"), hidden, rank),
            Tensor::matrix(name("inp_gate"), inputs, hidden),
            Tensor::matrix(name("proj"), hidden, inputs),
            mixing(name("altup_router"), streams, hidden),
            mixing(name("altup_predict_coef"), streams * streams, streams),
            mixing(name("altup_correct_coef"), streams, streams),
        ]);
        tensors.extend(["attn_q_norm", "attn_k_norm"].map(|part| Tensor::vector(name(part), head_dim)));
        for part in [
            "attn_norm",
            "post_attention_norm",
            "ffn_norm",
            "post_ffw_norm",
            "post_norm",
            "laurel_post_norm",
            "altup_router_norm",
            "altup_correct_scale",
        ] {
            tensors.push(Tensor::vector(name(part), hidden));
        }
    }
    Ok(Shape { architecture: "gemma3n", file_type: MOSTLY_Q4_0, metadata, tensors })
}

/// Standard deviations above the mean from which on each layer's gates are kept.
fn deviations(config: &Config) -> Result<Vec<f32>, String> {
    const NAME: &str = "activation_sparsity_pattern";
    let shares = config.decimals(NAME)?;
    let deviations = shares.into_iter().map(|share| match share {
        0.0 => Ok(f32::NEG_INFINITY),
        share if share == CUT.0 => Ok(CUT.1),
        share => Err(format!("{NAME} must hold 0 and {}, found {share}", CUT.0)),
    });
    deviations.collect()
}
