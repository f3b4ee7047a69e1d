//! From a Hugging Face folder to a [`Checkpoint`]: config.json, the weights that `model.safetensors` or its index
//! names and no other file, the tokenizer's files.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use unicorn_artifact::TokenizerSection;

use super::block_scales::{self, BlockScales, is_beside_fp8, is_fp8};
use super::checkpoint::{Checkpoint, Packed, Skipped, Tensor};
use super::config::{KeptCodes, ModelConfig};
use super::config_json;
use super::json::{Fields, parse_json};
use super::license;
use super::packed_fp4::{BLOCKS, PackedFp4, SCALES};
use super::packed_int4::{PackedInt4, Scheme, Tool};
use super::predictor::Head;
use super::safetensors::{SafetensorsFile, StoredTensor};
use super::source_bytes::{SourceBytes, SourcePart};
use super::source_files::SourceFiles;
use super::source_layout::{Elements, RowOrder, SourceDType, StoredAs};
use super::source_names::{Role, parts_of, role_of, stacked_experts};
use super::strided;
use super::tokenizer;
use super::transposed;
use super::vision_config::VisionConfig;
use crate::error::{CompileError, Result};

/// Opens the folder. The content of its files is checked here; tensors are mapped and not read.
pub(super) fn open(folder: &Path) -> Result<Checkpoint> {
    let mut files = SourceFiles::new(folder);
    let config_path = folder.join("config.json");
    let config_json = parse_json(&config_path, &files.required("config.json")?)?;
    let mut config = config_json::model_config(&config_path, &config_json)?;
    let scheme = config_json::packing(&config_path, &config_json)?;
    let fp8_block = block_scales::block_size(&Fields::root(&config_path, &config_json)?)?;
    let weights = Weights::open(&mut files)?;
    config.tied_embeddings |= config_json::head_may_be_missing(&config_path, &config_json)? && !weights.have_head();
    if config.vision.is_some() && !weights.have_tower() {
        config.vision = None;
    }
    if let Some(vision) = &mut config.vision {
        read_processor(&mut files, vision)?;
    }
    let head = Head::of_tensors(weights.file_of_tensor.keys().map(String::as_str));
    let predictor_left_out = head.and_then(|head| config.add_predictor(head).err());
    let FoundTensors { tensors, skipped, kept } = find_tensors(&config, &weights, scheme.as_ref(), fp8_block)?;
    config.kept_codes = kept;
    let tokenizer = tokenizer::read(&mut files, &config, config_json::stop_ids(&config_path, &config_json)?)?;
    let source_bytes = tensors.values().map(Tensor::source_bytes).sum();
    let config_json = config_json::text_config(&config_path, &config_json, &config)?;
    let mapped = |(name, file): (&String, &SafetensorsFile)| (name.clone(), SourcePart::Mapped(file.map.clone()));
    let source = files.into_source(weights.files.iter().map(mapped));
    let license = license::of_folder(folder)?;
    let added_files = Vec::new();
    Ok(Checkpoint {
        config,
        tensors,
        tokenizer,
        license,
        skipped,
        skipped_adapter_modules: 0,
        predictor_left_out,
        config_json,
        source,
        added_files,
        source_bytes,
    })
}

/// Reads how the pixels of images become numbers, from the file that transformers 5 writes or else from that of earlier versions.
fn read_processor(files: &mut SourceFiles, vision: &mut VisionConfig) -> Result<()> {
    if let Some(json) = files.optional_json("processor_config.json")? {
        let path = files.path("processor_config.json");
        if let Some(of_images) = Fields::root(&path, &json)?.object("image_processor")? {
            return config_json::read_processor(&of_images, vision);
        }
    }
    let Some(json) = files.optional_json("preprocessor_config.json")? else { return Ok(()) };
    config_json::read_processor(&Fields::root(&files.path("preprocessor_config.json"), &json)?, vision)
}

/// A checkpoint without weights or tokenizer: the shape that the config.json at `path` describes.
pub(super) fn of_config(path: &Path) -> Result<Checkpoint> {
    let bytes = std::fs::read(path).map_err(CompileError::io(path))?;
    let config_json = parse_json(path, &bytes)?;
    let mut config = config_json::model_config(path, &config_json)?;
    if config_json["quantization_config"]["quant_method"] == "mxfp4" {
        config.kept_codes = transposed::experts_as_fp4(&config);
    }
    let head = config_json::predictor(path, &config_json)?;
    let predictor_left_out = head.and_then(|head| config.add_predictor(head).err());
    let config_json = config_json::text_config(path, &config_json, &config)?;
    let source = SourceBytes::Whole(SourcePart::Read(bytes));
    let of_config = Checkpoint::without_weights(config, TokenizerSection::default());
    Ok(Checkpoint { config_json, source, predictor_left_out, ..of_config })
}

