//! What commands print about a run, and its layout.

pub mod statistics;
pub mod steps;
pub mod table;
pub mod text;
