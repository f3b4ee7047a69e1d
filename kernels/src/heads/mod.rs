//! Work on the heads of q, k and v between projection and attention: QK norm, RoPE, query scale, KV write.
//!
//! Formulas, per head `h` of `head_dim` elements: norm as in `norm`; RoPE (Su et al. 2021) in the half-split form of
//! transformers: pair `(i, i + d/2)` of `d = rotary_dim` consecutive elements is rotated by `position · inv_freq[i]`. Cos and sin come
//! from two short tables by the addition theorem, so that no GPU computes the sine of a large angle.
//!
//! ```text
//! rope table   vec2(cos, sin)   variant 0: [position / 256][pair], then [position % 256][pair]; variant 1 the same
//! ```
//!
//! The layout of the cache's pages is in `cache`. Where each row of a step is the only row of its sequence, attention does all
//! this itself, as its prologue.

mod spec;
mod twin;

pub use spec::{Destination, Growth, HeadsPart, HeadsSpec, NormOf, ROPE_FINE, RopePositions, rope_coarse, rope_table};
pub use twin::{HeadsInputs, twin};
