//! The largest sizes that a file may have, inclusive: above any published model, and small enough that no product of two of them
//! overflows.

pub(crate) const HIDDEN_SIZE: usize = 1 << 20;
pub(crate) const INTERMEDIATE_SIZE: usize = 1 << 22;
pub(crate) const HEADS: usize = 1 << 12;
pub(crate) const HEAD_DIM: usize = 1 << 12;
pub(crate) const VOCAB_SIZE: usize = 1 << 24;
pub(crate) const LAYERS: usize = unicorn_artifact::plan::MAX_LAYERS as usize;
pub(crate) const POSITIONS: usize = 1 << 30;
pub(crate) const EXPERTS: usize = 1 << 12;
/// A lane of the delta rule has this many numbers in registers.
pub(crate) const DELTA_KEY_DIM: usize = 256;
/// Pixels of a side of an image and of a patch.
pub(crate) const IMAGE_SIZE: usize = 1 << 12;
pub(crate) const PATCH_SIZE: usize = 1 << 8;
/// A lane of an image's attention has a query and its sums in registers.
pub(crate) const IMAGE_HEAD_DIM: usize = 128;
pub(crate) const TAPS: usize = 32;
/// A lane has a number of each two streams in registers.
pub(crate) const STREAMS: usize = 8;
/// A lane of attention takes a chunk of 8 elements of a token's latent vector, and a workgroup has 64.
pub(crate) const LATENT_RANK: usize = 512;
