//! Residual sum and RMS norm: `s = r + [post](x)`, `y = s / rms(s) · w`.
//!
//! Formula (Zhang and Sennrich 2019): `rms(s) = sqrt(mean(s²) + eps)`. Gemma norms the block's output once more before the sum
//! (`post_norm`), and Gemma 4 multiplies the sum by a number of the layer (`scale_sum`). It is a kernel of its own where a step has
//! many rows, and the prologue of a matmul of one row.

mod spec;
mod twin;

pub use spec::NormSpec;
pub use twin::norm_row;
