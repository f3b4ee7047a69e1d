//! tests

pub mod reference;
pub mod tiny_model;
