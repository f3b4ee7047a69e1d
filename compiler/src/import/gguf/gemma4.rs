//! Gemma 4's metadata. Layers that attend to all tokens and those with a window differ in heads and rotary embedding, and layers that
//! read the cache of another in the width of their MLP. Names and meaning are those of llama.cpp's converter (`conversion/gemma.py`).

use serde_json::{Map, Value as Json, json};

use super::keys::{Keys, object};
use super::rope::{DIVISOR_TENSORS, read_divisors};
use crate::error::{CompileError, Result};

/// Heads of keys, and elements of a head.
#[derive(Clone, Copy)]
pub struct Heads {
    pub count: usize,
    pub dim: usize,
}

/// The heads of layers with a window and of those that attend to all tokens; `is_sliding`, one a layer, tells which these are.
///
/// # Errors
/// When layers of a kind have different heads, or keys and values different lengths.
pub fn heads(keys: &Keys, is_sliding: &[bool]) -> Result<[Heads; 2]> {
    let counts = keys.of_layers("attention.head_count_kv", is_sliding.len())?;
    let of_kind = |slides: bool, suffix: &str| {
        let mut of_kind: Vec<usize> =
            counts.iter().zip(is_sliding).filter(|(_, sliding)| **sliding == slides).map(|(count, _)| *count).collect();
        of_kind.dedup();
        let [count] = of_kind[..] else {
            return Err(CompileError::Unsupported {
                what: format!("{} of {of_kind:?} in layers of one kind", keys.name("attention.head_count_kv")),
                detail: "expected one number in layers with a window, and one in the others".into(),
            });
        };
        let key = format!("attention.key_length{suffix}");
        let dim = keys.required_size(&key)?;
        let value_dim = keys.size(&format!("attention.value_length{suffix}"))?.unwrap_or(dim);
        let rotated = keys.size(&format!("rope.dimension_count{suffix}"))?.unwrap_or(dim);
        match [value_dim, rotated].into_iter().find(|found| *found != dim) {
            None => Ok(Heads { count, dim }),
            Some(found) => Err(CompileError::Unsupported {
                what: format!("{} {dim} beside a length of {found}", keys.name(&key)),
                detail: "values are as long as keys, which are rotated as a whole".into(),
            }),
        }
    };
    Ok([of_kind(true, "_swa")?, of_kind(false, "")?])
}

/// Width of the MLP in layers with a cache of their own.
///
/// # Errors
/// When layers have widths that the model does not: those without a cache have the same or twice as much.
pub fn feed_forward(keys: &Keys, layers: usize) -> Result<usize> {
    let widths = keys.of_layers("feed_forward_length", layers)?;
    let own = layers - shared_layers(keys, layers)?;
    let (width, last) = (widths[0], widths[layers - 1]);
    let expected = |layer: usize| if layer < own { width } else { last };
    if widths.iter().enumerate().all(|(layer, found)| *found == expected(layer)) && [width, 2 * width].contains(&last) {
        return Ok(width);
    }
    Err(CompileError::Unsupported {
        what: format!("{} of {widths:?}", keys.name("feed_forward_length")),
        detail: format!("expected one number in {own} layers, and the same or twice it in those behind them"),
    })
}

/// Layers that read the cache of another.
fn shared_layers(keys: &Keys, layers: usize) -> Result<usize> {
    let key = "attention.shared_kv_layers";
    let shared = keys.size(key)?.unwrap_or(0);
    if shared < layers {
        return Ok(shared);
    }
    Err(keys.gguf.malformed(format!("{} is {shared}, expected fewer than {layers} layers", keys.name(key))))
}

