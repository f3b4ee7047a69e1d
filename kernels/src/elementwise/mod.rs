//! One operation on each element of a row: what the unfused graph needs where fusion folds the same into a matmul.

mod spec;
mod twin;

pub use spec::{ElementwiseOp, ElementwiseSpec};
pub use twin::twin_row;
