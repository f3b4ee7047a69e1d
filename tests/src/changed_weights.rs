//! A model's folder with other weights.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

use crate::models::models;
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

/// A model with a head that predicts the token behind the next one, whose text is a chain of tokens, each by the one before alone, without an end;
/// the head has the same chain, and so is always right. All branches of layers end in zeros, norms do nothing more, and `fc` takes the token and
/// leaves the hidden row.
pub fn chain_with_head() -> TempDir {
    const BRANCHES: [&str; 3] = ["o_proj", "out_proj", "down_proj"];
    const NORMS: [&str; 3] = ["model.norm.weight", "mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight"];
    const HIDDEN: usize = 64;
    const END: usize = 2;
    with_weights(&models().join("tiny/qwen35-moe-mtp"), |name, values| {
        let branch = name.trim_end_matches(".weight").rsplit('.').next();
        if NORMS.contains(&name) || branch.is_some_and(|branch| BRANCHES.contains(&branch)) {
            values.fill(0.0);
        }
        match name {
            "mtp.fc.weight" => {
                values.fill(0.0);
                (0..HIDDEN).for_each(|row| values[row * 2 * HIDDEN + row] = 1.0);
            }
            "lm_head.weight" => values[END * HIDDEN..][..HIDDEN].fill(0.0),
            _ => {}
        }
    })
}
