//! The vision tower in a multimodal model's config.json and preprocessor_config.json.

use super::super::families::FamilyDefaults;
use super::super::json::Fields;
use super::super::limits;
use super::super::vision_config::{CHANNELS, VisionConfig};
use crate::error::{CompileError, Result};

/// The tower of `vision_config`, with the defaults of transformers' `SiglipVisionConfig` and `Gemma3Config`; `None`: the family has none
/// that we compile.
pub(super) fn vision(root: &Fields, family: &FamilyDefaults) -> Result<Option<VisionConfig>> {
    let Some(tower) = root.object("vision_config")?.filter(|_| family.vision) else { return Ok(None) };
    for (name, expected) in [("hidden_act", "gelu_pytorch_tanh"), ("model_type", "siglip_vision_model")] {
        if let Some(found) = tower.text(name)?.filter(|found| *found != expected) {
            return Err(CompileError::Unsupported {
                what: format!("{name} {found} of the vision tower"),
                detail: format!("supported is {expected}; the text model alone can be compiled"),
            });
        }
    }
    if let Some(channels) = tower.size("num_channels", limits::HIDDEN_SIZE)?.filter(|channels| *channels != CHANNELS) {
        return Err(tower.error("num_channels", &format!("is {channels}, expected {CHANNELS}")));
    }
    let size =
        |name: &str, max: usize, default: usize| Ok::<_, CompileError>(tower.size(name, max)?.unwrap_or(default));
    // transformers 5 has the names that end in `id`.
    let token = |names: [&str; 2], default: u32| {
        let found = names.iter().find(|name| root.has(name));
        let ids = found.map_or(Ok(None), |name| root.token_ids(name))?;
        Ok::<_, CompileError>(ids.and_then(|ids| ids.first().copied()).unwrap_or(default))
    };
    Ok(Some(VisionConfig {
        hidden_size: size("hidden_size", limits::HIDDEN_SIZE, 768)?,
        intermediate_size: size("intermediate_size", limits::INTERMEDIATE_SIZE, 3072)?,
        layers: size("num_hidden_layers", limits::LAYERS, 12)?,
        heads: size("num_attention_heads", limits::HEADS, 12)?,
        image_size: size("image_size", limits::IMAGE_SIZE, 224)?,
        patch_size: size("patch_size", limits::PATCH_SIZE, 16)?,
        image_rows: root.size("mm_tokens_per_image", limits::HIDDEN_SIZE)?.unwrap_or(256),
        eps: tower.number("layer_norm_eps")?.unwrap_or(1e-6) as f32,
        mean: [0.5; CHANNELS],
        deviation: [0.5; CHANNELS],
        row_token: token(["image_token_id", "image_token_index"], 262_144)?,
        begin_token: token(["boi_token_id", "boi_token_index"], 255_999)?,
        end_token: token(["eoi_token_id", "eoi_token_index"], 256_000)?,
    }))
}

/// Reads how pixels become numbers from preprocessor_config.json.
pub(in super::super) fn read_normalization(processor: &Fields, vision: &mut VisionConfig) -> Result<()> {
    for (name, values) in [("image_mean", &mut vision.mean), ("image_std", &mut vision.deviation)] {
        let Some(found) = processor.numbers(name)? else { continue };
        let found: Vec<f32> = found.into_iter().map(|number| number as f32).collect();
        *values = found[..].try_into().map_err(|_| {
            processor.error(name, &format!("has {} numbers, expected one for each of {CHANNELS} channels", found.len()))
        })?;
    }
    Ok(())
}
