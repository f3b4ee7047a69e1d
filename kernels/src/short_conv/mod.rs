//! A short causal convolution of each channel by itself: `s[t][c] = Σ_j w[c][j] · x[t - taps + 1 + j][c]`, and a function of `s`.
//!
//! Formulas: `silu(s)` in a gated delta net (Yang, Kautz and Hatamizadeh 2024), as transformers' `Qwen3NextGatedDeltaNet` computes
//! it; in LFM2 (Liquid AI 2025, transformers' `Lfm2ShortConv`) a row is `b`, `c` and `u` side by side, with `x = b · u` and the
//! result `c · s`. Inputs before the step's first row come from the sequence's state (`recurrent_state`), which keeps the last ones
//! for the next step; before the sequence's first token they are 0.

mod spec;
mod twin;

pub use spec::{ConvForm, ShortConvSpec};
pub use twin::twin;
