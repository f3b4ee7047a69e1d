//! The router of a mixture of experts: for each row, the experts with the highest scores, and the weights of their results.
//!
//! ```text
//! logits  (rows, experts [+ 1]) f32
//! routes  (rows, 2 * (chosen + shared)) u32: the experts by falling score, shared experts | their weights, bits of f32
//! ```
//!
//! A score is the expert's share of the softmax over all logits, or the sigmoid of its logit; experts may be chosen by their score
//! plus a bias of the expert (Wang et al. 2024), and among those of a few groups only (DeepSeek-V2 and V3): of as many groups as are kept,
//! with the highest sums of their best experts' ranks. A rank is what experts are chosen by. A weight is the score, or its share of the chosen experts' scores, times one factor of
//! all and, if experts have a scale, the expert's.
//!
//! ```text
//! experts  ┌ block of 32 ┐┌ block of 32 ┐┌ …      each is counted among those of its block: the first `chosen` are finalists
//!             ↓ chosen       ↓ chosen             finalists are counted among each other: the first `chosen` are the row's
//! ```
//!
//! Shared experts are those that every row is given to. Their weight is 1, or the sigmoid of the logit behind the others.

mod spec;
mod twin;

pub use spec::{ExpertGroups, RouteSpec, Scores, SharedExperts, routes_width};
pub use twin::twin_row;
