//! Which elements of a cooperative matrix each lane holds: how `register_gemm` has them, and a kernel that looks whether a device has
//! them so.
//!
//! ```text
//! lane l of a subgroup   four lanes share a row: l / 4, and every so-many-th row from there on
//!                        place t = l % 4; of each row the columns 2 t and 2 t + 1, and in a matrix of 16 columns 8 + 2 t and 9 + 2 t
//! its elements           row by row, two columns a word
//! ```
//!
//! The kernel makes a matrix whose elements are their own numbers, multiplies it by the identity, which does not care how, and counts the
//! numbers that are not where they belong. Not part of any program.

mod spec;

pub(crate) use spec::ROW_LANES;
pub use spec::{Fragment, FragmentsSpec};
