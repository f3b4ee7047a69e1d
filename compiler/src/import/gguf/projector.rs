//! A vision tower with its projector in a GGUF file of their own, beside that of the text model, as llama.cpp's converter writes those of
//! Gemma 3 and Qwen3-VL.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;
use unicorn_artifact::MappedFile;

use super::parsed::ParsedGguf;
use super::reader::Gguf;
use super::tensors::TensorPlace;
use super::value::Value;
use crate::error::{CompileError, Result};
use crate::import::config_json::{GRID_PIXELS, rope_sections};
use crate::import::json::Fields;
use crate::import::source_bytes::SourcePart;
use crate::import::source_layout::{RowOrder, StoredAs};
use crate::import::vision_config::{CHANNELS, GridConfig, VisionConfig};
use crate::import::{Checkpoint, ModelConfig, vision};

/// What a tower takes from the text model.
#[derive(Clone, Copy, Debug)]
struct OfText {
    /// The tokens of a text before, for and behind the rows of an image.
    begin: u32,
    row: u32,
    end: u32,
    /// See [`GridConfig::sections`].
    sections: [usize; 2],
    /// Fewest and most pixels of an image of any size.
    pixels: [usize; 2],
}

/// A kind of projector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Projector {
    Gemma3,
    Qwen3Vl,
}

/// llama.cpp's names of projectors that are supported.
const PROJECTORS: [(&str, Projector); 2] = [("gemma3", Projector::Gemma3), ("qwen3vl_merger", Projector::Qwen3Vl)];

/// Gives a model the vision tower and projector in the GGUF file at `path`, instead of those that it may have.
///
/// # Errors
/// When the file holds none that is supported, or one for another model, and when the tokenizer has no tokens of images.
pub(crate) fn add_projector(checkpoint: &mut Checkpoint, path: &Path) -> Result<()> {
    let map = MappedFile::open(path).map(Arc::new).map_err(CompileError::io(path))?;
    if !map.bytes().starts_with(b"GGUF") {
        let what =
            "is no GGUF file, expected the one with the vision tower, such as mmproj-model-f16.gguf beside the model's";
        return Err(CompileError::malformed(path, what));
    }
    let gguf = Gguf::read(path, map.bytes())?;
    let of_text = OfText::of(checkpoint, path, projector(&gguf)?)?;
    checkpoint.leave_out_vision();
    let places = places_of(&gguf, &mut checkpoint.config, of_text)?;
    checkpoint.source_bytes += places.values().map(|place| place.source.len_bytes as u64).sum::<u64>();
    let of_file = [Arc::clone(&map)];
    checkpoint.tensors.extend(places.into_iter().map(|(name, place)| (name, place.tensor(&of_file))));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    checkpoint.added_files.push((format!("projector {name}"), SourcePart::Mapped(map)));
    Ok(())
}

/// Checks the `bytes` of such a file for a text model. A pure function: `path` only names the file in errors.
///
/// # Errors
/// For every input that is not a supported tower; no input makes it panic.
pub fn parse_projector(path: &Path, bytes: &[u8], text: &mut ParsedGguf) -> Result<()> {
    let of_text = OfText { begin: 0, row: 0, end: 0, sections: [1, 1], pixels: GRID_PIXELS };
    let places = places_of(&Gguf::read(path, bytes)?, &mut text.config, of_text);
    places.map(|places| text.tensors.extend(places))
}

/// Checks such a file and gives `config` its tower. Returns the place of each tensor by canonical name.
fn places_of(gguf: &Gguf, config: &mut ModelConfig, of_text: OfText) -> Result<BTreeMap<String, TensorPlace>> {
    config.vision = Some(tower(gguf, of_text)?);
    config.check().map_err(|what| gguf.malformed(what))?;
    locate(gguf, config)
}

