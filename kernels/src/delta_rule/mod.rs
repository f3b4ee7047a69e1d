//! The gated delta rule: attention whose memory is a matrix a head instead of a cache, row by row.
//!
//! Formula (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"), in the names and details of transformers'
//! `torch_recurrent_gated_delta_rule`. For each value head with state `S` of (key dim, value dim), and its key head's q and k:
//!
//! ```text
//! q, k = x / sqrt(Σ x² + 1e-6)            q is also divided by sqrt(key dim)
//! S *= exp(-exp(rate) · softplus(decay + bias))
//! S += k ⊗ (sigmoid(strength) · (v - Sᵀ k))
//! y  = Sᵀ q
//! ```
//!
//! A column of S depends on no other: some lanes have one, in registers, for all rows of its sequence, and exchange their sums once a row,
//! since Sᵀ q after the correction is what it was before it, plus q·k times the correction. The state is in `recurrent_state`.
//! A row of the input holds q of all key heads, then k, then v of all value heads.

mod spec;
mod twin;

pub use spec::DeltaRuleSpec;
pub use twin::{DeltaRuleInputs, twin};
