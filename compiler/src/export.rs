//! [`export`]: a Hugging Face folder with exactly the weights that the GPU will decode, so that anyone can check the artifact
//! with `transformers`. Weights are decoded from the artifact's own bytes, not quantised again; those of a product that an NPU
//! computes in prefill are the NPU's.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use safetensors::tensor::{Dtype, View};
use serde_json::{Value, json};
use tempfile::TempDir;
use unicorn_artifact::write::new_file_permissions;
use unicorn_artifact::{ArtifactView, MappedFile, NpuProduct, WeightPlan};
use unicorn_kernels::npu::quantize::{Weights, source_column};
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_kernels::npu::tile::LAYOUT;

use crate::error::{CompileError, Result};
use crate::fuse::{self, FusedGraph};
use crate::graph;
use crate::import::{self, Checkpoint, ModelConfig, RowOrder};
use crate::progress::{self, Progress, Stage};
use crate::retarget::recorded;
use crate::weights::{PackedSource, PackedWeights};
use crate::{CompileOptions, NPU_LAYOUT};

/// Writes `folder` (made if absent) from the artifact at `artifact`, which was compiled from `model` with these options:
/// `config.json` of the text model, `model.safetensors` in f32, and the tokenizer's files. They are written beside it and then
/// moved, so that it never holds a part of a model.
///
/// # Errors
/// When the model or the artifact cannot be read, and when the folder cannot be written or is the model's own.
pub fn export(
    model: &Path,
    artifact: &Path,
    options: &CompileOptions,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<()> {
    crate::outputs::check_export(model, folder)?;
    progress::check(progress.stage(Stage::Export, 1))?;
    let mut checkpoint = import::open_model(model)?;
    // The folder is of the text model.
    checkpoint.leave_out_vision();
    checkpoint.leave_out_predictor();
    import::merge(&mut checkpoint, &options.adapters)?;
    let exported = write_folder(&checkpoint, artifact, options, folder, progress);
    progress.partial(None);
    exported?;
    // The folder is complete: too late to cancel.
    let _ = progress.advance(1);
    Ok(())
}

fn write_folder(
    checkpoint: &Checkpoint,
    artifact: &Path,
    options: &CompileOptions,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<()> {
    let plain = graph::build(&checkpoint.config);
    let fuse = if options.fuse { fuse::fuse } else { fuse::plain };
    let graph = fuse(&plain, &checkpoint.config, options.policy);
    let weights = PackedWeights::of(&graph, &checkpoint.config, options.policy);
    let file = MappedFile::open(artifact).map_err(CompileError::io(artifact))?;
    let view = ArtifactView::parse(file.bytes())
        .map_err(|error| CompileError::Malformed { path: artifact.to_owned(), what: error.to_string() })?;
    npu_weights_are_of_this_layout(&view).map_err(|what| CompileError::malformed(artifact, what))?;
    let shapes = checkpoint.config.tensor_shapes();
    let packed = Packed { view: &view, graph: &graph, weights: &weights, shapes: &shapes };

    let staged = folder_beside(folder).map_err(CompileError::io(folder))?;
    progress.partial(Some(staged.path()));
    let path = staged.path().join("model.safetensors");
    safetensors::serialize_to_file(&exported(checkpoint, &packed), None, &path)
        .map_err(|error| CompileError::malformed(&folder.join("model.safetensors"), error.to_string()))?;
    write_json(&staged.path().join("config.json"), &text_config(checkpoint)).map_err(CompileError::io(folder))?;
    write_tokenizer(checkpoint, staged.path()).map_err(CompileError::io(folder))?;
    move_files(staged.path(), folder).map_err(CompileError::io(folder))
}

/// Whether NPU weights of `view`, if there are any, are in the form that [`Weights`] reads.
fn npu_weights_are_of_this_layout(view: &ArtifactView) -> std::result::Result<(), String> {
    let found = recorded(view, NPU_LAYOUT).unwrap_or("older");
    if view.npu.is_none() || found == LAYOUT.to_string() {
        return Ok(());
    }
    Err(format!("layout of its NPU weights is {found}, expected {LAYOUT}; compile the model again"))
}

/// A temporary folder on the same disk, which is removed when the value is dropped.
fn folder_beside(folder: &Path) -> io::Result<TempDir> {
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    tempfile::Builder::new().prefix(".unicorn-").suffix(".partial").tempdir_in(parent)
}

/// Moves all files of `from` to `to`, which is made if absent, and gives them the permissions of an artifact.
fn move_files(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::set_permissions(entry.path(), new_file_permissions())?;
        std::fs::rename(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// The artifact's weights by canonical tensor name.
struct Packed<'a> {
    view: &'a ArtifactView<'a>,
    graph: &'a FusedGraph,
    weights: &'a PackedWeights,
    /// Shape of every canonical tensor.
    shapes: &'a BTreeMap<String, Vec<usize>>,
}

/// One exported tensor: canonical tensors one below another, or their rows in the folder's order, decoded when the writer
/// requests its bytes.
struct Exported<'a> {
    packed: &'a Packed<'a>,
    config: &'a ModelConfig,
    parts: Vec<&'a str>,
    shape: Vec<usize>,
}

impl View for &Exported<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // A stack's first axis counts experts.
        let is_stack = self.parts.first().is_some_and(|name| import::in_stack(self.config, name).is_some());
        let cols: usize = self.shape[if is_stack { 2 } else { 1 }..].iter().product();
        let mut values = vec![0f32; self.shape.iter().product()];
        let mut first_row = 0;
        for name in &self.parts {
            let order = self.config.folder.row_order(self.config, name);
            let part = self.packed.decode(name);
            if let RowOrder::Strided(elements) = order {
                let cols = self.packed.shapes[*name].last().copied().unwrap_or(1);
                for (at, value) in part.iter().enumerate() {
                    values[elements.at(at / cols, at % cols)] = *value;
                }
                continue;
            }
            if let Some(place) = import::in_stack(self.config, name) {
                values[place.first_row * cols..][..part.len()].copy_from_slice(&part);
                continue;
            }
            for (row, of_row) in part.chunks_exact(cols).enumerate() {
                values[order.source_row(first_row, row) * cols..][..cols].copy_from_slice(of_row);
            }
            first_row += part.len() / cols;
        }
        Cow::Owned(bytemuck::cast_slice(&values).to_vec())
    }

    fn data_len(&self) -> usize {
        4 * self.shape.iter().product::<usize>()
    }
}

