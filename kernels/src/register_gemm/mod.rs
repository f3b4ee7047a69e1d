//! The GEMM whose weights reach the matrix units straight from the registers of the lanes that unpacked them.
//!
//! Formula: that of `gemm`, on f16 with sums of f32; activations are rows of `Halves`. Only they are in workgroup memory, shared by
//! the subgroups of a workgroup, each of which has matrix rows of its own. So a weight is unpacked once for all rows of the step
//! that a workgroup has, and neither written to workgroup memory, nor read from it, nor waited for at a barrier.
//!
//! ```text
//! fragment   side × side weights, what a cooperative matrix takes at a time, spread over lanes as in `fragments`
//! stage      128 columns: lane t of the four has columns 32 t … 32 t + 31 of each of its rows in registers, packed
//! depth d    side columns of each lane's: with a side of 16 the pairs 2 d and 2 d + 1 of the 16 that a lane unpacks
//! ```
//!
//! The order of columns does not matter to a sum, as long as activations have the same order, see `activation_format`. Vulkan does
//! not specify which elements of a cooperative matrix a lane holds. Where they are known (`lanes_hold_fragments`), the intrinsic
//! `coop_half_b_from_lanes` makes a fragment of the lanes' words; elsewhere the words are stored to `lane_words`, workgroup memory where
//! fragments lie as rows, and loaded as a matrix from there.
//!
//! Products of gate and up may become the next GEMM's `Halves` at once, with all bits that f16 has, not as codes. A row's factor is
//! then known before its values are: the norm in front leaves rows of known length, and so no product is larger than the lengths
//! of the rows of gate and up allow (Cauchy and Schwarz). The compiler measures those.
//!
//! Where a matrix has too few rows to fill the device, its columns are divided among `splits` workgroups. Each leaves its sums in
//! memory, and the last one to complete adds them up, always in the same order.

mod spec;
mod twin;

pub use spec::{RegisterGemmSpec, RegisterTile};
pub use twin::twin;
