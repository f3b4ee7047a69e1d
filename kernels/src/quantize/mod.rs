//! An f32 row as the integers, or their values in f16, that the next matmul reads, where the kernel that made it could not write them
//! itself.
//!
//! Formats and formulas: `activations`. One workgroup a row, because a `RowScaled` row, or one of `Halves`, has one factor.

mod spec;

pub use spec::QuantizeSpec;