impl Packed<'_> {
    /// A tensor as f32, in the order of our rows and without norm offsets.
    fn decode(&self, tensor: &str) -> Vec<f32> {
        if let Some(values) = self.npu_matrix(tensor) {
            return values;
        }
        for (weight, plan) in self.weights.list.iter().filter_map(|weight| Some((weight, self.plan(&weight.name)?))) {
            let bytes = self.bytes(plan);
            match &weight.source {
                PackedSource::Vector(id) => {
                    let vector = &self.graph.vectors[id.0];
                    if let Some(values) = self.bias_of_expert(vector, tensor, bytes) {
                        return values;
                    }
                    let parts = &vector.parts;
                    if let [only] = &parts[..]
                        && only.tensor == tensor
                    {
                        // Packed vectors end in padding.
                        let len = self.shapes[tensor].iter().product();
                        return floats(bytes).take(len).map(|value| value / only.scale - only.offset).collect();
                    }
                    if let Some(values) = self.vector_part(parts, tensor, bytes) {
                        return values;
                    }
                }
                PackedSource::Matrix { id, .. } => {
                    let found =
                        self.graph.matrices[id.0].sources().find_map(|part| Some((part, expert_of(part, tensor)?)));
                    if let Some((part, expert)) = found {
                        return self.matrix(*id, part, expert);
                    }
                }
                PackedSource::Rope(_) | PackedSource::ImageRope | PackedSource::ProductFactor(_) => {}
            }
        }
        panic!("{tensor} is packed")
    }

    /// A tensor whose product an NPU computes in prefill, as its program has the weights.
    fn npu_matrix(&self, tensor: &str) -> Option<Vec<f32>> {
        let section = self.view.npu.as_ref()?;
        let find = |product: &'_ NpuProduct| {
            let matrix = self.graph.matrices.iter().find(|matrix| matrix.name == product.name)?;
            let index = matrix.parts.iter().position(|part| part.tensor == tensor)?;
            Some((product.clone(), matrix, index))
        };
        let (product, matrix, index) = section.products.iter().find_map(find)?;
        let shape = GemmShape::of_program(&section.programs[product.program as usize])?;
        let bytes = &self.view.npu_weights()[product.slice as usize].bytes[product.offset_bytes as usize..];
        let weights = Weights::unpack(&shape, &bytes[..product.len_bytes as usize]);
        let part = &matrix.parts[index];
        let first: usize = matrix.parts[..index].iter().map(|part| part.rows).sum();
        let mut values = vec![0.0; part.rows * part.cols];
        for col in 0..shape.cols {
            let source = source_column(shape.core.epilogue, col, product.cols as usize);
            let Some(row) = source.and_then(|row| row.checked_sub(first)).filter(|row| *row < part.rows) else {
                continue;
            };
            let row = &mut values[row * part.cols..][..part.cols];
            row.copy_from_slice(&weights.column(&shape, col)[..part.cols]);
        }
        Some(values)
    }

    /// A part of a vector that was joined from several, by their lengths in the checkpoint.
    fn vector_part(&self, parts: &[graph::VectorRef], tensor: &str, bytes: &[u8]) -> Option<Vec<f32>> {
        let index = parts.iter().position(|part| part.tensor == tensor)?;
        let len_of = |name: &str| self.shapes[name].iter().product::<usize>();
        let first: usize = parts[..index].iter().map(|part| len_of(&part.tensor)).sum();
        let own = floats(bytes).skip(first).take(len_of(tensor));
        Some(own.map(|value| value / parts[index].scale - parts[index].offset).collect())
    }

    /// An expert's bias, of those of a stack.
    fn bias_of_expert(&self, vector: &fuse::Vector, tensor: &str, bytes: &[u8]) -> Option<Vec<f32>> {
        let matrix = &self.graph.matrices[vector.stack?.0];
        let mut places =
            (0..matrix.experts?).flat_map(|expert| (0..vector.parts.len()).map(move |part| (expert, part)));
        let (expert, part) = places.find(|&(expert, part)| vector.parts[part].tensor_of(expert) == tensor)?;
        let mut values = vec![0.0; matrix.parts[part].rows];
        for (row, value) in floats(bytes).skip(expert * matrix.rows()).take(matrix.rows()).enumerate() {
            let (of_part, row) = matrix.part_row(row);
            if of_part == part {
                values[row] = value;
            }
        }
        Some(values)
    }

    fn matrix(&self, id: fuse::MatrixId, part: &graph::MatrixRef, expert: usize) -> Vec<f32> {
        let matrix = &self.graph.matrices[id.0];
        // In a stack, the rows of one expert are contiguous, and those of a shared one are the last.
        let own_rows = match matrix.experts {
            Some(experts) if part.experts.is_none() => {
                matrix.routed_experts() * matrix.expert_rows()..experts * matrix.expert_rows()
            }
            Some(_) => expert * matrix.expert_rows()..(expert + 1) * matrix.expert_rows(),
            None => 0..matrix.rows(),
        };
        let mut values = vec![0f32; part.rows * part.cols];
        for &packed in self.weights.matrix(id) {
            let weight = self.weights.get(packed);
            let PackedSource::Matrix { first_row, layout, .. } = weight.source else { continue };
            let bytes = self.bytes(self.plan(&weight.name).expect("every weight is planned"));
            for row in own_rows.start.max(first_row)..own_rows.end.min(first_row + layout.rows) {
                let Some(source) = matrix.source_row(row) else { continue };
                if source.part.tensor == part.tensor {
                    let at = source.row * part.cols + source.first_col;
                    layout.decode_row(bytes, row - first_row, &mut values[at..][..layout.cols]);
                }
            }
        }
        values
    }

    fn plan(&self, name: &str) -> Option<&WeightPlan> {
        self.view.plan.weights.iter().find(|plan| plan.name == name)
    }

    fn bytes(&self, plan: &WeightPlan) -> &[u8] {
        let slice = self.view.weights()[plan.slice as usize].bytes;
        &slice[plan.offset_bytes as usize..][..plan.len_bytes as usize]
    }
}

