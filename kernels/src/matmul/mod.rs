//! Matrix times activations: the kernel that reads nearly every byte of the model.
//!
//! Formula: `y[t][n] = Σ_k W[n][k] · x[t][k]`, W packed as in `layout`, x as in `activation_format`. Folded in, according to
//! the spec: before it the residual sum and RMS norm (`prologue`, one row at a time); after it bias, activation·mul of
//! interleaved gate and up tiles, the final soft cap, or the quantisation for the next matmul; behind a router's logits the choice of
//! experts, and behind the last matrix of a row's experts the weighted sum of their results.
//!
//! Where x is integers, a group of 32 columns is `scale · x_scale · (Σ q·x_q − zero · Σ x_q)` with both sums in integers, the
//! first by packed dot products and the second stored with x.

mod spec;
mod twin;

pub use spec::{ExpertsSpec, MAX_PARTS, MatMulSpec, MatMulTile, Sharing};
pub use twin::{MatMulInputs, twin};
