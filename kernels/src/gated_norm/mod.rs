//! RMS norm of each head of a row, times SiLU of a gate: `y = x / rms(x) · w · silu(g)`, as transformers' `Qwen3NextRMSNormGated`.

mod spec;
mod twin;

pub use spec::GatedNormSpec;
pub use twin::twin_row;
