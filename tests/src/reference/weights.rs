//! The tensors of a folder as f32, under names without the prefixes that differ between models.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

pub struct Weights(BTreeMap<String, Tensor>);

/// Values in row order.
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl Weights {
    /// Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub fn read(folder: &Path) -> Self {
        Self(weight_files(folder).iter().flat_map(|file| read_tensors(file)).collect())
    }

    pub fn get(&self, name: &str) -> &Tensor {
        self.find(name).unwrap_or_else(|| panic!("tensor {name} is missing"))
    }

    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }
}

fn weight_files(folder: &Path) -> BTreeSet<PathBuf> {
    let Ok(index) = std::fs::read_to_string(folder.join("model.safetensors.index.json")) else {
        return BTreeSet::from([folder.join("model.safetensors")]);
    };
    let index: Value = serde_json::from_str(&index).expect("the index of the shards is JSON");
    let files = index["weight_map"].as_object().expect("the index of the shards has a weight_map").values();
    files.map(|file| folder.join(file.as_str().expect("weight_map names files"))).collect()
}

fn read_tensors(file: &Path) -> Vec<(String, Tensor)> {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let tensors = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let text_part = tensors.iter().filter(|(name, _)| !name.contains("vision_tower"));
    text_part
        .map(|(name, view)| {
            let tensor = Tensor { shape: view.shape().to_vec(), values: values_as_f32(&view) };
            (without_prefix(name).to_owned(), tensor)
        })
        .collect()
}

/// `model.layers.0.…`, `language_model.model.layers.0.…` and `model.language_model.layers.0.…` are `layers.0.…`.
fn without_prefix(name: &str) -> &str {
    let shorter = name.strip_prefix("model.").or(name.strip_prefix("language_model."));
    shorter.map_or(name, without_prefix)
}

pub fn values_as_f32(view: &TensorView) -> Vec<f32> {
    let bytes = view.data();
    match view.dtype() {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        other => panic!("tensor is of type {other}, expected F32, F16 or BF16"),
    }
}
