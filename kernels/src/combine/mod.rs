//! What the splits of attention found, put together: `o = Σ_s e^(m_s - m) · mix_s / Σ_s e^(m_s - m) · sum_s`, `m = max m_s`.
//!
//! ```text
//! partials   [row][head][room]( mix: head_dim / 4 vec4<f32>, then vec4(maximum m_s, sum_s, splits, 0) )
//! ```
//!
//! A split's mix and sum are of `e^(score - m_s)`. There is room for more splits than attention may make: each says how many
//! there are, so that this kernel need not know how attention was cut, and what lies behind them stays as it was.

mod spec;
mod twin;

pub use spec::{CombineSpec, partials_len};
pub(crate) use spec::{MASKED, partial_quads, result_role, result_values};
pub use twin::twin;
