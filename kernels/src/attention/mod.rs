//! Attention over the paged KV cache, softmax taken online, tile by tile of cached tokens.
//!
//! Formula: `o = Σ_t softmax_t(cap(q·k_t)) · v_t` over the tokens `t` that a row may attend to: those of its own sequence up to its
//! own position and, in a windowed layer, no more than `window` of them. q is already scaled. The running maximum and sum
//! follow Milakov and Gimelshein 2018 and FlashAttention (Dao et al. 2022).
//!
//! A workgroup takes one KV head, a few rows and a part of the tokens, so that the heads of a GQA group share each read of
//! K and V. While scoring, a lane is a cached token; while accumulating V, a lane is a chunk of dimensions and a share of the
//! tokens. If `max_splits` is 1 it writes the result; otherwise each split writes a maximum, a sum of weights and a weighted sum of V for `combine`.
//!
//! Where each row of the step is the only one of its sequence, this kernel can do the work of `heads` as a prologue: every
//! workgroup prepares its own query heads, and split 0 also makes K and V of the newest token, writes them to the cache
//! for later steps and begins with that token. No other workgroup reads that cell in this step.

mod spec;
mod twin;

pub use spec::{AttentionSpec, TILE};
pub use twin::{AttentionInputs, twin};
