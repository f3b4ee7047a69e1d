//! Which elements of a cooperative matrix each lane holds: the layout that `register_gemm` assumes, and a kernel that checks it on a
//! device.
//!
//! ```text
//! lane l of a subgroup   four lanes share a row: l / 4, and every n-th row from there on
//!                        place t = l % 4; of each row the columns 2 t and 2 t + 1, and in a matrix of 16 columns 8 + 2 t and 9 + 2 t
//! its elements           row by row, two columns a word
//! ```
//!
//! The kernel makes a matrix whose elements are their own indices, multiplies it by the identity, stores the product as rows and counts
//! the elements that are elsewhere. The runtime runs it at each start; it is part of no program.

mod spec;

pub(crate) use spec::{EXTENSIONS, ROW_LANES};
pub use spec::{Fragment, FragmentsSpec};
