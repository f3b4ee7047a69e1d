//! Gemma 3n's metadata, as llama.cpp's converter (`conversion/gemma.py`) writes it; the constants of files from before a key existed are
//! those of its graph (`src/models/gemma3n.cpp`).

use serde_json::{Map, Value as Json, json};

use super::keys::{Keys, object};
use crate::error::{CompileError, Result};
use crate::import::config_json::gemma3n::normal_share;

/// Of so many layers, the last attends to all tokens.
pub const PERIOD: usize = 5;
/// Layers with a cache of their own, where the file does not state those without.
const OWN_CACHES: usize = 20;
/// The soft cap of the logits, where the file has none.
const FINAL_SOFTCAP: f64 = 30.0;

/// The fields of config.json that other models do not have; `is_sliding`, one a layer, tells which have a window.
///
/// # Errors
/// When a key or a tensor that a size is taken from is missing or malformed.
pub fn fields(keys: &Keys, is_sliding: &[bool]) -> Result<Map<String, Json>> {
    let layers = is_sliding.len();
    let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
    let rows = |name: &str| match keys.gguf.tensors.get(name) {
        Some(tensor) => Ok(tensor.shape[0]),
        None => Err(CompileError::MissingTensor { name: name.to_owned(), hint: String::new() }),
    };
    Ok(object(json!({
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": false,
        "intermediate_size": keys.of_layers("feed_forward_length", layers)?,
        "final_logit_softcapping": keys.decimal("final_logit_softcapping")?.unwrap_or(FINAL_SOFTCAP),
        "sliding_window": keys.required_size("attention.sliding_window")?,
        "layer_types": is_sliding.iter().map(kind).collect::<Vec<_>>(),
        "rope_local_base_freq": keys.decimal("rope.freq_base_swa")?.unwrap_or(10_000.0),
        "num_kv_shared_layers": shared_layers(keys, layers)?,
        "hidden_size_per_layer_input": keys.required_size("embedding_length_per_layer_input")?,
        "vocab_size_per_layer_input": rows("per_layer_token_embd.weight")?,
        "altup_num_inputs": keys.required_size("altup.num_inputs")?,
        "altup_active_idx": keys.gguf.unsigned(&keys.name("altup.active_idx"))?.unwrap_or(0),
        "altup_correct_scale": true,
        "laurel_rank": rows("blk.0.laurel_l.weight")?,
        "activation_sparsity_pattern": sparsity(keys, layers)?,
    })))
}

/// Layers that read the cache of another: a float in files of 2025, an integer in later ones.
fn shared_layers(keys: &Keys, layers: usize) -> Result<usize> {
    let name = keys.name("attention.shared_kv_layers");
    let Some(shared) = keys.gguf.float(&name)? else { return Ok(layers.saturating_sub(OWN_CACHES)) };
    if shared.fract() == 0.0 && (0.0..layers as f64).contains(&shared) {
        return Ok(shared as usize);
    }
    Err(keys.gguf.malformed(format!("{name} is {shared}, expected a whole number below that of the {layers} layers")))
}

