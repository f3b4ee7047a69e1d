//! The vision tower in a multimodal model's config.json, and its image processor.

use super::super::families::{FamilyDefaults, VisionTower};
use super::super::json::Fields;
use super::super::limits;
use super::super::vision_config::{CHANNELS, GridConfig, VisionConfig};
use crate::error::{CompileError, Result};

/// The tower of `vision_config`; `None`: the family has none that we compile. `text`: config.json's part of the text model.
pub(super) fn vision(root: &Fields, text: &Fields, family: &FamilyDefaults) -> Result<Option<VisionConfig>> {
    let (Some(tower), Some(kind)) = (root.object("vision_config")?, family.vision) else { return Ok(None) };
    match kind {
        VisionTower::Siglip => siglip(root, &tower).map(Some),
        VisionTower::Qwen3Vl => qwen3_vl(root, text, &tower).map(Some),
    }
}

/// Refuses a tower whose field is another than what we compile.
fn refuse_unlike(tower: &Fields, name: &str, expected: &[&str]) -> Result<()> {
    match tower.text(name)?.filter(|found| !expected.contains(found)) {
        None => Ok(()),
        Some(found) => Err(CompileError::Unsupported {
            what: format!("{name} {found} of the vision tower"),
            detail: format!("supported is {}; the text model alone can be compiled", expected[0]),
        }),
    }
}

/// With the defaults of transformers' `SiglipVisionConfig` and `Gemma3Config`.
fn siglip(root: &Fields, tower: &Fields) -> Result<VisionConfig> {
    refuse_unlike(tower, "hidden_act", &["gelu_pytorch_tanh"])?;
    refuse_unlike(tower, "model_type", &["siglip_vision_model"])?;
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
    Ok(VisionConfig {
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
        grid: None,
    })
}

/// Fewest and most pixels of an image where preprocessor_config.json has none: those of the published models.
pub(in super::super) const GRID_PIXELS: [usize; 2] = [1 << 16, 1 << 24];
/// Limit of numbers of pixels.
const MAX_PIXELS: usize = 1 << 30;

/// With the defaults of transformers' `Qwen3VLVisionConfig` and `Qwen3VLConfig`.
fn qwen3_vl(root: &Fields, text: &Fields, tower: &Fields) -> Result<VisionConfig> {
    refuse_unlike(tower, "hidden_act", &["gelu_pytorch_tanh"])?;
    let types = ["qwen3_vl_vision", "qwen3_vl", "qwen3_vl_moe_vision", "qwen3_vl_moe"];
    refuse_unlike(tower, "model_type", &types)?;
    for (name, expected) in [("in_channels", CHANNELS), ("spatial_merge_size", 2), ("temporal_patch_size", 2)] {
        if let Some(found) = tower.size(name, limits::HIDDEN_SIZE)?.filter(|found| *found != expected) {
            return Err(tower.error(name, &format!("is {found}, expected {expected}")));
        }
    }
    let size =
        |name: &str, max: usize, default: usize| Ok::<_, CompileError>(tower.size(name, max)?.unwrap_or(default));
    let positions = size("num_position_embeddings", limits::IMAGE_SIZE * limits::IMAGE_SIZE, 2304)?;
    let token = |name: &str, default: u32| {
        Ok::<_, CompileError>(root.token_ids(name)?.and_then(|ids| ids.first().copied()).unwrap_or(default))
    };
    let mut vision = VisionConfig {
        hidden_size: size("hidden_size", limits::HIDDEN_SIZE, 1152)?,
        intermediate_size: size("intermediate_size", limits::INTERMEDIATE_SIZE, 4304)?,
        layers: size("depth", limits::LAYERS, 27)?,
        heads: size("num_heads", limits::HEADS, 16)?,
        image_size: 0,
        patch_size: size("patch_size", limits::PATCH_SIZE, 16)?,
        image_rows: 0,
        eps: 1e-6,
        mean: [0.5; CHANNELS],
        deviation: [0.5; CHANNELS],
        row_token: token("image_token_id", 151_655)?,
        begin_token: token("vision_start_token_id", 151_652)?,
        end_token: token("vision_end_token_id", 151_653)?,
        grid: Some(GridConfig {
            positions: positions.isqrt(),
            feature_layers: whole_numbers(tower, "deepstack_visual_indexes")?.unwrap_or(vec![8, 16, 24]),
            min_pixels: 1,
            max_pixels: 1,
            sections: rope_sections(text)?,
        }),
    };
    vision.set_pixels(GRID_PIXELS);
    Ok(vision)
}

