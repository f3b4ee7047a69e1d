//! From a Hugging Face folder to a [`Checkpoint`]: config.json, the weights that `model.safetensors` or its index
//! names and no other file, the tokenizer's files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use unicorn_artifact::TokenizerSection;

use super::checkpoint::{Checkpoint, Packed, Skipped, Tensor};
use super::config::{KeptCodes, ModelConfig};
use super::config_json;
use super::json::{Fields, parse_json};
use super::license;
use super::packed_fp4::{BLOCKS, PackedFp4, SCALES};
use super::packed_int4::{PackedInt4, Scheme};
use super::safetensors::{SafetensorsFile, StoredTensor};
use super::source_bytes::{SourceBytes, SourcePart};
use super::source_files::SourceFiles;
use super::source_layout::{Elements, RowOrder, SourceDType, StoredAs};
use super::source_names::{Role, parts_of, role_of, stacked_experts};
use super::strided;
use super::tokenizer;
use super::transposed;
use crate::error::{CompileError, Result};

/// Opens the folder. The content of its files is checked here; tensors are mapped and not read.
pub(super) fn open(folder: &Path) -> Result<Checkpoint> {
    let mut files = SourceFiles::new(folder);
    let config_path = folder.join("config.json");
    let config_json = parse_json(&config_path, &files.required("config.json")?)?;
    let mut config = config_json::model_config(&config_path, &config_json)?;
    let scheme = config_json::packing(&config_path, &config_json)?;
    let weights = Weights::open(&mut files)?;
    config.tied_embeddings |= config_json::head_may_be_missing(&config_path, &config_json)? && !weights.have_head();
    if config.vision.is_some() && !weights.have_tower() {
        config.vision = None;
    }
    if let Some(vision) = &mut config.vision
        && let Some(json) = files.optional_json(PROCESSOR_FILE)?
    {
        config_json::read_processor(&Fields::root(&files.path(PROCESSOR_FILE), &json)?, vision)?;
    }
    let FoundTensors { tensors, skipped, kept } = find_tensors(&config, &weights, scheme.as_ref())?;
    config.kept_codes = kept;
    let tokenizer = tokenizer::read(&mut files, &config, config_json::stop_ids(&config_path, &config_json)?)?;
    let source_bytes = tensors.values().map(Tensor::source_bytes).sum();
    let config_json = config_json::text_config(&config_path, &config_json, &config)?;
    let mapped = |(name, file): (&String, &SafetensorsFile)| (name.clone(), SourcePart::Mapped(file.map.clone()));
    let source = files.into_source(weights.files.iter().map(mapped));
    let license = license::of_folder(folder)?;
    let added_files = Vec::new();
    Ok(Checkpoint { config, tensors, tokenizer, license, skipped, config_json, source, added_files, source_bytes })
}

/// A checkpoint without weights or tokenizer: the shape that the config.json at `path` describes.
pub(super) fn of_config(path: &Path) -> Result<Checkpoint> {
    let bytes = std::fs::read(path).map_err(CompileError::io(path))?;
    let config_json = parse_json(path, &bytes)?;
    let mut config = config_json::model_config(path, &config_json)?;
    if config_json["quantization_config"]["quant_method"] == "mxfp4" {
        config.kept_codes = transposed::experts_as_fp4(&config);
    }
    let config_json = config_json::text_config(path, &config_json, &config)?;
    let source = SourceBytes::Whole(SourcePart::Read(bytes));
    Ok(Checkpoint { config_json, source, ..Checkpoint::without_weights(config, TokenizerSection::default()) })
}

/// The weight files, and which of them holds each tensor.
struct Weights {
    /// By file name.
    files: BTreeMap<String, SafetensorsFile>,
    /// Source name to file name.
    file_of_tensor: BTreeMap<String, String>,
}

const SINGLE_FILE: &str = "model.safetensors";
/// How the pixels of images become numbers.
const PROCESSOR_FILE: &str = "preprocessor_config.json";
const INDEX_FILE: &str = "model.safetensors.index.json";