/// The share of each layer's gates that become 0; the file has the quantiles of these shares, or none of the first layers' usual ones.
fn sparsity(keys: &Keys, layers: usize) -> Result<Option<Vec<f64>>> {
    let key = "activation_sparsity_scale";
    let Some(quantiles) = keys.decimals(key)? else { return Ok(None) };
    if quantiles.len() != layers {
        let (name, found) = (keys.name(key), quantiles.len());
        return Err(keys
            .gguf
            .malformed(format!("{name} has {found} elements, expected one for each of {layers} layers")));
    }
    let share = |&quantile: &f64| match quantile {
        f64::NEG_INFINITY => Ok(0.0),
        quantile if quantile.is_finite() => Ok(normal_share(quantile)),
        quantile => {
            let name = keys.name(key);
            Err(keys.gguf.malformed(format!("{name} has {quantile}, expected a number, or -inf where no gate is cut")))
        }
    };
    quantiles.iter().map(share).collect::<Result<_>>().map(Some)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;
    use super::super::test_file::{TestFile, TestValue};

    /// Two layers of 8 elements, of which the second attends to all tokens.
    fn file() -> TestFile {
        let mut file = TestFile::model("gemma3n");
        file.set("gemma3n.block_count", TestValue::U32(2));
        file.set("gemma3n.attention.sliding_window", TestValue::U32(3));
        file.set("gemma3n.attention.sliding_window_pattern", TestValue::Bools(&[true, false]));
        file.set("gemma3n.attention.shared_kv_layers", TestValue::F32(0.0));
        file.set("gemma3n.feed_forward_length", TestValue::Integers(&[16, 24]));
        file.set("gemma3n.embedding_length_per_layer_input", TestValue::U32(4));
        file.set("gemma3n.altup.num_inputs", TestValue::U32(3));
        file.set("gemma3n.activation_sparsity_scale", TestValue::Floats(&[1.5, f32::NEG_INFINITY]));
        let attention =
            ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"];
        for name in attention {
            file.remove_tensor(&format!("blk.0.{name}.weight"));
        }
        for (layer, width) in [(0, 16), (1, 24)] {
            for (name, dimensions) in [
                ("attn_norm", vec![8]),
                ("attn_q", vec![8, 8]),
                ("attn_k", vec![8, 4]),
                ("attn_v", vec![8, 4]),
                ("attn_output", vec![8, 8]),
                ("attn_q_norm", vec![4]),
                ("attn_k_norm", vec![4]),
                ("post_attention_norm", vec![8]),
                ("post_ffw_norm", vec![8]),
                ("ffn_norm", vec![8]),
                ("ffn_gate", vec![8, width]),
                ("ffn_up", vec![8, width]),
                ("ffn_down", vec![width, 8]),
                ("inp_gate", vec![8, 4]),
                ("proj", vec![4, 8]),
                ("post_norm", vec![8]),
                ("altup_router", vec![8, 3]),
                ("altup_router_norm", vec![8]),
                ("altup_predict_coef", vec![3, 9]),
                ("altup_correct_coef", vec![3, 3]),
                ("altup_correct_scale", vec![8]),
                ("laurel_l", vec![8, 2]),
                ("laurel_r", vec![2, 8]),
                ("laurel_post_norm", vec![8]),
            ] {
                file.add_f32_tensor(&format!("blk.{layer}.{name}.weight"), dimensions);
            }
        }
        for (name, dimensions) in [
            ("altup_proj", vec![8, 8, 2]),
            ("altup_unembd_proj", vec![8, 8, 2]),
            ("per_layer_token_embd", vec![8, 5]),
            ("per_layer_model_proj", vec![8, 8]),
            ("per_layer_proj_norm", vec![4]),
        ] {
            file.add_f32_tensor(&format!("{name}.weight"), dimensions);
        }
        file
    }

    fn refusal(file: &TestFile) -> String {
        parse(Path::new("model.gguf"), &file.bytes()).err().expect("is refused").to_string()
    }

    #[test]
    fn streams_gates_and_widths_are_those_of_the_metadata() {
        let parsed = parse(Path::new("model.gguf"), &file().bytes()).unwrap_or_else(|error| panic!("{error}"));
        let streams = parsed.config.streams.as_ref().expect("a model with streams");
        assert_eq!((streams.count, streams.laurel_rank, &streams.mlp_widths[..]), (3, 2, &[16, 24][..]));
        assert_eq!(streams.gate_deviations, [Some(1.5), None]);
        assert_eq!(parsed.config.per_layer_inputs.map(|inputs| (inputs.vocab_size, inputs.width)), Some((5, 4)));
        assert_eq!(parsed.config.layers.iter().map(|layer| layer.window).collect::<Vec<_>>(), [Some(3), None]);
        assert_eq!(
            (parsed.config.norm_offset, parsed.config.query_scale, parsed.config.kv_shared_layers),
            (0.0, 1.0, 0)
        );
        assert_eq!(parsed.config.final_softcap, Some(30.0));
        // Each stream's matrix is a part of the stack.
        let place = &parsed.tensors["altup_unembed_projections.1.weight"];
        assert_eq!((&*place.source_name, place.first_row, place.rows), ("altup_unembd_proj.weight", 8, 8));
    }

    #[test]
    fn what_no_file_has_is_refused_by_its_key() {
        let cases: [(&str, TestValue, &str); 9] = [
            (
                "attention.shared_kv_layers",
                TestValue::F32(0.5),
                "shared_kv_layers is 0.5, expected a whole number below",
            ),
            ("attention.shared_kv_layers", TestValue::F32(f32::NAN), "shared_kv_layers is NaN"),
            ("attention.shared_kv_layers", TestValue::U32(2), "shared_kv_layers is 2, expected a whole number below"),
            ("altup.num_inputs", TestValue::U32(1000), "altup_num_inputs is 1000, expected an integer from 1 to 8"),
            ("altup.num_inputs", TestValue::U32(4), "altup_proj.weight"),
            ("altup.active_idx", TestValue::U32(2), "altup_active_idx 2"),
            (
                "activation_sparsity_scale",
                TestValue::Floats(&[1.5]),
                "gemma3n.activation_sparsity_scale has 1 elements, expected one for each of 2 layers",
            ),
            ("activation_sparsity_scale", TestValue::Floats(&[f32::NAN, 0.0]), "activation_sparsity_scale has NaN"),
            ("feed_forward_length", TestValue::Integers(&[16]), "feed_forward_length has 1 elements"),
        ];
        for (key, value, expected) in cases {
            let mut file = file();
            file.set(&format!("gemma3n.{key}"), value);
            let message = refusal(&file);
            assert!(message.contains(expected), "{message}\nhas not: {expected}");
        }
        for name in ["blk.0.laurel_l.weight", "per_layer_token_embd.weight", "altup_unembd_proj.weight"] {
            let mut file = file();
            file.remove_tensor(name);
            assert!(refusal(&file).contains(name));
        }
    }
}