fn whole_numbers(fields: &Fields, name: &str) -> Result<Option<Vec<usize>>> {
    Ok(fields.numbers(name)?.map(|found| found.into_iter().map(|number| number as usize).collect()))
}

/// Rotary pairs of a text model whose positions are an image's rows from the top, and from the left, by its `mrope_section`.
pub(in super::super) fn rope_sections(text: &Fields) -> Result<[usize; 2]> {
    let rope = match text.object("rope_parameters")? {
        Some(rope) => Some(rope),
        None => text.object("rope_scaling")?,
    };
    let written = rope.as_ref().map_or(Ok(None), |rope| whole_numbers(rope, "mrope_section"))?;
    match written.as_deref() {
        None => Ok([20, 20]),
        Some(&[_, down, across]) => Ok([down, across]),
        Some(found) => {
            Err(text.error("mrope_section", &format!("is {found:?}, expected three numbers of rotary pairs")))
        }
    }
}

/// transformers' numbers of Pillow's filters.
const BILINEAR: f64 = 2.0;
const BICUBIC: f64 = 3.0;

/// Refuses fields by which pictures become other numbers than here.
fn refuse_other_processing(processor: &Fields, vision: &VisionConfig) -> Result<()> {
    for (name, expected) in
        [("do_resize", true), ("do_rescale", true), ("do_normalize", true), ("do_pan_and_scan", false)]
    {
        if let Some(found) = processor.flag(name)?.filter(|found| *found != expected) {
            return Err(processor.error(name, &format!("is {found}, and pictures are read with {expected} alone")));
        }
    }
    let filter = if vision.grid.is_some() { BICUBIC } else { BILINEAR };
    for (name, expected) in [("resample", filter), ("rescale_factor", 1.0 / 255.0)] {
        if let Some(found) = processor.number(name)?.filter(|found| (found - expected).abs() > 1e-6) {
            return Err(processor.error(name, &format!("is {found}, and pictures are read with {expected} alone")));
        }
    }
    Ok(())
}

/// Reads how pixels become numbers from the folder's configuration of its image processor, and how many there are.
pub(in super::super) fn read_processor(processor: &Fields, vision: &mut VisionConfig) -> Result<()> {
    refuse_other_processing(processor, vision)?;
    if vision.grid.is_some() {
        // As in transformers, the older names, beside `size`, are taken where both are there.
        let size = processor.object("size")?;
        let pixels = |name: &str, older: &str, default: usize| {
            let found = processor.size(older, MAX_PIXELS)?;
            let of_size = || size.as_ref().map_or(Ok(None), |size| size.size(name, MAX_PIXELS));
            Ok::<_, CompileError>(found.map_or_else(of_size, |found| Ok(Some(found)))?.unwrap_or(default))
        };
        let fewest = pixels("shortest_edge", "min_pixels", GRID_PIXELS[0])?;
        vision.set_pixels([fewest, pixels("longest_edge", "max_pixels", GRID_PIXELS[1])?]);
    }
    for (name, values) in [("image_mean", &mut vision.mean), ("image_std", &mut vision.deviation)] {
        let Some(found) = processor.numbers(name)? else { continue };
        let found: Vec<f32> = found.into_iter().map(|number| number as f32).collect();
        *values = found[..].try_into().map_err(|_| {
            processor.error(name, &format!("has {} numbers, expected one for each of {CHANNELS} channels", found.len()))
        })?;
    }
    Ok(())
}