impl OfText {
    /// As the tower has it that a model may have; without one, with the tokens that the family's tokenizers name. A Gemma that lacks the
    /// token for a row, of which a text never shows anything, has its end there.
    fn of(checkpoint: &Checkpoint, path: &Path, projector: Projector) -> Result<OfText> {
        let sections = match projector {
            Projector::Gemma3 => [0; 2],
            Projector::Qwen3Vl => rope_sections(&Fields::root(path, &checkpoint.config_json)?)?,
        };
        if let Some(tower) = &checkpoint.config.vision {
            let pixels = tower.grid.as_ref().map_or(GRID_PIXELS, |grid| [grid.min_pixels, grid.max_pixels]);
            let [begin, row, end] = [tower.begin_token, tower.row_token, tower.end_token];
            return Ok(OfText { begin, row, end, sections, pixels });
        }
        let tokenizer: Json = serde_json::from_str(&checkpoint.tokenizer.tokenizer_json).unwrap_or_default();
        let id = |name: &str| {
            let mut added = tokenizer.get("added_tokens").and_then(Json::as_array).into_iter().flatten();
            let added = added.find(|token| token["content"] == name).and_then(|token| token["id"].as_u64());
            added.or_else(|| tokenizer.pointer("/model/vocab")?.get(name)?.as_u64()).and_then(|id| id.try_into().ok())
        };
        let required = |name: &str| {
            let what = || format!("is for a model whose tokenizer has {name}, and this one has none");
            id(name).ok_or_else(|| CompileError::malformed(path, what()))
        };
        let [begin, row, end] = match projector {
            Projector::Gemma3 => {
                let (begin, end) = (required("<start_of_image>")?, required("<end_of_image>")?);
                [begin, id("<image_soft_token>").unwrap_or(end), end]
            }
            Projector::Qwen3Vl => {
                [required("<|vision_start|>")?, required("<|image_pad|>")?, required("<|vision_end|>")?]
            }
        };
        Ok(OfText { begin, row, end, sections, pixels: GRID_PIXELS })
    }
}

/// The projector of a vision tower's file.
fn projector(gguf: &Gguf) -> Result<Projector> {
    let text = |key: &str| gguf.require(key, gguf.string(key)?);
    let architecture = text("general.architecture")?;
    if architecture != "clip" {
        return Err(gguf.malformed(format!("general.architecture is {architecture}, expected clip, a vision tower")));
    }
    let found = match gguf.string("clip.vision.projector_type")? {
        Some(projector) => projector,
        None => text("clip.projector_type")?,
    };
    let known = PROJECTORS.iter().find(|(name, _)| *name == found);
    known.map(|(_, projector)| *projector).ok_or_else(|| {
        let names = PROJECTORS.map(|(name, _)| name).join(" and ");
        unsupported(format!("projector {found} of the vision tower"), &names)
    })
}

fn unsupported(what: String, expected: &str) -> CompileError {
    CompileError::Unsupported { what, detail: format!("supported is {expected}; the text model alone can be compiled") }
}

/// What the file's tower computes, by the keys of llama.cpp's clip.cpp.
fn tower(gguf: &Gguf, of_text: OfText) -> Result<VisionConfig> {
    let projector = projector(gguf)?;
    if gguf.bool("clip.use_gelu")? == Some(false) {
        return Err(unsupported("activation of the vision tower".into(), "gelu"));
    }
    let size = |name: &str| {
        let key = format!("clip.vision.{name}");
        gguf.require(&key, gguf.unsigned(&key)?)
    };
    let (image_size, patch_size) = (size("image_size")?, size("patch_size")?);
    let pooled_side = gguf.unsigned("clip.vision.projector.scale_factor")?.unwrap_or(POOLED_SIDE);
    let across = image_size.checked_div(patch_size).and_then(|across| across.checked_div(pooled_side)).unwrap_or(0);
    let eps = "clip.vision.attention.layer_norm_epsilon";
    let layers = size("block_count")?;
    let mut vision = VisionConfig {
        hidden_size: size("embedding_length")?,
        intermediate_size: size("feed_forward_length")?,
        layers,
        heads: size("attention.head_count")?,
        image_size,
        patch_size,
        image_rows: across.saturating_mul(across),
        eps: gguf.require(eps, gguf.float(eps)?)? as f32,
        mean: channels(gguf, "clip.vision.image_mean")?,
        deviation: channels(gguf, "clip.vision.image_std")?,
        begin_token: of_text.begin,
        row_token: of_text.row,
        end_token: of_text.end,
        grid: None,
    };
    if projector == Projector::Qwen3Vl {
        let merged = "clip.vision.spatial_merge_size";
        if let Some(side) = gguf.unsigned(merged)?.filter(|side| *side != 2) {
            return Err(gguf.malformed(format!("{merged} is {side}, expected 2")));
        }
        vision.grid = Some(GridConfig {
            positions: image_size / patch_size.max(1),
            feature_layers: feature_layers(gguf, layers)?,
            min_pixels: 1,
            max_pixels: 1,
            sections: of_text.sections,
        });
        vision.image_size = 0;
        vision.set_pixels(of_text.pixels);
    }
    Ok(vision)
}

/// Layers with features: a bool for each layer.
fn feature_layers(gguf: &Gguf, layers: usize) -> Result<Vec<usize>> {
    let key = "clip.vision.is_deepstack_layers";
    let flags = gguf.require(key, gguf.array(key)?)?;
    if flags.len() != layers {
        let found = flags.len();
        return Err(gguf.malformed(format!("{key} has {found} elements, expected one for each of {layers} layers")));
    }
    Ok(flags.values().enumerate().filter(|(_, flag)| *flag == Value::Bool(true)).map(|(layer, _)| layer).collect())
}

