//! A GGUF file as a [`Checkpoint`].
//!
//! ```text
//!   bytes ─ reader ─► Gguf { metadata, tensors } ┬─ tokenizer ─► TokenizerSection
//!                                                ├─ config ────► config.json ─► ModelConfig
//!                                                └─ tensors ───► canonical name → place in the file
//! ```
//!
//! Everything is checked by [`parse`], which gets bytes only; [`open`] adds the memory map. blocks.rs is used later,
//! when a tensor is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use unicorn_artifact::{LicenseSection, MappedFile};

use self::keys::Architecture;
use super::source_bytes::{SourceBytes, SourcePart};
use super::tokenizer_trial::tried;
use super::{Checkpoint, config_json};
use crate::error::{CompileError, Result};

mod split;

mod reader;

mod cursor;
mod tensor_type;
mod value;

mod config;
mod gemma3n;
mod gemma4;
mod keys;
mod rope;

mod parsed;
mod projector;
mod tensors;

mod tokenizer;

pub(super) mod blocks;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod test_file;

pub use self::parsed::ParsedGguf;
pub(crate) use self::projector::add_projector;
pub use self::projector::parse_projector;
pub(crate) use self::split::part_of;

/// Opens the GGUF file at `path`, with the other parts of a model that is split; weights stay in the memory maps until they are
/// read.
pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    let paths = split::parts(path)?;
    let map = |path: &PathBuf| MappedFile::open(path).map(Arc::new).map_err(CompileError::io(path));
    let maps = paths.iter().map(map).collect::<Result<Vec<Arc<MappedFile>>>>()?;
    let parts: Vec<(&Path, &[u8])> = maps.iter().map(|map| (map.path(), map.bytes())).collect();
    let parsed = parse_parts(&parts)?;
    if !parsed.tokenizer.tokenizer_json.is_empty() {
        tried(&parsed.tokenizer.tokenizer_json).map_err(|what| CompileError::malformed(path, what))?;
    }
    Ok(Checkpoint {
        source_bytes: parsed.source_bytes(),
        config: parsed.config,
        tensors: parsed.tensors.into_iter().map(|(name, place)| (name, place.tensor(&maps))).collect(),
        tokenizer: parsed.tokenizer,
        license: parsed.license,
        skipped: parsed.skipped,
        skipped_adapter_modules: 0,
        predictor_left_out: parsed.predictor_left_out,
        config_json: parsed.config_json,
        source: source(&maps),
        added_files: Vec::new(),
    })
}

/// One file, or the parts of a split model by name.
fn source(maps: &[Arc<MappedFile>]) -> SourceBytes {
    if let [only] = maps {
        return SourceBytes::Whole(SourcePart::Mapped(Arc::clone(only)));
    }
    let name = |map: &MappedFile| map.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    SourceBytes::Named(maps.iter().map(|map| (name(map), SourcePart::Mapped(Arc::clone(map)))).collect())
}

/// Checks every part of a GGUF file's `bytes`. A pure function: `path` only names the file in errors.
///
/// # Errors
/// For every input that is not a supported model; no input makes it panic.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<ParsedGguf> {
    parse_parts(&[(path, bytes)])
}

/// Checks the files of a model, in order.
fn parse_parts(parts: &[(&Path, &[u8])]) -> Result<ParsedGguf> {
    let (path, _) = parts[0];
    let gguf = split::read(parts)?;
    let architecture = Architecture::of(&gguf)?;
    let tokenizer = tokenizer::read(&gguf)?;
    let config_json = config::config_json(&gguf, architecture, &tokenizer)?;
    let mut config = config_json::model_config(path, &config_json)?;
    config.architecture = architecture.name().to_string();
    for rope in &mut config.ropes {
        // config.json has Llama 3's divisors as a LongRoPE with the same list twice.
        rope.long.take_if(|long| long.inv_freq == rope.inv_freq);
    }
    let head = config::head(&gguf, architecture, config.layers.len())?;
    let predictor_left_out = head.and_then(|head| config.add_predictor(head).err());
    let (tensors, skipped) = tensors::locate(&gguf, architecture, &config)?;
    config.kept_codes = tensors.iter().filter_map(|(name, place)| Some((name.clone(), place.kept_codes()?))).collect();
    let license = license(&gguf)?;
    Ok(ParsedGguf { config, config_json, tokenizer, license, skipped, predictor_left_out, tensors })
}

