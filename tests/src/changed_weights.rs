//! A model's folder with other weights.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

use crate::reference::values_as_f32;

/// A copy of the model in `folder`, whose tensors, in f32, `change` may change: it is called with each one's name and elements.
///
/// # Panics
/// If the folder's files, of which `model.safetensors` has all weights, cannot be read or written.
pub fn with_weights(folder: &Path, mut change: impl FnMut(&str, &mut [f32])) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(folder.join(file), copy.path().join(file)).expect("a model has this file");
    }
    let bytes = std::fs::read(folder.join("model.safetensors")).expect("a model has weights");
    let tensors = SafeTensors::deserialize(&bytes).expect("weights in safetensors");
    let changed: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let mut values = values_as_f32(&view);
            change(&name, &mut values);
            (name, view.shape().to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let views = changed.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("elements of the shape"))
    });
    let file = copy.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).expect("the folder takes a file");
    copy
}
