//! Streams of the residual beside the active one, `x`, as transformers' `Gemma3nTextModel` makes them of it at the beginning, adds to
//! them in a layer, and makes one of all at the end.
//!
//! ```text
//! begin   s_i = u_i · rms(x) / rms(u_i)
//! add     s_i = u_i + x / rms(x) · w
//! end     y   = (x + Σ_i u_i · rms(x) / rms(u_i)) / n
//! ```
//!
//! `u_i` are the n - 1 rows of another value that belong to a row of `x`. The mean squares of `u_i` that are compared with that of `x`
//! are at least 1e-5, and nothing is added to them.

mod spec;
mod twin;

pub use spec::{StreamsForm, StreamsSpec};
pub use twin::twin_row;