/// `general.license` is an SPDX expression; `general.license.name` its name for people, where it has no SPDX identifier.
fn license(gguf: &reader::Gguf) -> Result<Option<LicenseSection>> {
    let string = |key: &str| Ok(gguf.string(key)?.map(str::to_owned));
    let id = string("general.license")?.filter(|id| id != "other");
    let name = match id {
        Some(id) => Some(id),
        None => string("general.license.name")?,
    };
    Ok(LicenseSection { name, link: string("general.license.link")?, text: None }.or_none())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::test_file::{TestFile, TestValue};
    use super::*;
    use crate::import::{Skipped, Tensor};

    fn opened(file: &TestFile) -> Checkpoint {
        let mut on_disk = tempfile::NamedTempFile::new().unwrap();
        on_disk.write_all(&file.bytes()).unwrap();
        open(on_disk.path()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// First column of every row, by the row's place in the source: the test file's elements count up.
    fn source_rows(tensor: &Tensor) -> Vec<usize> {
        let mut elements = vec![0.0; tensor.rows * tensor.cols];
        tensor.read_rows(0..tensor.rows, &mut elements);
        elements.chunks(tensor.cols).map(|row| row[0] as usize / tensor.cols).collect()
    }

    #[test]
    fn llama_comes_back_with_whole_heads() {
        let mut file = TestFile::model("llama");
        file.add_f32_tensor("v.patch_embd.weight", vec![4]);
        let checkpoint = opened(&file);
        assert_eq!(source_rows(&checkpoint.tensors["layers.0.self_attn.q_proj.weight"]), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(source_rows(&checkpoint.tensors["layers.0.self_attn.v_proj.weight"]), [0, 1, 2, 3]);
        assert_eq!(checkpoint.config.architecture, "llama");
        assert!(!checkpoint.config.tied_embeddings);
        assert_eq!(checkpoint.skipped, Skipped { tensors: 1, bytes: 16 });
        assert_eq!(checkpoint.tokenizer.tokenizer_json, "");
        assert_eq!(checkpoint.config_json["rms_norm_eps"], 1e-5);
        assert_eq!(checkpoint.config_json["eos_token_id"], serde_json::Value::Null);
    }

    #[test]
    fn the_license_comes_from_the_metadata() {
        let mut file = TestFile::model("llama");
        assert_eq!(opened(&file).license, None);
        file.set("general.license", TestValue::String("other"));
        file.set("general.license.name", TestValue::String("gemma"));
        file.set("general.license.link", TestValue::String("https://example.com/terms"));
        let license = opened(&file).license.map(|license| license.to_string());
        assert_eq!(license.as_deref(), Some("gemma, https://example.com/terms"));
        file.set("general.license", TestValue::String("mit"));
        assert_eq!(opened(&file).license.and_then(|license| license.name).as_deref(), Some("mit"));
    }

    #[test]
    fn llama_3_divides_its_frequencies() {
        let mut file = TestFile::model("llama");
        file.add_f32_tensor("rope_freqs.weight", vec![2]);
        file.tensor("rope_freqs.weight").data =
            [1.0f32, 8.0].iter().flat_map(|divisor| divisor.to_le_bytes()).collect();
        let [rope] = &opened(&file).config.ropes[..] else { panic!("one rotary embedding for all layers") };
        assert_eq!(rope.inv_freq, [1.0, 0.01 / 8.0]);
        assert_eq!((rope.attention_factor, rope.long.is_none()), (1.0, true));
    }

    /// A model whose queries, keys and values are one matrix, and gate and up another.
    fn fused(architecture: &str) -> TestFile {
        let mut file = TestFile::model(architecture);
        for part in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
            file.remove_tensor(&format!("blk.0.{part}.weight"));
        }
        file.add_f32_tensor("blk.0.attn_qkv.weight", vec![8, 16]);
        file.add_f32_tensor("blk.0.ffn_up.weight", vec![8, 32]);
        file
    }

    #[test]
    fn phi3_comes_apart() {
        let file = fused("phi3");
        let checkpoint = opened(&file);
        for (part, first_row, rows) in [
            ("self_attn.q_proj", 0, 8),
            ("self_attn.k_proj", 8, 4),
            ("self_attn.v_proj", 12, 4),
            ("mlp.gate_proj", 0, 16),
            ("mlp.up_proj", 16, 16),
        ] {
            let expected: Vec<usize> = (first_row..first_row + rows).collect();
            assert_eq!(source_rows(&checkpoint.tensors[&format!("layers.0.{part}.weight")]), expected, "{part}");
        }
        let whole_file: u64 = file.tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
        assert_eq!(checkpoint.source_bytes, whole_file);
    }

    #[test]
    fn a_fused_bias_comes_apart() {
        let mut file = fused("chatglm");
        file.add_f32_tensor("blk.0.attn_qkv.bias", vec![16]);
        let checkpoint = opened(&file);
        for (part, first, count) in [("q_proj", 0, 8), ("k_proj", 8, 4), ("v_proj", 12, 4)] {
            let bias = &checkpoint.tensors[&format!("layers.0.self_attn.{part}.bias")];
            let mut elements = vec![0.0; count];
            bias.read_rows(0..1, &mut elements);
            let expected: Vec<f32> = (first..first + count).map(|element| element as f32).collect();
            assert_eq!(elements, expected, "{part}");
        }
    }

    #[test]
    fn gemma_3_has_windows_two_ropes_and_norms_without_their_one() {
        let mut file = TestFile::model("gemma3");
        file.set("gemma3.attention.sliding_window", TestValue::U32(16));
        file.set("gemma3.rope.scaling.type", TestValue::String("linear"));
        file.set("gemma3.rope.scaling.factor", TestValue::F32(8.0));
        file.remove_tensor("output.weight");
        for (norm, size) in [("post_attention_norm", 8), ("post_ffw_norm", 8), ("attn_q_norm", 4), ("attn_k_norm", 4)] {
            file.add_f32_tensor(&format!("blk.0.{norm}.weight"), vec![size]);
        }
        let checkpoint = opened(&file);
        let mut norm = [0.0; 8];
        checkpoint.tensors["norm.weight"].read_rows(0..1, &mut norm);
        assert_eq!(norm, [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let config = &checkpoint.config;
        assert_eq!((config.norm_offset, config.tied_embeddings, config.query_scale), (1.0, true, 0.5));
        assert_eq!(config.layers[0].window, Some(16));
        // Sliding layers have a base of their own and no scaling.
        assert_eq!(config.ropes[config.layers[0].rope.expect("it is rotated")].inv_freq, [1.0, 0.01]);
        assert_eq!(checkpoint.config_json["rope_scaling"]["factor"], 8.0);
    }

    /// A layer with a convolution in place of attention.
    fn lfm2() -> TestFile {
        let mut file = TestFile::model("lfm2");
        for part in ["blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output", "output_norm", "output"] {
            file.remove_tensor(&format!("{part}.weight"));
        }
        file.add_f32_tensor("token_embd_norm.weight", vec![8]);
        file.add_f32_tensor("blk.0.shortconv.conv.weight", vec![3, 8]);
        file.add_f32_tensor("blk.0.shortconv.in_proj.weight", vec![8, 24]);
        file.add_f32_tensor("blk.0.shortconv.out_proj.weight", vec![8, 8]);
        file.set("lfm2.attention.head_count_kv", TestValue::Integers(&[0]));
        file.set("lfm2.shortconv.l_cache", TestValue::U32(3));
        file
    }

    #[test]
    fn an_lfm2_layer_without_heads_of_keys_has_a_convolution() {
        let checkpoint = opened(&lfm2());
        let config = &checkpoint.config;
        assert_eq!((config.short_conv_taps, config.layers[0].is_recurrent), (Some(3), true));
        assert_eq!((config.intermediate_size, config.rms_norm_eps, config.tied_embeddings), (16, 1e-5, true));
        assert_eq!(checkpoint.tensors["layers.0.conv.conv.weight"].cols, 3);
        assert_eq!(checkpoint.tensors["norm.weight"].cols, 8);
        assert_eq!(checkpoint.config_json["layer_types"][0], "conv");
    }

    #[test]
    fn heads_of_keys_that_no_layer_can_have_are_refused() {
        for (heads, expected) in [
            (TestValue::Integers(&[0, 1]), "head_count_kv has 2 elements, expected one for each of 1 layers"),
            (TestValue::Integers(&[-1]), "head_count_kv has an element that is no whole number from 0 on"),
            (TestValue::Floats(&[1.0]), "head_count_kv has an element that is no whole number from 0 on"),
        ] {
            let mut file = lfm2();
            file.set("lfm2.attention.head_count_kv", heads);
            let error = parse(Path::new("x.gguf"), &file.bytes()).err().expect("it is refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
