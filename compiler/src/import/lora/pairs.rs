//! The tensors of an adapter's file, by the modules that they are for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::copies::OwnCopy;
use super::files::{WEIGHTS_FILE, elements};
use crate::error::{CompileError, Result};
use crate::import::config::ModelConfig;
use crate::import::safetensors::{SafetensorsFile, StoredTensor};
use crate::import::source_names::{Role, role_of};

/// What an adapter's file has.
pub(super) struct AdapterTensors<'f> {
    /// By names of modules in the model.
    pub pairs: Vec<(String, Pair<'f>)>,
    pub copies: Vec<OwnCopy<'f>>,
    /// Number of modules that are left out, as the model's tensors of them are: parts of a tower for images or sound.
    pub modules_left_out: usize,
}

/// The matrices of a module.
pub(super) struct Pair<'f> {
    /// A: (rank, inputs), or (rank, rows) of an embedding.
    pub down: &'f StoredTensor,
    /// B: (outputs, rank), or (columns, rank) of an embedding.
    pub up: &'f StoredTensor,
    /// Whether the product, transposed, is added to an embedding of (rows, columns).
    pub is_of_embedding: bool,
}

impl AdapterTensors<'_> {
    /// Those of the adapter's `file` at `path`.
    ///
    /// # Errors
    /// Where a tensor is no matrix of an adapter, has no other side, or is of another kind.
    pub fn of<'f>(config: &ModelConfig, path: &Path, file: &'f SafetensorsFile) -> Result<AdapterTensors<'f>> {
        let mut found: BTreeMap<(&str, bool), [Option<&StoredTensor>; 2]> = BTreeMap::new();
        let (mut copies, mut left_out) = (Vec::new(), BTreeSet::new());
        for (name, stored) in &file.tensors {
            let Some(Side { module, is_of_embedding, side }) = Side::of(name) else {
                copies.push(OwnCopy::of(name, stored).ok_or_else(|| CompileError::Unsupported {
                    what: format!("tensor {name} of {WEIGHTS_FILE}"),
                    detail: "expected base_model.model.MODULE.lora_A.weight and lora_B.weight alone, or lora_embedding_A and lora_embedding_B".into(),
                })?);
                continue;
            };
            if is_left_out(config, module) {
                left_out.insert(module);
                continue;
            }
            if stored.shape.len() != 2 || stored.shape.contains(&0) {
                let what = format!("tensor {name} has shape {:?}, expected a matrix", stored.shape);
                return Err(CompileError::malformed(path, what));
            }
            found.entry((module, is_of_embedding)).or_default()[side] = Some(stored);
        }
        if found.is_empty() && !left_out.is_empty() {
            return Err(CompileError::Unsupported {
                what: format!("adapter of {} modules of a tower for images or sound alone", left_out.len()),
                detail: "the model is compiled without it, expected matrices of the text model, too".into(),
            });
        }
        if found.is_empty() {
            return Err(CompileError::malformed(path, "file has no tensors of an adapter, expected matrices A and B"));
        }
        let mut pairs = Vec::new();
        for ((module, is_of_embedding), sides) in found {
            let missing = |side| {
                let name = format!("{module}.{}", name_of(side, is_of_embedding));
                CompileError::MissingTensor { name, hint: format!(" from {WEIGHTS_FILE}") }
            };
            let [down, up] = [sides[0].ok_or_else(|| missing("A"))?, sides[1].ok_or_else(|| missing("B"))?];
            pairs.push((module.to_owned(), Pair { down, up, is_of_embedding }));
        }
        Ok(AdapterTensors { pairs, copies, modules_left_out: left_out.len() })
    }
}

/// Whether the model is compiled without the module.
fn is_left_out(config: &ModelConfig, module: &str) -> bool {
    match role_of(&format!("{module}.weight")) {
        Role::Unused => true,
        Role::Image(_) => config.vision.is_none(),
        Role::Text(_) | Role::Predictor(_) | Role::Buffer => false,
    }
}

/// Which matrix of an adapter a tensor is, by its name.
struct Side<'n> {
    module: &'n str,
    is_of_embedding: bool,
    /// 0 for A, 1 for B.
    side: usize,
}

impl Side<'_> {
    /// `None`: it is another tensor.
    fn of(name: &str) -> Option<Side<'_>> {
        let (module, kind) = name.strip_prefix("base_model.model.")?.rsplit_once(".lora_")?;
        let (is_of_embedding, side) = match kind {
            "A.weight" | "A.default.weight" => (false, 0),
            "B.weight" | "B.default.weight" => (false, 1),
            "embedding_A" | "embedding_A.default" => (true, 0),
            "embedding_B" | "embedding_B.default" => (true, 1),
            _ => return None,
        };
        Some(Side { module, is_of_embedding, side })
    }
}

/// PEFT's name of a matrix, behind that of its module.
fn name_of(side: &str, is_of_embedding: bool) -> String {
    if is_of_embedding { format!("lora_embedding_{side}") } else { format!("lora_{side}.weight") }
}

impl Pair<'_> {
    pub fn rank(&self) -> usize {
        self.down.shape[0]
    }

    /// Checks that they change a matrix of this shape.
    ///
    /// # Errors
    /// Where they have another.
    pub fn check(&self, module: &str, [rows, cols]: [usize; 2]) -> Result<()> {
        let rank = self.rank();
        let [outputs, inputs] = if self.is_of_embedding { [cols, rows] } else { [rows, cols] };
        for (side, stored, expected) in [("A", self.down, [rank, inputs]), ("B", self.up, [outputs, rank])] {
            if stored.shape != expected {
                return Err(CompileError::TensorShape {
                    name: format!("{module}.{}", name_of(side, self.is_of_embedding)),
                    expected: expected.to_vec(),
                    found: stored.shape.clone(),
                });
            }
        }
        Ok(())
    }

    /// The matrices (rank, columns) and (rows, rank) whose product is added.
    ///
    /// # Errors
    /// Where their numbers are not floats.
    pub fn read(&self, file: &SafetensorsFile, module: &str) -> Result<[Vec<f32>; 2]> {
        let [down, up] = [elements(file, module, self.down)?, elements(file, module, self.up)?];
        Ok(match self.is_of_embedding {
            true => [transposed(&up, self.up.shape[1]), transposed(&down, self.down.shape[1])],
            false => [down, up],
        })
    }
}

/// Of a matrix of `cols` columns.
fn transposed(matrix: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|column| matrix[column..].iter().step_by(cols)).copied().collect()
}
