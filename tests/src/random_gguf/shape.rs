//! What is in a file.

use super::metadata::Metadata;
use super::tensor::Tensor;

/// The metadata and the tensors of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// llama.cpp's name of the architecture, which begins the names of its keys.
    pub(super) architecture: &'static str,
    /// llama.cpp's number of the mixture of types in the file.
    pub(super) file_type: u32,
    /// By name without the architecture.
    pub(super) metadata: Vec<(&'static str, Metadata)>,
    pub(super) tensors: Vec<Tensor>,
}
