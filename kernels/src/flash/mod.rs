//! Attention of prefill on cooperative matrices: many rows of one sequence over the paged KV cache.
//!
//! Formula and cache as in `attention`. A workgroup takes `heads_per_group` query heads of one KV head and a few
//! rows: together `queries` vectors. It walks the pages that some of them attend to, and skips the others:
//!
//! ```text
//! S = Q Kᵀ      matrices    a subgroup has a strip of queries and a slice of their dimensions; slices are added
//! P = e^(S-m)   lanes       mask, soft cap, maximum m so far and sum, in f32; then f16
//! O = f O + P V matrices    f = e^(m before - m) of each query, as a matrix of equal columns; divided by the sums at last
//! ```
//!
//! Q, P, K and V are f16, sums are f32. P is `2^14` times what it is in the formula, so that small weights are not subnormal; the
//! sums have the same factor. V is stored transposed in workgroup memory, so that the summed dimension of both operands is
//! contiguous.
//!
//! Patches of an image, which all attend to each other, have no cache: K and V are rows of activations, of which the workgroup makes f16.

mod patches;
mod spec;
mod twin;

pub use patches::PatchRows;
pub use spec::{FlashSpec, FlashTile};
pub use twin::twin;