impl Weights {
    /// Like transformers, takes the single file where a folder has both that and an index.
    fn open(files: &mut SourceFiles) -> Result<Weights> {
        if files.path(SINGLE_FILE).exists() {
            let file = SafetensorsFile::open(&files.path(SINGLE_FILE))?;
            let file_of_tensor = file.tensors.keys().map(|name| (name.clone(), SINGLE_FILE.to_owned())).collect();
            return Ok(Weights { files: BTreeMap::from([(SINGLE_FILE.to_owned(), file)]), file_of_tensor });
        }
        let Some(index) = files.optional_json(INDEX_FILE)? else {
            let what = format!("folder has no weights, expected {SINGLE_FILE} or {INDEX_FILE}; no other file is read");
            return Err(CompileError::malformed(&files.folder, what));
        };
        Weights::open_shards(files, &index)
    }

    fn open_shards(folder: &SourceFiles, index: &Value) -> Result<Weights> {
        let index_path = folder.path(INDEX_FILE);
        let root = Fields::root(&index_path, index)?;
        let weight_map =
            root.object("weight_map")?.ok_or_else(|| root.error("weight_map", "is missing, expected an object"))?;
        let mut files = BTreeMap::new();
        let mut file_of_tensor = BTreeMap::new();
        for tensor in weight_map.names() {
            let file_name =
                weight_map.text(tensor)?.ok_or_else(|| weight_map.error(tensor, "is null, expected a file name"))?;
            if Path::new(file_name).file_name() != Some(file_name.as_ref()) {
                let what = format!("is in {file_name:?}, expected the name of a file beside {INDEX_FILE}");
                return Err(weight_map.error(tensor, &what));
            }
            if !files.contains_key(file_name) {
                let path = folder.path(file_name);
                if !path.exists() {
                    return Err(CompileError::malformed(
                        &index_path,
                        format!("file {file_name}, named for tensor {tensor}, is missing from the folder"),
                    ));
                }
                files.insert(file_name.to_owned(), SafetensorsFile::open(&path)?);
            }
            if !files[file_name].tensors.contains_key(tensor) {
                return Err(CompileError::MissingTensor {
                    name: tensor.to_owned(),
                    hint: format!(" from {file_name}, where {INDEX_FILE} places it"),
                });
            }
            file_of_tensor.insert(tensor.to_owned(), file_name.to_owned());
        }
        Ok(Weights { files, file_of_tensor })
    }

    fn have_head(&self) -> bool {
        self.file_of_tensor.keys().any(|name| name.starts_with("lm_head.") || name.contains(".lm_head."))
    }

    /// Whether they have a vision tower: a model that was trained further may be its text model alone.
    fn have_tower(&self) -> bool {
        self.file_of_tensor.keys().any(|name| matches!(role_of(name), Role::Image(_)))
    }

    /// The tensor of this name, and the file that has it.
    fn find(&self, name: &str) -> Option<(&SafetensorsFile, &StoredTensor)> {
        let file = &self.files[self.file_of_tensor.get(name)?];
        Some((file, &file.tensors[name]))
    }

    fn searched(&self) -> String {
        match self.files.keys().collect::<Vec<_>>()[..] {
            [] => format!("{INDEX_FILE}, which names no file"),
            [only] => only.clone(),
            [first, .., last] => format!("the {} files {first} to {last}", self.files.len()),
        }
    }
}

struct FoundTensors {
    tensors: BTreeMap<String, Tensor>,
    skipped: Skipped,
    /// Formats of the matrices that the source has as codes of 4 bits.
    kept: BTreeMap<String, KeptCodes>,
}

