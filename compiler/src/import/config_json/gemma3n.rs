//! Fields that only Gemma 3n's config.json has.

use std::f64::consts::FRAC_1_SQRT_2;

use unicorn_kernels::activation::erf;

use super::super::config::PerLayerInputs;
use super::super::families::FamilyDefaults;
use super::super::json::Fields;
use super::super::limits;
use super::super::streams_config::StreamsConfig;
use crate::error::{CompileError, Result};

/// The streams; `None`: the family has one.
///
/// # Errors
/// When a field is malformed, or asks for what is not compiled.
pub(super) fn streams(text: &Fields, defaults: &FamilyDefaults, n_layers: usize) -> Result<Option<StreamsConfig>> {
    if !defaults.has_streams {
        return Ok(None);
    }
    if let Some(active) = text.number("altup_active_idx")?.filter(|active| *active != 0.0) {
        return Err(CompileError::Unsupported {
            what: format!("altup_active_idx {active}"),
            detail: "expected 0: layers work on the first stream".into(),
        });
    }
    if text.flag("altup_correct_scale")? == Some(false) {
        return Err(CompileError::Unsupported {
            what: "altup_correct_scale false".into(),
            detail: "expected true: the stream that a layer's last gate reads is scaled".into(),
        });
    }
    let streams = StreamsConfig {
        count: text.size("altup_num_inputs", limits::STREAMS)?.unwrap_or(4),
        laurel_rank: text.size("laurel_rank", limits::HIDDEN_SIZE)?.unwrap_or(64),
        mlp_widths: mlp_widths(text, defaults.intermediate_size, n_layers)?,
        gate_deviations: gate_deviations(text, n_layers)?,
    };
    Ok(Some(streams))
}

/// `intermediate_size`: a number for each layer, or one for all.
fn mlp_widths(text: &Fields, default: usize, n_layers: usize) -> Result<Vec<usize>> {
    const NAME: &str = "intermediate_size";
    if !text.value(NAME).is_some_and(|value| value.is_array()) {
        return Ok(vec![text.size(NAME, limits::INTERMEDIATE_SIZE)?.unwrap_or(default); n_layers]);
    }
    let width = |&width: &f64| {
        let is_size = width.fract() == 0.0 && (1.0..=limits::INTERMEDIATE_SIZE as f64).contains(&width);
        let what = || format!("has {width}, expected integers from 1 to {}", limits::INTERMEDIATE_SIZE);
        if is_size { Ok(width as usize) } else { Err(text.error(NAME, &what())) }
    };
    of_layers(text, NAME, n_layers)?.unwrap_or_default().iter().map(width).collect()
}

/// From which deviation on gates are kept, by `activation_sparsity_pattern`, the share of each layer's gates that are not.
fn gate_deviations(text: &Fields, n_layers: usize) -> Result<Vec<Option<f32>>> {
    const NAME: &str = "activation_sparsity_pattern";
    /// What transformers assumes of the first layers of a model that has more.
    const DEFAULT: (usize, f64) = (10, 0.95);
    let default = || {
        let sparse = if n_layers > DEFAULT.0 { DEFAULT.0 } else { 0 };
        (0..n_layers).map(|layer| if layer < sparse { DEFAULT.1 } else { 0.0 }).collect()
    };
    let shares: Vec<f64> = of_layers(text, NAME, n_layers)?.unwrap_or_else(default);
    let deviations = |&share: &f64| match share {
        0.0 => Ok(None),
        share if (LEAST_SHARE..=1.0 - LEAST_SHARE).contains(&share) => Ok(Some(normal_quantile(share) as f32)),
        share => {
            let what = format!("has {share}, expected 0, or {LEAST_SHARE} to {}", 1.0 - LEAST_SHARE);
            Err(text.error(NAME, &what))
        }
    };
    shares.iter().map(deviations).collect()
}

/// Shares of gates below this, and above 1 less this, leave all of them or none.
const LEAST_SHARE: f64 = 1e-6;

/// A list of numbers, one a layer.
fn of_layers(text: &Fields, name: &str, n_layers: usize) -> Result<Option<Vec<f64>>> {
    let Some(found) = text.numbers(name)? else { return Ok(None) };
    if found.len() != n_layers {
        let what = format!("has {} entries, expected num_hidden_layers, {n_layers}", found.len());
        return Err(text.error(name, &what));
    }
    Ok(Some(found))
}

