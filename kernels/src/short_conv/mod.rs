//! A short causal convolution of each channel by itself, then SiLU: `y[t][c] = silu(Σ_j w[c][j] · x[t - taps + 1 + j][c])`.
//!
//! Formula: Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024), as transformers' `Qwen3NextGatedDeltaNet` computes it. Inputs before the
//! step's first row come from the sequence's state (`recurrent_state`), which keeps the last ones for the next step; before
//! the sequence's first token they are 0.

mod spec;
mod twin;

pub use spec::ShortConvSpec;
pub use twin::twin;