/// Finds every tensor that the config requires, splits fused projections, and refuses tensors that belong to none.
fn find_tensors(config: &ModelConfig, weights: &Weights, scheme: Option<&Scheme>) -> Result<FoundTensors> {
    let expected = config.tensor_shapes();
    let mut found = FoundTensors { tensors: BTreeMap::new(), skipped: Skipped::default(), kept: BTreeMap::new() };
    let find = |name: &str| weights.find(name);
    for (source_name, file_name) in &weights.file_of_tensor {
        let file = &weights.files[file_name];
        let stored = &file.tensors[source_name];
        let module = scheme.and_then(|scheme| scheme.tool.module_of_codes(source_name));
        let is_beside_codes = |scheme: &Scheme| {
            let module = scheme.tool.module_of_others(source_name)?;
            weights.find(&format!("{module}.{}", scheme.tool.names().0[0]))
        };
        if scheme.and_then(is_beside_codes).is_some() {
            continue;
        }
        let weight_name = module.map_or(source_name.clone(), |module| format!("{module}.weight"));
        let canonical = match role_of(&weight_name) {
            Role::Text(canonical) => config.folder.canonical(&canonical),
            Role::Image(canonical) if config.vision.is_some() => canonical,
            Role::Unused | Role::Image(_) => {
                found.skipped.tensors += 1;
                found.skipped.bytes += stored.bytes as u64;
                continue;
            }
            Role::Buffer => continue,
        };
        if canonical == "lm_head.weight" && config.tied_embeddings {
            continue;
        }
        if config.is_of_shared_cache(&canonical) || config.is_behind_the_layers(&canonical) {
            found.skipped.tensors += 1;
            found.skipped.bytes += stored.bytes as u64;
            continue;
        }
        let source = SourceTensor { name: source_name, stored, file };
        let unknown = || CompileError::Unsupported {
            what: format!("tensor {source_name} of {file_name}"),
            detail: format!("{} as config.json describes it has no such weight", config.architecture),
        };
        let is_expected = |part: &String| expected.contains_key(part);
        let is_beside_blocks = |name: &str| weights.find(&format!("{name}{BLOCKS}")).is_some();
        if source_name.strip_suffix(SCALES).is_some_and(is_beside_blocks) {
            continue;
        }
        if let Some(stack) = transposed::packed_stack(config, &canonical) {
            let name = source_name.strip_suffix(BLOCKS).expect("it is a tensor of blocks");
            if !stack.parts.iter().all(|(part, _)| is_expected(part)) {
                return Err(unknown());
            }
            let packed = Packed::Fp4(Arc::new(PackedFp4::open(name, stack.shape, &find)?));
            let [experts, outputs, inputs] = stack.shape;
            for (part, blocks) in stack.parts {
                let rows = expected[&part][0];
                let tensor = source.packed_rows(packed.clone(), [experts * outputs, inputs], 0, rows);
                found.kept.insert(part.clone(), KeptCodes::FP4);
                found.insert(file, source_name, part, Tensor { row_order: RowOrder::Blocks(blocks), ..tensor })?;
            }
            continue;
        }
        let is_strided = !transposed::is_upright(config, &canonical, &stored.shape);
        if let Some(stack) = strided::stack(config, &canonical).filter(|_| is_strided) {
            if !stack.parts.iter().all(|(part, _)| is_expected(part)) {
                return Err(unknown());
            }
            source.check_shape(&canonical, &stack.shape)?;
            for (part, elements) in stack.parts {
                let tensor = source.strided(&expected[&part], elements)?;
                found.insert(file, source_name, part, tensor)?;
            }
            continue;
        }
        let parts = parts_of(config, &canonical);
        if !parts.iter().all(is_expected) {
            // Some tools add biases of zeros.
            let bytes = || &file.map.bytes()[stored.offset_bytes..stored.offset_bytes + stored.bytes];
            if scheme.is_some() && canonical.ends_with(".bias") && bytes().iter().all(|byte| *byte == 0) {
                continue;
            }
            return Err(unknown());
        }
        let stack = stacked_experts(config, &canonical);
        let whole_rows: usize = parts.iter().map(|part| expected[part][0]).sum();
        let packed = match (scheme, module, &expected[&parts[0]][..]) {
            (Some(scheme), Some(module), [_, cols]) => {
                Some(Arc::new(PackedInt4::open(scheme, module, [whole_rows, *cols], &find)?))
            }
            _ => None,
        };
        let mut first_row = 0;
        for part in parts {
            let shape = &expected[&part];
            let mut whole_shape = shape.clone();
            whole_shape[0] = whole_rows;
            if let Some(experts) = stack {
                whole_shape[0] /= experts;
                whole_shape.insert(0, experts);
            }
            let mut tensor = match &packed {
                Some(packed) => {
                    source.packed_rows(Packed::Int4(Arc::clone(packed)), [whole_rows, shape[1]], first_row, shape[0])
                }
                None => source.rows(&part, &whole_shape, first_row, shape[0])?,
            };
            found.kept.extend(packed.as_ref().and_then(|packed| Some((part.clone(), packed.kept?))));
            tensor.row_order = config.folder.row_order(config, &part);
            first_row += shape[0];
            found.insert(file, source_name, part, tensor)?;
        }
    }
    if let Some(missing) = expected.keys().find(|name| !found.tensors.contains_key(*name)) {
        let hint = format!(": looked for it in {}", weights.searched());
        return Err(CompileError::MissingTensor { name: missing.clone(), hint });
    }
    Ok(found)
}

