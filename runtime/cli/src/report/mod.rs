//! What commands print about a run, and how it is laid out.

pub mod statistics;
pub mod steps;
pub mod table;
pub mod text;
