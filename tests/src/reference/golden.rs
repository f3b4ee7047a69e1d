//! The answer of another implementation: `golden.safetensors` beside a model's weights.

use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};

use super::weights::values_as_f32;

/// Logits of `tokens`, and the tokens that follow them greedily.
pub struct Golden {
    /// (tokens)
    pub tokens: Vec<i32>,
    /// (tokens, vocab)
    pub logits: Vec<f32>,
    pub greedy: Vec<i32>,
}

/// Reads `golden.safetensors` of a model's folder.
///
/// # Panics
/// If the file is missing or lacks one of the three tensors.
pub fn read_golden(folder: impl AsRef<Path>) -> Golden {
    let file = folder.as_ref().join("golden.safetensors");
    with_tensors(&file, |tensors| Golden {
        tokens: token_ids(tensors, "tokens"),
        logits: logits(tensors),
        greedy: token_ids(tensors, "greedy"),
    })
}

/// What a head that predicts the token behind the next one makes of a golden's tokens, by `tests/golden/predictor.py`.
pub struct PredictorGolden {
    /// (tokens - 1, vocab): of each token but the first, logits of the one that follows it.
    pub predicted: Vec<f32>,
    /// Drafts behind all tokens and the first that follows them greedily.
    pub drafts: Vec<i32>,
}

/// Reads `predictor.safetensors` of a model's folder.
///
/// # Panics
/// If the file is missing or lacks one of the two tensors.
pub fn read_predictor_golden(folder: impl AsRef<Path>) -> PredictorGolden {
    let file = folder.as_ref().join("predictor.safetensors");
    with_tensors(&file, |tensors| PredictorGolden {
        predicted: values_as_f32(&tensors.tensor("predicted").expect("the file has a tensor `predicted`")),
        drafts: token_ids(tensors, "drafts"),
    })
}

/// The tensor `logits` (tokens, vocab) of any safetensors file.
///
/// # Panics
/// If the file is missing or has no such tensor.
pub fn read_logits(file: impl AsRef<Path>) -> Vec<f32> {
    with_tensors(file.as_ref(), logits)
}

fn with_tensors<T>(file: &Path, read: impl FnOnce(&SafeTensors) -> T) -> T {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    read(&SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

fn logits(tensors: &SafeTensors) -> Vec<f32> {
    values_as_f32(&tensors.tensor("logits").expect("the file has a tensor `logits`"))
}

fn token_ids(tensors: &SafeTensors, name: &str) -> Vec<i32> {
    let view = tensors.tensor(name).unwrap_or_else(|error| panic!("tensor {name}: {error}"));
    assert_eq!(view.dtype(), Dtype::I32, "tensor {name} has token ids");
    view.data().as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
}