/// Patches of a row of the stream from left to right, where the file does not tell.
const POOLED_SIDE: usize = 4;

fn channels(gguf: &Gguf, key: &str) -> Result<[f32; CHANNELS]> {
    let numbers = gguf.require(key, gguf.array(key)?)?;
    let found: Vec<f32> = numbers
        .values()
        .take(CHANNELS + 1)
        .filter_map(|value| Value::as_f64(&value))
        .map(|value| value as f32)
        .collect();
    found[..].try_into().map_err(|_| gguf.malformed(format!("{key} is not a number for each of {CHANNELS} channels")))
}

/// Finds every tensor of the tower. Others, such as those of a tower for sound, are nothing to it.
fn locate(gguf: &Gguf, config: &ModelConfig) -> Result<BTreeMap<String, TensorPlace>> {
    let are_swapped = are_swapped(gguf, config);
    let mut places = BTreeMap::new();
    for (canonical, shape) in config.tensor_shapes().into_iter().filter(|(name, _)| VisionConfig::has(name)) {
        let name = match config.vision.as_ref().and_then(|vision| vision.grid.as_ref()) {
            Some(grid) => grid_source_name(&canonical, grid),
            None => source_name(&canonical, are_swapped),
        };
        let Some(source) = gguf.tensors.get(name.as_str()) else {
            return Err(CompileError::MissingTensor { name, hint: format!(", needed for {canonical}") });
        };
        let stack = vision::stack(config, &canonical).or_else(|| vision::frame(config, &canonical));
        let expected = stack.as_ref().map_or(&shape, |stack| &stack.shape);
        if source.shape != *expected {
            return Err(CompileError::TensorShape { name, expected: expected.clone(), found: source.shape.clone() });
        }
        let (rows, cols) = if let [rows, cols] = shape[..] { (rows, cols) } else { (1, shape[0]) };
        let row_order = match stack {
            None => RowOrder::Plain,
            Some(_) if canonical.contains(PROJECTION) => RowOrder::Transposed,
            Some(_) if source.dtype.block().0 > 1 => {
                return Err(gguf.malformed(format!("{name} is in blocks, expected F32, F16 or BF16")));
            }
            Some(stack) => RowOrder::Strided(stack.parts[0].1),
        };
        // The sum is in the file, as for the norms of the text model.
        let stored_as = if canonical.contains(NORM) { StoredAs::Plus(1.0) } else { StoredAs::Itself };
        let place =
            TensorPlace { source_name: name, source: source.clone(), first_row: 0, rows, cols, row_order, stored_as };
        places.insert(canonical, place);
    }
    Ok(places)
}

/// Files of before May 2025 call the first matrix of a layer `ffn_down`: clip.cpp tells so by its shape.
fn are_swapped(gguf: &Gguf, config: &ModelConfig) -> bool {
    let Some(tower) = &config.vision else { return false };
    let down = gguf.tensors.get("v.blk.0.ffn_down.weight");
    tower.hidden_size != tower.intermediate_size
        && down.is_some_and(|down| down.shape == [tower.intermediate_size, tower.hidden_size])
}

const PROJECTION: &str = "projector.mm_input_projection";
const NORM: &str = "projector.mm_soft_emb_norm";