/// The weight files, and which of them holds each tensor.
struct Weights {
    /// By file name.
    files: BTreeMap<String, SafetensorsFile>,
    /// Source name to file name.
    file_of_tensor: BTreeMap<String, String>,
}

const SINGLE_FILE: &str = "model.safetensors";
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

/// Finds every tensor that the config requires, splits fused projections, and refuses tensors that belong to none. `fp8_block`: rows and columns
/// of a block of FP8 numbers.
fn find_tensors(
    config: &ModelConfig,
    weights: &Weights,
    scheme: Option<&Scheme>,
    fp8_block: [usize; 2],
) -> Result<FoundTensors> {
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
        if scheme.and_then(is_beside_codes).is_some() || is_beside_fp8(source_name, &find) {
            continue;
        }
        let weight_name = module.map_or(source_name.clone(), |module| format!("{module}.weight"));
        let canonical = match role_of(&weight_name) {
            Role::Text(canonical) => config.folder.canonical(&canonical),
            Role::Image(canonical) if config.vision.is_some() => canonical,
            Role::Predictor(name) if config.predictor => config.folder.canonical(&config.predictor_tensor(&name)),
            Role::Unused | Role::Image(_) | Role::Predictor(_) => {
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
        let scales = match is_fp8(stored) {
            true => Some(Arc::new(BlockScales::open(source_name, stored, fp8_block, &find)?)),
            false => None,
        };
        let source = SourceTensor { name: source_name, stored, file, scales };
        let unknown = || CompileError::Unsupported {
            what: format!("tensor {source_name} of {file_name}"),
            detail: match scheme.is_none() && Tool::ALL.iter().any(|tool| tool.module_of_codes(source_name).is_some()) {
                true => "it is packed, and config.json has no quantization_config that says how".to_owned(),
                false => format!("{} as config.json describes it has no such weight", config.architecture),
            },
        };
        let open_packed = |shape: [usize; 2]| match (scheme, module) {
            (Some(scheme), Some(module)) => {
                PackedInt4::open(scheme, module, shape, &find).map(|one| Some(Arc::new(one)))
            }
            _ => Ok(None),
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
            let packed = match stack.shape[..] {
                [rows, cols] => open_packed([rows, cols])?,
                _ => None,
            };
            if packed.is_none() {
                source.check_shape(&canonical, &stack.shape)?;
            }
            for (part, elements) in stack.parts {
                let tensor = source.strided(&expected[&part], elements, packed.as_ref())?;
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
        let packed = match expected[&parts[0]][..] {
            [_, cols] => open_packed([whole_rows, cols])?,
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
            // The order of a stack's elements is not that of a matrix alone.
            tensor.row_order = match config.folder.row_order(config, &part) {
                RowOrder::Strided(_) => RowOrder::Plain,
                order => order,
            };
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
    /// Of FP8 numbers.
    scales: Option<Arc<BlockScales>>,
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
            scales: None,
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

    /// A matrix or vector of shape `shape` whose elements have these places, in this tensor or in the matrix whose codes it is.
    fn strided(&self, shape: &[usize], elements: Elements, packed: Option<&Arc<PackedInt4>>) -> Result<Tensor> {
        let whole = match packed {
            Some(packed) => self.packed_rows(Packed::Int4(Arc::clone(packed)), packed.shape(), 0, 1),
            None => self.rows(self.name, &self.stored.shape, 0, 1)?,
        };
        let (rows, cols) = if let [rows, cols] = *shape { (rows, cols) } else { (1, shape[0]) };
        Ok(Tensor { rows, cols, row_order: RowOrder::Strided(elements), ..whole })
    }

    /// Rows `first_row..first_row + rows` as tensor `canonical`; of a vector, the whole.
    fn rows(&self, canonical: &str, expected_shape: &[usize], first_row: usize, rows: usize) -> Result<Tensor> {
        let file_name = self.file.file_name();
        let shape = &self.stored.shape;
        self.check_shape(canonical, expected_shape)?;
        let fp8 = self.scales.as_ref().map(|_| SourceDType::F8E4M3);
        let dtype = fp8.or(self.stored.weight_dtype()).ok_or_else(|| CompileError::Unsupported {
            what: format!("element type {} of tensor {} in {file_name}", self.stored.dtype, self.name),
            detail: "weights are read as BF16, F16, F32 or F8_E4M3".to_owned(),
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
            scales: self.scales.clone(),
            added: Vec::new(),
            map: Arc::clone(&self.file.map),
            offset_bytes: self.stored.offset_bytes,
        })
    }
}
