//! Fields that only Gemma 4's config.json has.

use super::super::config::{ExpertNames, ExpertsConfig, limits};
use super::super::json::Fields;
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

/// Layers that share the caches of others, embeddings of each layer, and a window of no size are refused, by name.
pub(super) fn refuse_other_layers(text: &Fields) -> Result<()> {
    let unsupported = |what: String| {
        let detail = "of Gemma 4, 31B and 26B-A4B are compiled, which share no KV cache between layers and have no embeddings per layer";
        Err(CompileError::Unsupported { what, detail: detail.into() })
    };
    for (name, default) in [("num_kv_shared_layers", 0.0), ("hidden_size_per_layer_input", 256.0)] {
        match text.number(name)?.unwrap_or(default) {
            0.0 => {}
            found => return unsupported(format!("{name} {found}")),
        }
    }
    if text.is_written("sliding_window") && !text.has("sliding_window") {
        return unsupported("sliding_window null".into());
    }
    Ok(())
}
