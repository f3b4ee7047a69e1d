//! Heads of Gemma 4's layers that attend to all tokens, from config.json: as files on the Hub have them (`global_head_dim`,
//! `num_global_key_value_heads`), or as transformers 5.24 writes them (`per_layer_config`); and their rotary embedding.

use super::config::{FullHeads, LayerConfig, RopeConfig};
use super::families::FamilyDefaults;
use super::json::Fields;
use super::limits;
use super::rope::RopeScaling;
use crate::error::{CompileError, Result};

/// The heads; `n_kv_heads` heads of `head_dim` are those of the other layers. `None`: the family has the same heads in all layers.
pub(super) fn full_heads(
    text: &Fields,
    defaults: &FamilyDefaults,
    n_kv_heads: usize,
    head_dim: usize,
) -> Result<Option<FullHeads>> {
    let Some(defaults) = &defaults.full_heads else { return Ok(None) };
    let values_are_keys = text.flag("attention_k_eq_v")?.unwrap_or(false);
    let own_kv_heads = |fields: &Fields, name: &str| fields.size(name, limits::HEADS);
    let (head_dim, n_kv_heads) = match text.object(PER_LAYER)? {
        // What is as in the other layers is left out.
        Some(layers) => {
            let mut found = None;
            for index in layers.names() {
                let layer = layers.object(index)?.ok_or_else(|| layers.error(index, "is null, expected an object"))?;
                let head_dim = layer.size("head_dim", limits::HEAD_DIM)?.unwrap_or(head_dim);
                let heads = (head_dim, own_kv_heads(&layer, "num_key_value_heads")?.unwrap_or(n_kv_heads));
                if *found.get_or_insert(heads) != heads {
                    return Err(CompileError::Unsupported {
                        what: format!("{PER_LAYER} with heads of more than one kind"),
                        detail: "layers that attend to all tokens have the same heads".into(),
                    });
                }
            }
            found.unwrap_or((head_dim, n_kv_heads))
        }
        None => {
            // Without shared keys and values, transformers does not read the number.
            let own = own_kv_heads(text, "num_global_key_value_heads")?.filter(|_| values_are_keys);
            let head_dim = text.size("global_head_dim", limits::HEAD_DIM)?.unwrap_or(defaults.head_dim);
            (head_dim, own.unwrap_or(n_kv_heads))
        }
    };
    if !head_dim.is_multiple_of(2) {
        let what = format!("is {head_dim}, expected an even number up to {}", limits::HEAD_DIM);
        return Err(text.error("global_head_dim", &what));
    }
    Ok(Some(FullHeads { n_kv_heads, head_dim, values_are_keys }))
}

const PER_LAYER: &str = "per_layer_config";

/// Checks that the layers that `per_layer_config` names, if any, are those without a window.
///
/// # Errors
/// When these layers differ.
pub(super) fn check_layers(text: &Fields, layers: &[LayerConfig]) -> Result<()> {
    let Some(written) = text.object(PER_LAYER)? else { return Ok(()) };
    let sees_all = |name: &&str| {
        let layer = name.parse::<usize>().ok().and_then(|index| layers.get(index));
        layer.is_some_and(|layer| layer.window.is_none())
    };
    let (found, expected) = (written.names().filter(sees_all).count(), written.names().count());
    let full = layers.iter().filter(|layer| layer.window.is_none()).count();
    if found == expected && (found == full || expected == 0) {
        return Ok(());
    }
    Err(CompileError::Unsupported {
        what: format!("{PER_LAYER} of {expected} layers, {found} of which attend to all tokens"),
        detail: format!("expected the {full} layers that attend to all tokens, and no others"),
    })
}