/// The fields of config.json that other models do not have.
pub fn fields(keys: &Keys, is_sliding: &[bool]) -> Result<Map<String, Json>> {
    let layers = is_sliding.len();
    let (own, widths) = (layers - shared_layers(keys, layers)?, keys.of_layers("feed_forward_length", layers)?);
    let [sliding, full] = heads(keys, is_sliding)?;
    let has_values = |layer: usize| keys.gguf.tensors.contains_key(format!("blk.{layer}.attn_v.weight").as_str());
    let values_are_keys = (0..own).any(|layer| !is_sliding[layer] && !has_values(layer));
    if !values_are_keys && full.count != sliding.count {
        return Err(CompileError::Unsupported {
            what: format!("{} of {} and {}", keys.name("attention.head_count_kv"), sliding.count, full.count),
            detail: "only layers whose values are their keys have another number of heads".into(),
        });
    }
    let inputs = keys.gguf.tensors.get("per_layer_token_embd.weight").map(|table| table.shape[0]);
    let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
    let mut fields = object(json!({
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": false,
        "global_head_dim": full.dim,
        "num_global_key_value_heads": values_are_keys.then_some(full.count),
        "attention_k_eq_v": values_are_keys,
        "final_logit_softcapping": keys.decimal("final_logit_softcapping")?,
        "sliding_window": keys.required_size("attention.sliding_window")?,
        "layer_types": is_sliding.iter().map(kind).collect::<Vec<_>>(),
        "num_kv_shared_layers": layers - own,
        "use_double_wide_mlp": widths[layers - 1] != widths[0],
        "hidden_size_per_layer_input": keys.size("embedding_length_per_layer_input")?.unwrap_or(0),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": keys.decimal("rope.freq_base")?.unwrap_or(keys.architecture.default_rope_base()),
                "partial_rotary_factor": rotated_share(keys, full.dim)?,
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": keys.decimal("rope.freq_base_swa")?.unwrap_or(10_000.0),
            },
        },
    }));
    if let Some(vocab_size) = inputs {
        fields.insert("vocab_size_per_layer_input".into(), json!(vocab_size));
    }
    let experts = keys.size("expert_count")?;
    fields.insert("enable_moe_block".into(), json!(experts.is_some()));
    if let Some(count) = experts {
        fields.extend(object(json!({
            "num_experts": count,
            "top_k_experts": keys.required_size("expert_used_count")?,
            "moe_intermediate_size": keys.required_size("expert_feed_forward_length")?,
        })));
    }
    Ok(fields)
}

