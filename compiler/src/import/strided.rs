//! Canonical tensors whose elements are not rows of a source tensor: transposed experts, the matrices of latent
//! attention's heads, and a vision tower's first and last.

use super::config::ModelConfig;
use super::source_layout::Elements;
use super::{latent, transposed, vision};

/// The content of the folder's tensor `canonical`: its shape, and the canonical names and places of what it holds. `None`: it holds rows.
pub(super) fn stack(config: &ModelConfig, canonical: &str) -> Option<transposed::Stack> {
    transposed::stack(config, canonical)
        .or_else(|| latent::stack(config, canonical))
        .or_else(|| vision::stack(config, canonical))
}

/// Where the elements of a canonical tensor are stored in its source tensor; `None`: they are whole rows.
pub(super) fn elements(config: &ModelConfig, ours: &str) -> Option<Elements> {
    transposed::elements(config, ours).or_else(|| latent::elements(config, ours))
}

/// The folder's shape of the tensor that holds ours; `None`: it holds rows.
pub(crate) fn strided_shape(config: &ModelConfig, ours: &str) -> Option<Vec<usize>> {
    transposed::shape(config, ours).or_else(|| latent::shape(config, ours))
}