/// Index of the expert whose tensor this is; 0 if the matrix is not a stack.
fn expert_of(part: &graph::MatrixRef, tensor: &str) -> Option<usize> {
    let Some(experts) = part.experts else { return (part.tensor == tensor).then_some(0) };
    let (before, behind) = part.tensor.split_once('*')?;
    let expert: usize = tensor.strip_prefix(before)?.strip_suffix(behind)?.parse().ok()?;
    (expert < experts).then_some(expert)
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("4 bytes")))
}

/// transformers' names: `model.` before all but the head; projections joined again where the source has them so.
fn exported<'a>(checkpoint: &'a Checkpoint, packed: &'a Packed<'a>) -> BTreeMap<String, Exported<'a>> {
    let config = &checkpoint.config;
    // Projections in the order in which they are stacked, which is not that of their names.
    let rank = |name: &str| {
        ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "kv_a_proj", "k_rope_proj"]
            .iter()
            .position(|p| name.contains(p))
    };
    let mut names: Vec<&String> = checkpoint.tensors.keys().collect();
    names.sort_by_key(|name| rank(name));
    let mut out: BTreeMap<String, Exported> = BTreeMap::new();
    for name in names {
        let holder = config.folder.holder(name);
        let mut target = if name.starts_with("lm_head") { holder } else { format!("model.{holder}") };
        if let Some(experts) = &config.experts {
            target = import::expert_source_name(experts.names, &target);
        }
        let shape = &packed.shapes[name];
        let stack_shape = || import::in_stack(config, name).map(|place| place.shape);
        let own_shape = import::strided_shape(config, name).or_else(stack_shape);
        let entry = out.entry(target).or_insert_with(|| Exported {
            packed,
            config,
            parts: Vec::new(),
            shape: own_shape.clone().unwrap_or([&[0], &shape[1..]].concat()),
        });
        if own_shape.is_none() {
            entry.shape[0] += shape[0];
        }
        entry.parts.push(name);
    }
    out
}

/// The text model's config, in f32.
fn text_config(checkpoint: &Checkpoint) -> Value {
    let mut config = checkpoint.config_json.clone();
    for key in ["dtype", "torch_dtype"] {
        config[key] = json!("float32");
    }
    if let Some(fields) = config.as_object_mut() {
        fields.remove("quantization_config");
    }
    config
}

fn write_tokenizer(checkpoint: &Checkpoint, folder: &Path) -> io::Result<()> {
    let files = &checkpoint.tokenizer;
    if files.tokenizer_json.is_empty() {
        return Ok(());
    }
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, &files.tokenizer_json)?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": files.bos_token,
        "eos_token": files.eos_token,
        "chat_template": files.chat_template,
    });
    write_json(&folder.join("tokenizer_config.json"), &config)?;
    write_json(&folder.join("generation_config.json"), &json!({ "eos_token_id": files.stop_ids }))
}

fn write_json(path: &Path, value: &Value) -> io::Result<()> {
    std::fs::write(path, format!("{value:#}\n"))
}
