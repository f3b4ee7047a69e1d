//! Matrix times many activations, by packed integer dot products: the matmul of prefill on devices without matrix units.
//!
//! Formula: that of `gemm`, `y[t][n] = Σ_k W[n][k] · x[t][k]`, x a `Quantized` row as in `activation_format`. Folded in, according
//! to the spec: bias; activation·mul of interleaved gate and up tiles.
//!
//! ```text
//! stage    32 columns: of every row of the tile, its int8 codes and a scale, in workgroup memory
//! lane     lane_rows × lane_tiles results: a weight that it loads is multiplied by lane_rows rows of the step
//! ```
//!
//! An INT4 weight is stored there as `q - zero`, an int8: then a group of 32 columns is eight dot products, a conversion and two multiplications,
//! without a correction for the zero point, and each weight is unpacked once for all rows of the step of a workgroup.
//! `matmul`, which unpacks it again for every `tokens_per_lane` rows, has as many other instructions as dot products.

mod spec;
mod twin;

pub use spec::DotGemmSpec;
pub use twin::twin;
