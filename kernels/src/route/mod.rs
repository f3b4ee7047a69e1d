//! The router of a mixture of experts: of each row, the experts of the highest logits and what their results are multiplied by.
//!
//! ```text
//! logits  (rows, experts) f32
//! routes  (rows, 2 * chosen) u32: the experts by falling logit | their weights, bits of f32
//! ```
//!
//! A weight is the expert's share of the softmax over all logits, or of those of the chosen ones alone; and where experts have a scale,
//! that is multiplied by it.

mod spec;
mod twin;

pub use spec::{RouteSpec, routes_width};
pub use twin::twin_row;
