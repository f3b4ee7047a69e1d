//! The tensors of an adapter's file, by the modules that they are for.

use std::collections::BTreeMap;
use std::path::Path;

use super::files::{WEIGHTS_FILE, elements};
use crate::error::{CompileError, Result};
use crate::import::safetensors::{SafetensorsFile, StoredTensor};

/// The matrices of a module.
pub(super) struct Pair<'f> {
    /// (rank, inputs)
    pub down: &'f StoredTensor,
    /// (outputs, rank)
    pub up: &'f StoredTensor,
}

/// The matrices of each module, by its name in the model.
pub(super) fn pairs_of<'f>(path: &Path, file: &'f SafetensorsFile) -> Result<BTreeMap<String, Pair<'f>>> {
    let mut found: BTreeMap<String, [Option<&StoredTensor>; 2]> = BTreeMap::new();
    for (name, stored) in &file.tensors {
        let Some((module, side)) = module_of(name) else {
            return Err(CompileError::Unsupported {
                what: format!("tensor {name} of {WEIGHTS_FILE}"),
                detail: "expected base_model.model.MODULE.lora_A.weight and lora_B.weight alone".into(),
            });
        };
        if stored.shape.len() != 2 || stored.shape.contains(&0) {
            let what = format!("tensor {name} has shape {:?}, expected a matrix", stored.shape);
            return Err(CompileError::malformed(path, what));
        }
        found.entry(module.to_owned()).or_default()[side] = Some(stored);
    }
    if found.is_empty() {
        return Err(CompileError::malformed(path, "file has no tensors, expected those of an adapter"));
    }
    let whole = |(module, sides): (String, [Option<&'f StoredTensor>; 2])| match sides {
        [Some(down), Some(up)] => Ok((module, Pair { down, up })),
        [None, _] => Err(CompileError::MissingTensor { name: format!("{module}.lora_A.weight"), hint: String::new() }),
        [_, None] => Err(CompileError::MissingTensor { name: format!("{module}.lora_B.weight"), hint: String::new() }),
    };
    found.into_iter().map(whole).collect()
}

/// The module of the matrix of this name, and 0 for A, 1 for B; `None`: it is another tensor.
fn module_of(name: &str) -> Option<(&str, usize)> {
    let (module, kind) = name.strip_prefix("base_model.model.")?.rsplit_once(".lora_")?;
    match kind {
        "A.weight" | "A.default.weight" => Some((module, 0)),
        "B.weight" | "B.default.weight" => Some((module, 1)),
        _ => None,
    }
}

impl Pair<'_> {
    pub fn rank(&self) -> usize {
        self.down.shape[0]
    }

    /// Checks that the product has this shape, (outputs, inputs).
    ///
    /// # Errors
    /// Where it has another.
    pub fn check(&self, module: &str, [outputs, inputs]: [usize; 2]) -> Result<()> {
        let rank = self.rank();
        for (side, stored, expected) in [("A", self.down, [rank, inputs]), ("B", self.up, [outputs, rank])] {
            if stored.shape != expected {
                return Err(CompileError::TensorShape {
                    name: format!("{module}.lora_{side}.weight"),
                    expected: expected.to_vec(),
                    found: stored.shape.clone(),
                });
            }
        }
        Ok(())
    }

    /// A and B.
    ///
    /// # Errors
    /// Where their numbers are not floats.
    pub fn read(&self, file: &SafetensorsFile, module: &str) -> Result<[Vec<f32>; 2]> {
        Ok([elements(file, module, self.down)?, elements(file, module, self.up)?])
    }
}
