//! Matrix times many f32 activations: the matmul of prefill on devices without matrix units and packed dot products.
//!
//! Formula: that of `gemm`, `y[t][n] = Σ_k W[n][k] · x[t][k]`, in f32. Folded in, according to the spec: bias; activation·mul of
//! interleaved gate and up tiles.
//!
//! ```text
//! quarter  8 columns: every row of the tile as f32 in workgroup memory, column by column; two of them in turn
//! lane     lane_rows × lane_tiles results: of each column it loads lane_rows activations and lane_tiles weights, four at a time
//! ```
//!
//! A weight is unpacked once for all rows of the step of a workgroup. For 8 × 8 results, a lane then does 64
//! multiplications for four loads.

mod spec;
mod twin;

pub use spec::FloatGemmSpec;
pub use twin::twin;
