//! Fields that only LFM2's config.json has.

use super::super::families::FamilyDefaults;
use super::super::json::Fields;
use super::super::limits;
use crate::error::{CompileError, Result};

/// The field that decides whether the head is the embedding: the first models have another name for it, which is used if present.
pub(super) fn tie_field(text: &Fields, defaults: &FamilyDefaults) -> &'static str {
    match defaults.short_conv_taps {
        Some(_) if text.is_written("tie_embedding") => "tie_embedding",
        _ => "tie_word_embeddings",
    }
}

/// Taps of the layers with a short convolution; `None`: the family has no such layers.
pub(super) fn short_conv_taps(text: &Fields, defaults: &FamilyDefaults) -> Result<Option<usize>> {
    let Some(default) = defaults.short_conv_taps else { return Ok(None) };
    if text.flag("conv_bias")?.unwrap_or(false) {
        return Err(CompileError::Unsupported {
            what: "conv_bias true".to_owned(),
            detail: "convolutions without biases are compiled".to_owned(),
        });
    }
    Ok(Some(text.size("conv_L_cache", limits::TAPS)?.unwrap_or(default)))
}

/// LFM2's intermediate size: unless `block_auto_adjust_ff_dim` is false, 2/3 of the configured one, times a factor, rounded up.
pub(super) fn intermediate_size(text: &Fields, written: usize) -> Result<usize> {
    let written = text.size("block_ff_dim", limits::INTERMEDIATE_SIZE)?.unwrap_or(written);
    if !text.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(written);
    }
    let two_thirds = 2 * written / 3;
    let is_null = text.is_written("block_ffn_dim_multiplier") && text.value("block_ffn_dim_multiplier").is_none();
    if is_null {
        return Ok(two_thirds);
    }
    let factor = text.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = text.size("block_multiple_of", limits::INTERMEDIATE_SIZE)?.unwrap_or(256);
    match ((factor * two_thirds as f64) as usize).next_multiple_of(multiple) {
        size @ 1..=limits::INTERMEDIATE_SIZE => Ok(size),
        size => {
            let what = format!("makes an intermediate size of {size}, expected 1 to {}", limits::INTERMEDIATE_SIZE);
            Err(text.error("block_ffn_dim_multiplier", &what))
        }
    }
}
