//! The maths of the NPU's kernels (AMD XDNA1, AIE2): what one core computes on one object of each stream, as plain loops.
//!
//! Attention of prefill is in [`attention`]. The other kernel is the W4A8 product, a GEMM or a GEMV, `out = scale(activations · weightsᵀ)`, with INT4 weights and INT8 activations.
//!
//! ```text
//! output (row, column) = epilogue( row_scale[row] · column_scale[column] · Σ over groups of k:
//!                                    (row_multiplier[row, group] · column_multiplier[column, group] + half >> shift)
//!                                    · ((Σ over the group: a[row, k] · w[column, k]) + half >> shift) )
//! ```
//!
//! The core's matrix unit multiplies 4×16 INT8 by 16×8 INT4 into 4×8 i32 in one cycle. A float scale for each group would cost several
//! times that, since AIE2 has no f32 vector unit. So scales have two levels, as in QServe (arXiv 2405.04532) and in GGUF's k-quants: a float
//! for each output column and for each row, and a small integer for each column and group and for each row and group, which an integer multiplication
//! applies. Rounding shifts keep a group's sum in 16 bits, for which the elementwise multiplication has 32 lanes, and the sum over all groups in 32; the column
//! scale makes up for them. The rows of four blocks (a core's registers have so many) have the same integers of a group, so that the product of both integers
//! is computed once for the four.
//!
//! [`tile`] gives the place of each byte of a stream, [`rotation`] and [`quantize`] make weights and activations of this form, [`twin`] computes on them.

pub mod attention;
pub mod quantize;
pub mod rotation;
pub mod tile;
pub mod twin;
