//! Attention of an image's patches: each head's query looks at the keys of all patches, before and behind it.
//!
//! `o = Σ_j softmax_j(scale · q · k_j) v_j`, with an online softmax (Milakov and Gimelshein 2018): sums so far are rescaled when a larger
//! score is found. Queries, keys and values are rows of activations in f32; nothing is cached.

mod spec;
mod twin;

pub use spec::ImageAttentionSpec;
pub use twin::{ImageAttentionInputs, twin};