/// A proportional rotary embedding: the whole head is rotated, with frequencies of 0 after the first share of its pairs. `share` is
/// the configured one; `head_dim` is even.
///
/// # Errors
/// When the share is less than one pair or more than all pairs.
pub(super) fn proportional_rope(
    section: &Fields,
    share: Option<f64>,
    theta: f64,
    head_dim: usize,
) -> Result<RopeConfig> {
    let share = share.unwrap_or(1.0);
    let rotated_pairs = (share * head_dim as f64 / 2.0) as usize;
    if !(share <= 1.0 && rotated_pairs > 0) {
        let what = format!("is {share}, expected more than none and at most all of {} pairs", head_dim / 2);
        return Err(section.error("partial_rotary_factor", &what));
    }
    let factor = section.number("factor")?.unwrap_or(1.0);
    Ok(RopeScaling::Proportional { rotated_pairs, factor }.frequencies(theta, head_dim))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::import::config::ModelConfig;
    use crate::import::config_json::model_config;

    fn read(changes: Value) -> Result<ModelConfig> {
        let mut config = json!({
            "architectures": ["Gemma4ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
            "hidden_size_per_layer_input": 0, "head_dim": 16, "global_head_dim": 40, "num_global_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        model_config(Path::new("config.json"), &config)
    }

    fn refusal(changes: Value) -> String {
        read(changes).expect_err("this config is refused").to_string()
    }

    #[test]
    fn global_attention_layers_have_heads_of_their_own_and_the_last_is_one() {
        let config = read(json!({ "attention_k_eq_v": true })).unwrap();
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [Some(512), None, None]);
        let full = FullHeads { n_kv_heads: 1, head_dim: 40, values_are_keys: true };
        assert_eq!(
            [0, 1, 2].map(|layer| config.heads_of(layer)),
            [FullHeads { n_kv_heads: 2, head_dim: 16, values_are_keys: false }, full, full]
        );
        assert_eq!((config.query_scale, config.norm_offset, config.embedding_scale), (1.0, 0.0, 8.0));
        let shapes = config.tensor_shapes();
        assert_eq!(shapes["layers.1.self_attn.k_proj.weight"], [40, 64]);
        assert!(!shapes.contains_key("layers.1.self_attn.v_proj.weight"));
        assert_eq!(shapes["layers.0.self_attn.v_proj.weight"], [32, 64]);
        // Without shared keys and values, their number is that of all layers.
        let apart = read(json!({ "attention_k_eq_v": false })).unwrap();
        assert_eq!(apart.heads_of(1), FullHeads { n_kv_heads: 2, head_dim: 40, values_are_keys: false });
    }

    #[test]
    fn the_last_layers_read_the_cache_of_the_last_one_of_their_type() {
        let types =
            ["sliding", "full", "sliding", "full", "full", "sliding", "full"].map(|kind| format!("{kind}_attention"));
        let shared = json!({
            "num_hidden_layers": 7, "layer_types": types, "num_kv_shared_layers": 3, "use_double_wide_mlp": true,
        });
        let config = read(shared).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|layer| config.cache_owner(layer)), [0, 1, 2, 3, 3, 2, 3]);
        let groups: Vec<_> = crate::select::kv_groups(&config).into_iter().map(|group| group.layers).collect();
        assert_eq!(groups, [[0, 2], [1, 3]]);
        let shapes = config.tensor_shapes();
        assert_eq!(
            (&shapes["layers.3.mlp.up_proj.weight"][..], &shapes["layers.4.mlp.up_proj.weight"][..]),
            (&[128, 64][..], &[256, 64][..])
        );
        for name in ["k_proj", "v_proj", "k_norm"] {
            assert!(shapes.contains_key(&format!("layers.3.self_attn.{name}.weight")));
            assert!(!shapes.contains_key(&format!("layers.4.self_attn.{name}.weight")));
            // Files have them.
            assert!(config.is_of_shared_cache(&format!("layers.4.self_attn.{name}.weight")));
        }
        for name in
            ["layers.3.self_attn.k_proj.weight", "layers.4.self_attn.q_proj.weight", "layers.7.self_attn.k_proj.weight"]
        {
            assert!(!config.is_of_shared_cache(name));
        }
    }

    #[test]
    fn a_proportional_rotation_leaves_pairs_alone() {
        let config = read(json!({})).unwrap();
        let full = &config.ropes[config.layers[1].rope.unwrap()];
        assert_eq!((full.inv_freq.len(), full.inv_freq.iter().filter(|f| **f > 0.0).count()), (20, 5));
        assert!((full.inv_freq[1] - 1e6f64.powf(-2.0 / 40.0)).abs() < 1e-12);
        let sliding = &config.ropes[config.layers[0].rope.unwrap()];
        assert!((sliding.inv_freq[1] - 1e4f64.powf(-2.0 / 16.0)).abs() < 1e-12);
        for share in [0.0, -1.0, 1.5, 1e300] {
            let full = json!({ "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": share });
            let message = refusal(json!({ "rope_parameters": { "full_attention": full, "sliding_attention": {} } }));
            assert!(message.contains("partial_rotary_factor is"), "{message}");
        }
    }

    #[test]
    fn what_transformers_saves_is_read_and_what_contradicts_itself_is_refused() {
        let layers = |indices: &[&str]| -> Value {
            let of_layer = |index: &&str| (index.to_string(), json!({ "head_dim": 24, "num_key_value_heads": 4 }));
            json!({ "per_layer_config": indices.iter().map(of_layer).collect::<serde_json::Map<_, _>>() })
        };
        let config = read(layers(&["1", "2"])).unwrap();
        assert_eq!(config.heads_of(1), FullHeads { n_kv_heads: 4, head_dim: 24, values_are_keys: false });
        let same = FullHeads { n_kv_heads: 2, head_dim: 16, values_are_keys: false };
        assert_eq!(read(layers(&[])).unwrap().heads_of(1), same);
        let fewer =
            json!({ "per_layer_config": { "1": { "num_key_value_heads": 1 }, "2": { "num_key_value_heads": 1 } } });
        assert_eq!(read(fewer).unwrap().heads_of(1), FullHeads { n_kv_heads: 1, ..same });
        for (indices, found) in [(&["1"][..], 1), (&["0", "1", "2"], 2), (&["1", "7"], 1), (&["full"], 0)] {
            let message = refusal(layers(indices));
            let expected =
                format!("per_layer_config of {} layers, {found} of which attend to all tokens", indices.len());
            assert!(message.contains(&expected), "{message}");
        }
        for (changes, expected) in [
            (json!({ "per_layer_config": { "1": { "head_dim": 24 }, "2": { "head_dim": 32 } } }), "more than one kind"),
            (json!({ "global_head_dim": 41 }), "global_head_dim is 41, expected an even number"),
            (json!({ "num_global_key_value_heads": 3, "attention_k_eq_v": true }), "num_global_key_value_heads, 3"),
            (json!({ "use_bidirectional_attention": "all" }), "use_bidirectional_attention"),
            (json!({ "sliding_window": null }), "sliding_window null"),
            (json!({ "enable_moe_block": true }), "num_experts is missing, expected a number"),
            (
                json!({ "enable_moe_block": true, "num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 8 }),
                "number of experts of a token is 5, expected 1 to 4",
            ),
            (json!({ "num_kv_shared_layers": 2 }), "num_kv_shared_layers is 2 of 3 layers, expected a layer of each"),
            (json!({ "num_kv_shared_layers": 3 }), "num_kv_shared_layers is 3 of 3 layers"),
            (json!({ "num_kv_shared_layers": 4 }), "num_kv_shared_layers is 4, expected an integer from 1 to 3"),
            (json!({ "num_kv_shared_layers": -1 }), "num_kv_shared_layers is -1, expected an integer"),
            (json!({ "hidden_size_per_layer_input": -8 }), "hidden_size_per_layer_input is -8, expected an integer"),
            (
                json!({ "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99 }),
                "vocab_size_per_layer_input is 99, expected at least vocab_size, 100",
            ),
        ] {
            let message = refusal(changes);
            assert!(message.contains(expected), "{message}\nhas not: {expected}");
        }
    }
}
