//! Measuring alternatives, and the tuning that is applied at load.

pub mod measure;
pub mod tuning;