/// The file's name of a canonical tensor.
fn source_name(canonical: &str, are_swapped: bool) -> String {
    let (first, second) = if are_swapped { ("ffn_down", "ffn_up") } else { ("ffn_up", "ffn_down") };
    let theirs = [
        ("vision.", ""),
        ("encoder.layers.", "v.blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.out_proj", "attn_out"),
        ("mlp.fc1", first),
        ("mlp.fc2", second),
        ("layer_norm1", "ln1"),
        ("layer_norm2", "ln2"),
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("post_layernorm", "v.post_ln"),
        (PROJECTION, "mm.input_projection"),
        (NORM, "mm.soft_emb_norm"),
    ];
    theirs.into_iter().fold(canonical.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
}

/// The file's name of a canonical tensor of a tower for images of any size: features have the number of their layer.
fn grid_source_name(canonical: &str, grid: &GridConfig) -> String {
    let name = canonical.strip_prefix("vision.").unwrap_or(canonical);
    if let Some((index, part)) = name.strip_prefix("deepstack_merger_list.").and_then(|rest| rest.split_once('.')) {
        let layer = index.parse().ok().and_then(|index: usize| grid.feature_layers.get(index));
        let layer = layer.expect("a merger of each layer with features");
        return format!("v.deepstack.{layer}.{}", part.replace("linear_fc", "fc"));
    }
    let theirs = [
        ("patch_embed.frame.0.weight", "v.patch_embd.weight"),
        ("patch_embed.frame.1.weight", "v.patch_embd.weight.1"),
        ("patch_embed.proj", "v.patch_embd"),
        ("pos_embed", "v.position_embd"),
        ("merger.norm", "v.post_ln"),
        ("merger.linear_fc1", "mm.0"),
        ("merger.linear_fc2", "mm.2"),
        ("blocks.", "v.blk."),
        (".norm", ".ln"),
        ("attn.qkv", "attn_qkv"),
        ("attn.proj", "attn_out"),
        ("mlp.linear_fc1", "ffn_up"),
        ("mlp.linear_fc2", "ffn_down"),
    ];
    theirs.into_iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::super::test_file::{TestFile, TestValue};
    use super::*;
    use crate::import::huggingface;

    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny/gemma3-vision")
    }

    fn refusal(file: &[u8]) -> String {
        let mut config = huggingface::open(&folder()).unwrap().config;
        let of_text = OfText { begin: 300, row: 302, end: 301, sections: [1, 1], pixels: GRID_PIXELS };
        let mut places = |file| places_of(&Gguf::read(Path::new("mmproj.gguf"), file)?, &mut config, of_text);
        places(file).expect_err("it is refused").to_string()
    }

    /// Rows of every tensor are those of the folder, of which llama.cpp's converter made the file.
    #[test]
    fn a_tower_of_the_converter_is_that_of_the_folder() {
        for name in ["gemma3-vision", "qwen3-vl"] {
            compare(&folder().with_file_name(name));
        }
    }

    fn compare(folder: &Path) {
        let whole = huggingface::open(folder).unwrap();
        let mut other = huggingface::open(folder).unwrap();
        add_projector(&mut other, &folder.join("mmproj.gguf")).unwrap();
        assert_eq!(other.config.vision, whole.config.vision);
        assert!(whole.tensors.keys().eq(other.tensors.keys()));
        for (name, expected) in &whole.tensors {
            let found = &other.tensors[name];
            let all = |tensor: &crate::import::Tensor| {
                let mut values = vec![0.0; tensor.rows * tensor.cols];
                tensor.read_rows(0..tensor.rows, &mut values);
                values
            };
            assert_eq!((found.rows, found.cols), (expected.rows, expected.cols), "{name}");
            // The projection is f16 there, of which the smallest have fewer bits than bf16.
            let is_same =
                all(found).iter().zip(&all(expected)).all(|(found, expected)| (found - expected).abs() < 1e-7);
            assert!(is_same, "{name}");
        }
    }

    #[test]
    fn a_first_matrix_that_is_called_the_second_is_found_by_its_shape() {
        assert_eq!(source_name("vision.encoder.layers.1.mlp.fc1.bias", false), "v.blk.1.ffn_up.bias");
        assert_eq!(source_name("vision.encoder.layers.1.mlp.fc1.bias", true), "v.blk.1.ffn_down.bias");
        assert_eq!(source_name("vision.projector.mm_soft_emb_norm.weight", false), "mm.soft_emb_norm.weight");
    }

    #[test]
    fn features_have_the_number_of_their_layer() {
        let grid =
            GridConfig { positions: 6, feature_layers: vec![5, 11], min_pixels: 1, max_pixels: 1, sections: [2, 2] };
        for (ours, theirs) in [
            ("vision.deepstack_merger_list.1.linear_fc2.bias", "v.deepstack.11.fc2.bias"),
            ("vision.merger.norm.weight", "v.post_ln.weight"),
            ("vision.blocks.3.norm2.bias", "v.blk.3.ln2.bias"),
            ("vision.patch_embed.frame.1.weight", "v.patch_embd.weight.1"),
        ] {
            assert_eq!(grid_source_name(ours, &grid), theirs);
        }
    }

    /// What a tower needs of a text model, by llama.cpp's keys.
    #[test]
    fn a_text_model_has_sections_of_rotary_pairs() {
        let path = folder().join("../../gguf/qwen3-vl.gguf");
        let parsed = parse(&path, &std::fs::read(&path).unwrap()).unwrap();
        let text = Fields::root(&path, &parsed.config_json).unwrap();
        assert_eq!(rope_sections(&text).unwrap(), [2, 2]);
    }

    #[test]
    fn other_files_are_refused_by_what_they_are() {
        assert!(refusal(&TestFile::model("llama").bytes()).contains("is llama, expected clip, a vision tower"));
        let mut file = TestFile::model("clip");
        file.set("clip.projector_type", TestValue::String("mlp"));
        assert!(refusal(&file.bytes()).contains("projector mlp of the vision tower"));
        file.set("clip.projector_type", TestValue::String("gemma3"));
        assert!(refusal(&file.bytes()).contains("clip.vision.image_size"));
        let whole = std::fs::read(folder().join("mmproj.gguf")).unwrap();
        for len in (0..whole.len()).step_by(1009) {
            refusal(&whole[..len]);
        }
    }
}
