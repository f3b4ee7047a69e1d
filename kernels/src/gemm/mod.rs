//! Matrix times many activations, on cooperative matrices: the matmul of prefill.
//!
//! Formula: `y[t][n] = Σ_k W[n][k] · x[t][k]`, W packed as in `layout`, x a `RowScaled` row as in `activation_format`.
//! Folded in, according to the spec: bias; activation·mul of interleaved gate and up tiles. Matrix units multiply f16, with sums
//! of f32: x is divided by the row's factor, and the result is multiplied by it. A weight is `(q - zero) * scale`
//! rounded to f16: exact for INT4 unless it is more than 8 steps from zero, and then off by at most 2^-12 of itself.

mod product;
mod spec;
mod twin;

pub use product::{GemmInputs, Product};
pub(crate) use spec::BLOCK;
pub use spec::{GemmSpec, GemmTile};
pub use twin::twin;
