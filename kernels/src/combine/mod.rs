//! Combines the partial results of the splits of attention: `o = Σ_s e^(m_s - m) · o_s / Σ_s e^(m_s - m) · sum_s`, `m = max m_s`.
//!
//! ```text
//! partials   [row][head][split]( o_s: head_dim / 4 vec4<f32>, then vec4(maximum m_s, sum_s, splits, 0) )
//! ```
//!
//! A split's o_s (its weighted sum of V) and sum_s have the weights `e^(score - m_s)`. The buffer may hold more splits than
//! attention makes: each split stores their number, so that this kernel does not depend on how attention was split, and the parts
//! after the last split are not read.

mod spec;
mod twin;

pub use spec::{CombineSpec, partials_len};
pub(crate) use spec::{MASKED, partial_quads, result_role, result_values};
pub use twin::twin;
pub(crate) use twin::{store_heads, with_sink};