impl FoundTensors {
    /// Adds `part`, which tensor `source_name` of `file` gives.
    fn insert(&mut self, file: &SafetensorsFile, source_name: &str, part: String, tensor: Tensor) -> Result<()> {
        if self.tensors.contains_key(&part) {
            let what = format!("tensor {source_name} gives {part} a second time");
            return Err(CompileError::malformed(&file.path, what));
        }
        self.tensors.insert(part, tensor);
        Ok(())
    }
}

struct SourceTensor<'a> {
    name: &'a str,
    stored: &'a StoredTensor,
    file: &'a SafetensorsFile,
}

impl SourceTensor<'_> {
    /// Rows `first_row..first_row + rows` of a packed matrix of shape `whole`, whose codes this tensor is.
    fn packed_rows(&self, packed: Packed, whole: [usize; 2], first_row: usize, rows: usize) -> Tensor {
        Tensor {
            source_name: self.name.to_owned(),
            source_shape: whole.to_vec(),
            first_row,
            rows,
            cols: whole[1],
            dtype: match packed {
                Packed::Int4(_) => SourceDType::Int4,
                Packed::Fp4(_) => SourceDType::MxFp4,
            },
            row_order: RowOrder::Plain,
            stored_as: StoredAs::Itself,
            packed: Some(packed),
            added: Vec::new(),
            map: Arc::clone(&self.file.map),
            offset_bytes: self.stored.offset_bytes,
        }
    }

    fn check_shape(&self, canonical: &str, expected: &[usize]) -> Result<()> {
        if self.stored.shape == expected {
            return Ok(());
        }
        Err(CompileError::TensorShape {
            name: format!("{canonical} ({} in {})", self.name, self.file.file_name()),
            expected: expected.to_vec(),
            found: self.stored.shape.clone(),
        })
    }

    /// A matrix or vector of shape `shape` whose elements have these places.
    fn strided(&self, shape: &[usize], elements: Elements) -> Result<Tensor> {
        let whole = self.rows(self.name, &self.stored.shape, 0, 1)?;
        let (rows, cols) = if let [rows, cols] = *shape { (rows, cols) } else { (1, shape[0]) };
        Ok(Tensor { rows, cols, row_order: RowOrder::Strided(elements), ..whole })
    }

    /// Rows `first_row..first_row + rows` as tensor `canonical`; of a vector, the whole.
    fn rows(&self, canonical: &str, expected_shape: &[usize], first_row: usize, rows: usize) -> Result<Tensor> {
        let file_name = self.file.file_name();
        let shape = &self.stored.shape;
        self.check_shape(canonical, expected_shape)?;
        let dtype = self.stored.weight_dtype().ok_or_else(|| CompileError::Unsupported {
            what: format!("element type {} of tensor {} in {file_name}", self.stored.dtype, self.name),
            detail: "weights are read as BF16, F16 or F32".to_owned(),
        })?;
        let (rows, cols) = if let [_, .., cols] = shape[..] { (rows, cols) } else { (1, rows) };
        Ok(Tensor {
            source_name: self.name.to_owned(),
            source_shape: shape.clone(),
            first_row,
            rows,
            cols,
            dtype,
            row_order: RowOrder::Plain,
            stored_as: StoredAs::Itself,
            packed: None,
            added: Vec::new(),
            map: Arc::clone(&self.file.map),
            offset_bytes: self.stored.offset_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView};
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// A folder of one small model: tensors of zeros under their source names, F32 unless changed.
    struct Folder {
        dir: TempDir,
        config: Value,
        tensors: BTreeMap<String, (Dtype, Vec<usize>)>,
    }

    impl Folder {
        /// `rename` makes a source name of a canonical one.
        fn new(config: Value, rename: impl Fn(&str) -> String) -> Folder {
            let shapes = config_json::model_config(Path::new("config.json"), &config).unwrap().tensor_shapes();
            let tensors = shapes.into_iter().map(|(name, shape)| (rename(&name), (Dtype::F32, shape))).collect();
            Folder { dir: tempfile::tempdir().unwrap(), config, tensors }
        }

        fn llama() -> Folder {
            let config = json!({
                "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
                "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
            });
            Folder::new(config, |name| if name == "lm_head.weight" { name.into() } else { format!("model.{name}") })
        }

        fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
            self.tensors.insert(name.to_owned(), (dtype, shape.to_vec()));
        }

        fn path(&self) -> &Path {
            self.dir.path()
        }

        fn write_json(&self, name: &str, value: &Value) {
            std::fs::write(self.path().join(name), value.to_string()).unwrap();
        }

        /// Writes the tensors whose index `takes` as one file.
        fn write_tensors(&self, file_name: &str, takes: impl Fn(usize) -> bool) -> Vec<&str> {
            let taken: Vec<_> = self.tensors.iter().enumerate().filter(|(at, _)| takes(*at)).map(|(_, t)| t).collect();
            let zeros = vec![0u8; 1 << 16];
            let views = taken.iter().map(|(name, (dtype, shape))| {
                let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
                (name.as_str(), TensorView::new(*dtype, shape.clone(), &zeros[..bytes]).unwrap())
            });
            std::fs::write(self.path().join(file_name), safetensors::serialize(views, None).unwrap()).unwrap();
            taken.into_iter().map(|(name, _)| name.as_str()).collect()
        }

        fn open(&self) -> Result<Checkpoint> {
            self.write_json("config.json", &self.config);
            self.write_tensors("model.safetensors", |_| true);
            open(self.path())
        }

        /// Writes even tensors to one shard and odd ones to another, and the index changed by `change`.
        fn open_shards(&self, change: impl Fn(&mut serde_json::Map<String, Value>)) -> Result<Checkpoint> {
            self.write_json("config.json", &self.config);
            let mut weight_map = serde_json::Map::new();
            for (parity, file_name) in ["even.safetensors", "odd.safetensors"].into_iter().enumerate() {
                for name in self.write_tensors(file_name, |at| at % 2 == parity) {
                    weight_map.insert(name.to_owned(), json!(file_name));
                }
            }
            change(&mut weight_map);
            self.write_json(INDEX_FILE, &json!({ "metadata": {}, "weight_map": weight_map }));
            open(self.path())
        }

        fn refusal(&self) -> String {
            self.open().err().expect("this folder is refused").to_string()
        }
    }

    fn names(checkpoint: &Checkpoint) -> Vec<&str> {
        checkpoint.tensors.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_folder_gives_every_tensor_by_its_canonical_name() {
        let mut folder = Folder::llama();
        folder.add("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F32, &[2]);
        let checkpoint = folder.open().unwrap();
        assert_eq!(names(&checkpoint), checkpoint.config.tensor_shapes().keys().collect::<Vec<_>>());
        assert_eq!(checkpoint.tensors["layers.0.mlp.up_proj.weight"].source_name, "model.layers.0.mlp.up_proj.weight");
        let elements: usize = checkpoint.tensors.values().map(|tensor| tensor.rows * tensor.cols).sum();
        assert_eq!(checkpoint.source_bytes, 4 * elements as u64);
        assert_eq!(checkpoint.skipped, Skipped::default());
    }

    #[test]
    fn shards_are_those_of_the_index_and_no_other_file_counts() {
        let folder = Folder::llama();
        let one = folder.open_shards(|_| ()).unwrap();
        std::fs::write(folder.path().join("consolidated.safetensors"), b"junk").unwrap();
        std::fs::write(folder.path().join("pytorch_model.bin"), b"junk").unwrap();
        let other = folder.open_shards(|_| ()).unwrap();
        assert_eq!((one.source_hash(), one.tensors.len()), (other.source_hash(), other.tensors.len()));
    }

    #[test]
    fn an_index_that_does_not_hold_is_refused() {
        let folder = Folder::llama();
        for (file_name, expected) in [
            (json!("lost.safetensors"), "file lost.safetensors, named for tensor lm_head.weight, is missing"),
            (
                json!("odd.safetensors"),
                "tensor lm_head.weight is missing from odd.safetensors, where model.safetensors.index",
            ),
            (
                json!("../even.safetensors"),
                "weight_map.lm_head.weight is in \"../even.safetensors\", expected the name",
            ),
            (json!(7), "weight_map.lm_head.weight is 7, expected a string"),
        ] {
            let result = folder.open_shards(|map| _ = map.insert("lm_head.weight".into(), file_name.clone()));
            let message = result.err().unwrap().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let message = folder.open_shards(|map| _ = map.remove("lm_head.weight")).err().unwrap().to_string();
        let searched = "looked for it in the 2 files even.safetensors to odd.safetensors";
        assert_eq!(message, format!("tensor lm_head.weight is missing: {searched}"));
    }

    #[test]
    fn a_folder_without_weights_is_an_error_with_the_missing_files() {
        let folder = Folder::llama();
        folder.write_json("config.json", &folder.config);
        std::fs::write(folder.path().join("pytorch_model.bin"), b"").unwrap();
        let message = open(folder.path()).err().unwrap().to_string();
        assert!(message.contains("expected model.safetensors or model.safetensors.index.json"), "{message}");
    }

    #[test]
    fn wrong_missing_and_unknown_tensors_are_refused_by_name() {
        let mut folder = Folder::llama();
        folder.add("model.norm.weight", Dtype::BF16, &[7]);
        let shape = "tensor norm.weight (model.norm.weight in model.safetensors) has shape [7], expected [8]";
        assert_eq!(folder.refusal(), shape);
        folder.add("model.norm.weight", Dtype::I8, &[8]);
        assert!(folder.refusal().contains("element type I8 of tensor model.norm.weight"));
        folder.tensors.remove("model.norm.weight");
        assert_eq!(folder.refusal(), "tensor norm.weight is missing: looked for it in model.safetensors");
        folder.add("model.norm.weight", Dtype::F16, &[8]);
        folder.add("model.layers.0.self_attn.q_proj.bias", Dtype::F16, &[8]);
        assert!(folder.refusal().contains("tensor model.layers.0.self_attn.q_proj.bias of model.safetensors is not"));
        folder.tensors.remove("model.layers.0.self_attn.q_proj.bias");
        folder.add("norm.weight", Dtype::F16, &[8]);
        assert!(folder.refusal().contains("tensor norm.weight gives norm.weight a second time"));
    }

    #[test]
    fn tied_embeddings_leave_a_stored_head_alone_and_untied_ones_need_it() {
        let mut folder = Folder::llama();
        folder.config["tie_word_embeddings"] = json!(true);
        assert!(!folder.open().unwrap().tensors.contains_key("lm_head.weight"));
        folder.config["tie_word_embeddings"] = json!(false);
        folder.tensors.remove("lm_head.weight");
        assert!(folder.refusal().starts_with("tensor lm_head.weight is missing"));
    }

    #[test]
    fn phi3_projections_are_split_by_rows() {
        let config = json!({
            "architectures": ["Phi3ForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
            "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
        });
        let mut folder = Folder::new(config, |name| format!("model.{name}"));
        folder
            .tensors
            .retain(|name, _| !["q_proj", "k_proj", "v_proj", "gate", "up_"].iter().any(|p| name.contains(p)));
        folder.add("model.layers.0.self_attn.qkv_proj.weight", Dtype::BF16, &[16, 8]);
        folder.add("model.layers.0.mlp.gate_up_proj.weight", Dtype::BF16, &[24, 8]);
        let checkpoint = folder.open().unwrap();
        let rows = |name: &str| {
            let tensor = &checkpoint.tensors[&format!("layers.0.{name}.weight")];
            (tensor.first_row, tensor.rows, tensor.cols)
        };
        assert_eq!(rows("self_attn.q_proj"), (0, 8, 8));
        assert_eq!(rows("self_attn.k_proj"), (8, 4, 8));
        assert_eq!(rows("self_attn.v_proj"), (12, 4, 8));
        assert_eq!(rows("mlp.gate_proj"), (0, 12, 8));
        assert_eq!(rows("mlp.up_proj"), (12, 12, 8));
        folder.add("model.layers.0.mlp.gate_up_proj.weight", Dtype::BF16, &[23, 8]);
        assert!(folder.refusal().contains("has shape [23, 8], expected [24, 8]"));
    }

    #[test]
    fn vision_tensors_are_skipped_and_counted_under_both_prefixes() {
        let config = json!({
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": { "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4 },
        });
        for (text, vision) in [("language_model.model.", ""), ("model.language_model.", "model.")] {
            let mut folder = Folder::new(config.clone(), |name| format!("{text}{name}"));
            folder.add(&format!("{vision}vision_tower.patch.weight"), Dtype::U8, &[3, 5]);
            folder.add(&format!("{vision}multi_modal_projector.norm.weight"), Dtype::F32, &[4]);
            let checkpoint = folder.open().unwrap();
            assert_eq!(checkpoint.skipped, Skipped { tensors: 2, bytes: 31 });
            assert!(checkpoint.tensors.contains_key("layers.0.self_attn.q_norm.weight"));
        }
    }

    #[test]
    fn mistral_3_has_a_head_of_its_own_where_the_folder_has_one() {
        let config = json!({
            "architectures": ["Mistral3ForConditionalGeneration"],
            "text_config": { "model_type": "mistral", "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
                "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4 },
        });
        for (text, head) in
            [("model.language_model.", "lm_head."), ("language_model.model.", "language_model.lm_head.")]
        {
            let rename = |name: &str| match name.strip_prefix("lm_head.") {
                Some(rest) => format!("{head}{rest}"),
                None => format!("{text}{name}"),
            };
            let mut folder = Folder::new(config.clone(), rename);
            assert!(!folder.open().unwrap().config.tied_embeddings);
            folder.tensors.remove(&format!("{head}weight"));
            assert!(folder.open().unwrap().config.tied_embeddings);
            folder.config["tie_word_embeddings"] = json!(false);
            assert!(folder.refusal().starts_with("tensor lm_head.weight is missing"));
        }
    }

    #[test]
    fn a_head_that_predicts_further_tokens_is_skipped() {
        let config = json!({
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": { "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10, "num_hidden_layers": 4,
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "linear_num_key_heads": 1,
                "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4 },
        });
        let source = |name: &str| match name.strip_suffix("gate_proj.weight") {
            _ if name == "lm_head.weight" => name.to_owned(),
            Some(block) if name.contains("self_attn") => format!("unused.{block}"),
            _ => format!("model.language_model.{name}"),
        };
        let mut folder = Folder::new(config, source);
        folder.tensors.retain(|name, _| !name.starts_with("unused."));
        folder.add("model.language_model.layers.3.self_attn.q_proj.weight", Dtype::F32, &[32, 8]);
        folder.add("mtp.fc.weight", Dtype::F32, &[8, 16]);
        folder.add("model.visual.blocks.0.norm1.weight", Dtype::F32, &[4]);
        let checkpoint = folder.open().unwrap();
        assert_eq!(checkpoint.skipped, Skipped { tensors: 2, bytes: 528 });
        assert_eq!(checkpoint.tensors["layers.3.self_attn.gate_proj.weight"].rows, 16);
        assert_eq!(checkpoint.tensors["layers.0.linear_attn.conv1d.weight"].cols, 4);
    }

    #[test]
    fn a_layer_behind_the_last_is_skipped() {
        let config = json!({
            "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        });
        let mut folder = Folder::new(config, |name| format!("model.{name}"));
        folder.add("model.layers.1.eh_proj.weight", Dtype::F32, &[8, 16]);
        folder.add("model.layers.1.self_attn.q_proj.weight", Dtype::F32, &[8, 8]);
        assert_eq!(folder.open().unwrap().skipped, Skipped { tensors: 2, bytes: 768 });
        folder.config["architectures"] = json!(["LlamaForCausalLM"]);
        assert!(folder.refusal().contains("tensor model.layers.1.eh_proj.weight"));
    }

    #[test]
    fn the_hash_follows_every_file_that_was_read() {
        let folder = Folder::llama();
        let hash = || folder.open().unwrap().source_hash();
        let first = hash();
        assert_eq!(first, hash());
        folder.write_json("generation_config.json", &json!({ "eos_token_id": [3, 4] }));
        assert_ne!(first, hash());
    }

    /// Every model of the tests' folder opens, and its tensors can be read.
    #[test]
    fn the_tiny_models_open() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny");
        for entry in std::fs::read_dir(models).unwrap() {
            let path = entry.unwrap().path();
            let checkpoint = open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for tensor in checkpoint.tensors.values() {
                let mut last_row = vec![f32::NAN; tensor.cols];
                tensor.read_rows(tensor.rows - 1..tensor.rows, &mut last_row);
                assert!(last_row.iter().all(|value| value.is_finite()), "{}", tensor.source_name);
            }
            let vision = match path.file_name().and_then(|name| name.to_str()) {
                Some("gemma3-multimodal") => Skipped { tensors: 11, bytes: 17_024 },
                Some("gemma3-vision") => Skipped { tensors: 11, bytes: 25_104 },
                Some("mistral3-multimodal") => Skipped { tensors: 15, bytes: 37_248 },
                _ => Skipped::default(),
            };
            assert_eq!(checkpoint.skipped, vision, "{}", path.display());
            assert_eq!(checkpoint.tokenizer.bos_token.as_deref(), Some("<bos>"), "{}", path.display());
        }
    }
}
