//! Fields that only Gemma 4's config.json has.

use super::super::config::PerLayerInputs;
use super::super::experts_config::{ExpertNames, ExpertsConfig};
use super::super::json::Fields;
use super::super::limits;
use crate::error::{CompileError, Result};

/// The experts beside the MLP of every layer, with `enable_moe_block`.
///
/// # Errors
/// When it is set and a size is missing: there are no defaults.
pub(super) fn experts(text: &Fields) -> Result<Option<ExpertsConfig>> {
    if !text.flag("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    let required = |name: &str, most: usize| {
        text.size(name, most)?
            .ok_or_else(|| text.error(name, "is missing, expected a number: enable_moe_block is true"))
    };
    Ok(Some(ExpertsConfig {
        count: required("num_experts", limits::EXPERTS)?,
        chosen: required("top_k_experts", limits::EXPERTS)?,
        normalized: true,
        intermediate_size: required("moe_intermediate_size", limits::INTERMEDIATE_SIZE)?,
        shared_intermediate_size: None,
        names: ExpertNames::Gemma4,
    }))
}

/// How many of the last layers read the keys and values of others, and whether their MLPs are twice as wide.
pub(super) fn shared_layers(text: &Fields, n_layers: usize) -> Result<(usize, bool)> {
    const NAME: &str = "num_kv_shared_layers";
    let shared = match text.number(NAME)? {
        None | Some(0.0) => 0,
        Some(_) => text.size(NAME, n_layers)?.unwrap_or(0),
    };
    Ok((shared, text.flag("use_double_wide_mlp")?.unwrap_or(false)))
}

/// The inputs of each layer beside the stream; a width of 0 is none.
pub(super) fn per_layer_inputs(text: &Fields) -> Result<Option<PerLayerInputs>> {
    const NAME: &str = "hidden_size_per_layer_input";
    if text.number(NAME)? == Some(0.0) {
        return Ok(None);
    }
    Ok(Some(PerLayerInputs {
        vocab_size: text.size("vocab_size_per_layer_input", limits::VOCAB_SIZE)?.unwrap_or(262_144),
        width: text.size(NAME, limits::HEAD_DIM)?.unwrap_or(256),
    }))
}

/// Refuses a window of no size.
pub(super) fn refuse_no_window(text: &Fields) -> Result<()> {
    if text.is_written("sliding_window") && !text.has("sliding_window") {
        let detail = "layers that attend to a window have its size in tokens".into();
        return Err(CompileError::Unsupported { what: "sliding_window null".into(), detail });
    }
    Ok(())
}
