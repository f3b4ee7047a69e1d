//! RMS norm of each head of a row, times SiLU of a gate: `y = x / rms(x) · w · silu(g)`, as transformers' `Qwen3NextRMSNormGated`;
//! or plus a second input.

mod spec;
mod twin;

pub use spec::{GatedForm, GatedNormSpec};
pub use twin::twin_row;
