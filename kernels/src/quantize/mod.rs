//! Converts an f32 row to the integers, or their values in f16, that the next matmul reads, if the kernel that wrote the row
//! cannot.
//!
//! Formats and formulas: `activation_format`. One workgroup a row, because a `RowScaled` or `Halves` row has one factor.

mod spec;

pub use spec::QuantizeSpec;
