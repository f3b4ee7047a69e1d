//! A vision tower and Gemma 3's projector in a GGUF file of their own, beside that of the text model, as llama.cpp's converter writes them.

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
use crate::import::source_bytes::SourcePart;
use crate::import::source_layout::{RowOrder, StoredAs};
use crate::import::vision_config::{CHANNELS, VisionConfig};
use crate::import::{Checkpoint, ModelConfig, vision};

/// The tokens of a text before, for and behind the rows of an image.
#[derive(Clone, Copy, Debug)]
struct ImageTokens {
    begin: u32,
    row: u32,
    end: u32,
}

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
    let tokens = ImageTokens::of(checkpoint, path)?;
    checkpoint.leave_out_vision();
    let places = places_of(path, map.bytes(), &mut checkpoint.config, tokens)?;
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
    let places = places_of(path, bytes, &mut text.config, ImageTokens { begin: 0, row: 0, end: 0 });
    places.map(|places| text.tensors.extend(places))
}

/// Checks the `bytes` of such a file and gives `config` its tower. Returns the place of each tensor by canonical name. `path` only names
/// the file in errors.
fn places_of(
    path: &Path,
    bytes: &[u8],
    config: &mut ModelConfig,
    tokens: ImageTokens,
) -> Result<BTreeMap<String, TensorPlace>> {
    let gguf = Gguf::read(path, bytes)?;
    config.vision = Some(tower(&gguf, tokens)?);
    config.check().map_err(|what| gguf.malformed(what))?;
    locate(&gguf, config)
}

impl ImageTokens {
    /// Those of the tower that a model has; without one, those that Gemma's tokenizers name. One that lacks the token for a row, of which a
    /// text never shows anything, has its end there.
    fn of(checkpoint: &Checkpoint, path: &Path) -> Result<ImageTokens> {
        if let Some(tower) = &checkpoint.config.vision {
            return Ok(ImageTokens { begin: tower.begin_token, row: tower.row_token, end: tower.end_token });
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
        let (begin, end) = (required("<start_of_image>")?, required("<end_of_image>")?);
        Ok(ImageTokens { begin, row: id("<image_soft_token>").unwrap_or(end), end })
    }
}

/// What the file's tower computes, by the keys of llama.cpp's clip.cpp.
fn tower(gguf: &Gguf, tokens: ImageTokens) -> Result<VisionConfig> {
    let text = |key: &str| gguf.require(key, gguf.string(key)?);
    let architecture = text("general.architecture")?;
    if architecture != "clip" {
        return Err(gguf.malformed(format!("general.architecture is {architecture}, expected clip, a vision tower")));
    }
    let unsupported = |what: String, expected: &str| {
        Err(CompileError::Unsupported {
            what,
            detail: format!("supported is {expected}; the text model alone can be compiled"),
        })
    };
    let projector = match gguf.string("clip.vision.projector_type")? {
        Some(projector) => projector,
        None => text("clip.projector_type")?,
    };
    if projector != "gemma3" {
        return unsupported(format!("projector {projector} of the vision tower"), "gemma3");
    }
    if gguf.bool("clip.use_gelu")? == Some(false) {
        return unsupported("activation of the vision tower".into(), "gelu");
    }
    let size = |name: &str| {
        let key = format!("clip.vision.{name}");
        gguf.require(&key, gguf.unsigned(&key)?)
    };
    let (image_size, patch_size) = (size("image_size")?, size("patch_size")?);
    let pooled_side = gguf.unsigned("clip.vision.projector.scale_factor")?.unwrap_or(POOLED_SIDE);
    let across = image_size.checked_div(patch_size).and_then(|across| across.checked_div(pooled_side)).unwrap_or(0);
    let eps = "clip.vision.attention.layer_norm_epsilon";
    Ok(VisionConfig {
        hidden_size: size("embedding_length")?,
        intermediate_size: size("feed_forward_length")?,
        layers: size("block_count")?,
        heads: size("attention.head_count")?,
        image_size,
        patch_size,
        image_rows: across.saturating_mul(across),
        eps: gguf.require(eps, gguf.float(eps)?)? as f32,
        mean: channels(gguf, "clip.vision.image_mean")?,
        deviation: channels(gguf, "clip.vision.image_std")?,
        begin_token: tokens.begin,
        row_token: tokens.row,
        end_token: tokens.end,
    })
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
        let name = source_name(&canonical, are_swapped);
        let Some(source) = gguf.tensors.get(name.as_str()) else {
            return Err(CompileError::MissingTensor { name, hint: format!(", needed for {canonical}") });
        };
        let stack = vision::stack(config, &canonical);
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
    let Some(tower) = config.vision else { return false };
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

#[cfg(test)]
mod tests {
    use super::super::test_file::{TestFile, TestValue};
    use super::*;
    use crate::import::huggingface;

    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny/gemma3-vision")
    }

    fn refusal(file: &[u8]) -> String {
        let mut config = huggingface::open(&folder()).unwrap().config;
        let tokens = ImageTokens { begin: 300, row: 302, end: 301 };
        places_of(Path::new("mmproj.gguf"), file, &mut config, tokens).expect_err("it is refused").to_string()
    }

    /// Rows of every tensor are those of the folder, of which llama.cpp's converter made the file.
    #[test]
    fn a_tower_of_the_converter_is_that_of_the_folder() {
        let whole = huggingface::open(&folder()).unwrap();
        let mut other = huggingface::open(&folder()).unwrap();
        add_projector(&mut other, &folder().join("mmproj.gguf")).unwrap();
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
