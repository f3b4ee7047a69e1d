//! The router of a mixture of experts: for each row, the experts with the highest logits, and the weights of their results.
//!
//! ```text
//! logits  (rows, experts) f32
//! routes  (rows, 2 * chosen) u32: the experts by falling logit | their weights, bits of f32
//! ```
//!
//! A weight is the expert's share of the softmax over all logits, or over those of the chosen experts alone; if experts have a
//! scale, the share is multiplied by it.

mod spec;
mod twin;

pub use spec::{RouteSpec, routes_width};
pub use twin::twin_row;
