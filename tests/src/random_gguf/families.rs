//! What llama.cpp's files of each family hold. Names, shapes and meaning are those of its `src/models`.

use serde_json::Value;

use super::config::Config;
use super::metadata::Metadata;
use super::shape::Shape;
use super::tensor::Tensor;

mod gemma3n;
mod gemma4;
mod gpt_oss;
mod plain;
mod qwen35_moe;

/// llama.cpp's numbers of files that are mostly of a type.
const MOSTLY_Q4_0: u32 = 2;
const MOSTLY_MXFP4: u32 = 38;

pub fn shape(config: &Value) -> Result<Shape, String> {
    let model_type = config["model_type"].as_str().ok_or("model_type is missing")?;
    let shape = match model_type {
        "llama" => plain::shape,
        "gemma3_text" => plain::gemma3,
        "gemma3n_text" => gemma3n::shape,
        "qwen3" => plain::qwen3,
        "qwen3_moe" => plain::qwen3_moe,
        "gpt_oss" => gpt_oss::shape,
        "gemma4_text" => gemma4::shape,
        "qwen3_5_moe_text" => qwen35_moe::shape,
        other => {
            return Err(format!(
                "model_type must be llama, gemma3_text, gemma3n_text, gemma4_text, qwen3, qwen3_moe, qwen3_5_moe_text or gpt_oss, found {other}"
            ));
        }
    };
    shape(&Config(config))
}

/// The metadata that every family has.
fn metadata(config: &Config) -> Result<Vec<(&'static str, Metadata)>, String> {
    let mut metadata = vec![("attention.layer_norm_rms_epsilon", Metadata::Float(config.decimal("rms_norm_eps")?))];
    for (key, field) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("attention.head_count", "num_attention_heads"),
        ("vocab_size", "vocab_size"),
    ] {
        metadata.push((key, Metadata::Number(config.size(field)?)));
    }
    Ok(metadata)
}

fn numbers<const N: usize>(numbers: [(&'static str, u32); N]) -> [(&'static str, Metadata); N] {
    numbers.map(|(key, number)| (key, Metadata::Number(number)))
}

/// The tensors before the layers.
fn outer_tensors(config: &Config) -> Result<Vec<Tensor>, String> {
    let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
    let mut tensors =
        vec![Tensor::matrix("token_embd.weight", vocab, hidden), Tensor::vector("output_norm.weight", hidden)];
    if config.0["tie_word_embeddings"] != true {
        tensors.push(Tensor::matrix("output.weight", vocab, hidden));
    }
    Ok(tensors)
}