/// The share of a head's pairs that layers without a window rotate. Their frequencies are divided by the tensor's elements: 1, or so
/// much that the others are not rotated.
fn rotated_share(keys: &Keys, head_dim: usize) -> Result<f64> {
    /// llama.cpp's converter writes 1e30; the longest context turns such a pair by nothing that an f32 has.
    const NOT_ROTATED: f64 = 1e20;
    let (name, pairs) = (DIVISOR_TENSORS[0], head_dim / 2);
    let Some(divisors) = read_divisors(keys, name, pairs)? else {
        return Err(CompileError::MissingTensor { name: name.into(), hint: ", the divisors of frequencies".into() });
    };
    let rotated = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    if let Some(divisor) = divisors[rotated..].iter().find(|divisor| **divisor < NOT_ROTATED) {
        return Err(CompileError::Unsupported {
            what: format!("tensor {name} with {divisor} behind {rotated} elements of 1"),
            detail: format!("the other pairs are not rotated: {NOT_ROTATED:e} or more"),
        });
    }
    let share = rotated as f64 / pairs as f64;
    // The reader rounds the product down.
    Ok(if ((share * pairs as f64) as usize) < rotated { share.next_up() } else { share })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;
    use super::super::test_file::{TestFile, TestValue};

    /// Two layers, of which the second attends to all tokens, with values that are its keys.
    fn file() -> TestFile {
        let mut file = TestFile::model("gemma4");
        for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            file.set(&format!("gemma4.{key}_swa"), TestValue::U32(4));
            file.set(&format!("gemma4.{key}"), TestValue::U32(8));
        }
        file.set("gemma4.block_count", TestValue::U32(2));
        file.set("gemma4.attention.head_count_kv", TestValue::Integers(&[2, 1]));
        file.set("gemma4.attention.sliding_window", TestValue::U32(3));
        file.set("gemma4.attention.sliding_window_pattern", TestValue::Bools(&[true, false]));
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            file.remove_tensor(&format!("blk.0.{name}.weight"));
        }
        let heads = 2;
        for (layer, kv_rows, dim) in [(0, 8, 4), (1, 8, 8)] {
            let tensors = [
                ("attn_q", vec![8, heads * dim]),
                ("attn_k", vec![8, kv_rows]),
                ("attn_output", vec![heads * dim, 8]),
                ("attn_q_norm", vec![dim]),
                ("attn_k_norm", vec![dim]),
                ("post_attention_norm", vec![8]),
                ("post_ffw_norm", vec![8]),
                ("layer_output_scale", vec![1]),
            ];
            for (name, dimensions) in tensors {
                file.add_f32_tensor(&format!("blk.{layer}.{name}.weight"), dimensions);
            }
        }
        file.add_f32_tensor("blk.0.attn_v.weight", vec![8, 8]);
        for (name, dimensions) in [
            ("attn_norm", vec![8]),
            ("ffn_norm", vec![8]),
            ("ffn_gate", vec![8, 16]),
            ("ffn_up", vec![8, 16]),
            ("ffn_down", vec![16, 8]),
        ] {
            file.add_f32_tensor(&format!("blk.1.{name}.weight"), dimensions);
        }
        file.add_f32_tensor("rope_freqs.weight", vec![4]);
        file.tensor("rope_freqs.weight").data = [1.0f32, 1e30, 1e30, 1e30].map(f32::to_le_bytes).concat();
        file
    }

    fn refusal(file: &TestFile) -> String {
        parse(Path::new("model.gguf"), &file.bytes()).err().expect("is refused").to_string()
    }

    #[test]
    fn layers_that_attend_to_all_tokens_have_heads_of_their_own() {
        let parsed = parse(Path::new("model.gguf"), &file().bytes()).unwrap_or_else(|error| panic!("{error}"));
        let heads = [0, 1].map(|layer| parsed.config.heads_of(layer));
        assert_eq!(
            heads.map(|heads| (heads.n_kv_heads, heads.head_dim, heads.values_are_keys)),
            [(2, 4, false), (1, 8, true)]
        );
        let ropes = [0, 1].map(|layer| &parsed.config.ropes[parsed.config.layers[layer].rope.unwrap()]);
        assert_eq!(ropes.map(|rope| rope.inv_freq.iter().filter(|f| **f > 0.0).count()), [2, 1]);
        assert_eq!((parsed.config.query_scale, parsed.config.norm_offset), (1.0, 0.0));
    }

    #[test]
    fn what_would_be_another_graph_is_refused() {
        let cases: [(&str, TestValue, &str); 6] = [
            (
                "attention.head_count_kv",
                TestValue::Integers(&[2, 2, 2]),
                "head_count_kv has 3 elements, expected one for each of 2 layers",
            ),
            ("attention.value_length", TestValue::U32(6), "gemma4.attention.key_length 8 beside a length of 6"),
            ("rope.dimension_count_swa", TestValue::U32(2), "key_length_swa 4 beside a length of 2"),
            ("feed_forward_length", TestValue::Integers(&[16, 48]), "gemma4.feed_forward_length of [16, 48]"),
            ("attention.shared_kv_layers", TestValue::U32(2), "shared_kv_layers is 2, expected fewer than 2"),
            (
                "attention.sliding_window_pattern",
                TestValue::Bools(&[true, true]),
                "head_count_kv of [2, 1] in layers of one kind",
            ),
        ];
        for (key, value, expected) in cases {
            let mut file = file();
            file.set(&format!("gemma4.{key}"), value);
            let message = refusal(&file);
            assert!(message.contains(expected), "{message}\nhas not: {expected}");
        }
        let mut scaled = file();
        scaled.tensor("rope_freqs.weight").data = [1.0f32, 8.0, 1e30, 1e30].map(f32::to_le_bytes).concat();
        assert!(refusal(&scaled).contains("rope_freqs.weight with 8 behind 1 elements of 1"));
        let mut without = file();
        without.remove_tensor("rope_freqs.weight");
        assert!(refusal(&without).contains("rope_freqs.weight"));
    }
}