/// Where the standard normal distribution's cumulative function has the value `share`, by bisection.
fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        *(if normal_share(middle) < share { &mut low } else { &mut high }) = middle;
    }
    (low + high) / 2.0
}

/// The cumulative function of the standard normal distribution.
pub(in crate::import) fn normal_share(deviations: f64) -> f64 {
    0.5 * (1.0 + erf(deviations * FRAC_1_SQRT_2))
}

/// How many of the last layers read the keys and values of others.
pub(super) fn shared_layers(text: &Fields, n_layers: usize) -> Result<usize> {
    const NAME: &str = "num_kv_shared_layers";
    match text.number(NAME)? {
        Some(0.0) => Ok(0),
        _ => Ok(text.size(NAME, n_layers)?.unwrap_or(15)),
    }
}

/// The inputs of each layer beside the streams. Tokens beyond their embedding have its first row.
pub(super) fn per_layer_inputs(text: &Fields) -> Result<PerLayerInputs> {
    Ok(PerLayerInputs {
        vocab_size: text.size("vocab_size_per_layer_input", limits::VOCAB_SIZE)?.unwrap_or(262_144),
        width: text.size("hidden_size_per_layer_input", limits::HEAD_DIM)?.unwrap_or(256),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::model_config;
    use super::*;
    use crate::import::config::ModelConfig;

    fn read(changes: Value) -> Result<ModelConfig> {
        let mut config = json!({
            "architectures": ["Gemma3nForCausalLM"], "hidden_size": 64, "intermediate_size": [128, 96, 96],
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "head_dim": 16,
            "max_position_embeddings": 512, "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 90,
            "activation_sparsity_pattern": [0.95, 0.5, 0.0],
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        model_config(Path::new("config.json"), &config)
    }

    #[test]
    fn layers_have_widths_and_gates_of_their_own() {
        let config = read(json!({ "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0 })).unwrap();
        let streams = config.streams.as_ref().unwrap();
        assert_eq!((streams.count, streams.laurel_rank, &streams.mlp_widths[..]), (4, 64, &[128, 96, 96][..]));
        assert_eq!([0, 1].map(|layer| config.mlp_width(layer)), [128, 96]);
        // The quantiles of the normal distribution, to the precision of f32.
        let [first, second, third] = streams.gate_deviations[..] else { panic!("three layers") };
        assert_eq!((first, third), (Some(1.644_853_6), None));
        assert!(second.unwrap().abs() < 1e-7);
        // transformers does not read these two of Gemma 2's fields.
        assert_eq!((config.query_scale, config.attention_softcap, config.final_softcap), (1.0, None, Some(30.0)));
        assert_eq!((config.norm_offset, config.value_norm, config.layer_scalars), (0.0, true, false));
        assert_eq!(config.layers.iter().map(|layer| layer.window).collect::<Vec<_>>(), [Some(512), None, Some(512)]);
        let shapes = config.tensor_shapes();
        assert_eq!(shapes["altup_unembed_projections.2.weight"], [64, 64]);
        assert_eq!(shapes["layers.2.altup.prediction_coefs.weight"], [16, 4]);
        assert_eq!(shapes["layers.0.mlp.down_proj.weight"], [64, 128]);
    }

    #[test]
    fn defaults_are_those_of_the_larger_model() {
        let json = json!({ "architectures": ["Gemma3nForConditionalGeneration"], "text_config": {} });
        let config = model_config(Path::new("config.json"), &json).unwrap();
        let streams = config.streams.as_ref().unwrap();
        assert_eq!((config.layers.len(), config.kv_shared_layers, config.mlp_width(34)), (35, 15, 16_384));
        assert_eq!(streams.gate_deviations.iter().filter(|deviations| deviations.is_some()).count(), 10);
        assert_eq!((config.layers[4].window, config.layers[5].window, config.cache_owner(34)), (None, Some(512), 19));
        assert_eq!(config.per_layer_inputs, Some(PerLayerInputs { vocab_size: 262_144, width: 256 }));
        assert_eq!((config.vocab_size, config.vision.is_none()), (262_400, true));
    }

    #[test]
    fn quantiles_are_where_the_share_is() {
        for share in [LEAST_SHARE, 0.1, 0.5, 0.975, 1.0 - LEAST_SHARE] {
            assert!((normal_share(normal_quantile(share)) - share).abs() < 1e-12, "{share}");
        }
        assert!((normal_quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-9);
        assert!((normal_quantile(LEAST_SHARE) + 4.753_424_308_822_9).abs() < 1e-6);
    }

    #[test]
    fn what_no_model_has_is_refused_by_its_field() {
        for (changes, expected) in [
            (json!({ "altup_num_inputs": 0 }), "altup_num_inputs is 0, expected an integer from 1 to 8"),
            (json!({ "altup_num_inputs": 1 }), "altup_num_inputs is 1, expected 2 to 8"),
            (json!({ "altup_num_inputs": 1000 }), "altup_num_inputs is 1000, expected an integer from 1 to 8"),
            (json!({ "altup_active_idx": 1 }), "altup_active_idx 1"),
            (json!({ "altup_correct_scale": false }), "altup_correct_scale false"),
            (json!({ "laurel_rank": 0 }), "laurel_rank is 0, expected an integer from 1"),
            (json!({ "intermediate_size": 0 }), "intermediate_size is 0, expected an integer from 1"),
            (json!({ "intermediate_size": [8, 8] }), "intermediate_size has 2 entries, expected num_hidden_layers, 3"),
            (json!({ "intermediate_size": [8, -8, 8] }), "intermediate_size has -8, expected integers from 1"),
            (json!({ "intermediate_size": [8, 1e300, 8] }), "expected integers from 1"),
            (json!({ "intermediate_size": [8, 8.5, 8] }), "intermediate_size has 8.5"),
            (json!({ "intermediate_size": ["8"] }), "expected a list of numbers"),
            (
                json!({ "activation_sparsity_pattern": [0.95] }),
                "activation_sparsity_pattern has 1 entries, expected num_hidden_layers, 3",
            ),
            (
                json!({ "activation_sparsity_pattern": [1.0, 0.0, 0.0] }),
                "activation_sparsity_pattern has 1, expected 0",
            ),
            (json!({ "activation_sparsity_pattern": [0.0, -0.5, 0.0] }), "activation_sparsity_pattern has -0.5"),
            (json!({ "activation_sparsity_pattern": [0.0, 1e-9, 0.0] }), "expected 0, or 0.000001 to 0.999999"),
            (json!({ "activation_sparsity_pattern": 0.95 }), "expected a list of numbers"),
            (
                json!({ "hidden_size_per_layer_input": 0 }),
                "hidden_size_per_layer_input is 0, expected an integer from 1",
            ),
            (json!({ "num_kv_shared_layers": 3 }), "num_kv_shared_layers is 3 of 3 layers"),
            (json!({ "num_kv_shared_layers": 4 }), "num_kv_shared_layers is 4, expected an integer from 1 to 3"),
            (json!({ "num_kv_shared_layers": null }), "num_kv_shared_layers is 15 of 3 layers"),
            (json!({ "sliding_window": null }), "sliding_window null"),
        ] {
            let message = read(changes).expect_err("this config is refused").to_string();
            assert!(message.contains(expected), "{message}\nhas not: {expected}");
        }
    }

    /// As from a record of an artifact, where no field has a name.
    #[test]
    fn a_record_that_contradicts_itself_is_refused() {
        let mut config = read(json!({})).unwrap();
        let refusal = |config: &ModelConfig| ModelConfig::decode(&config.encode()).expect_err("it is refused");
        assert!(ModelConfig::decode(&config.encode()).is_ok());
        config.pre_norms = false;
        assert!(refusal(&config).contains("altup_num_inputs is given, expected none beside layers of another kind"));
        config.pre_norms = true;
        config.per_layer_inputs = None;
        assert!(refusal(&config).contains("hidden_size_per_layer_input is 0"));
        config.streams.as_mut().unwrap().gate_deviations[0] = Some(f32::NAN);
        assert!(refusal(&config).contains("gates are kept from NaN deviations on"));
        config.streams.as_mut().unwrap().gate_deviations.pop();
        assert!(refusal(&config).contains("activation_sparsity_pattern has 2 entries"));
        config.streams.as_mut().unwrap().mlp_widths.clear();
        assert!(refusal(&config).contains("intermediate_size has 0 entries"));
        config.streams.as_mut().unwrap().count = 0;
        assert!(refusal(&config).contains("altup_num_inputs is 0"));
    }
}
