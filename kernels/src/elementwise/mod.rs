//! One operation on each element of a row, for graphs in which it is not fused into a matmul.

mod spec;
mod twin;

pub use spec::{ElementwiseOp, ElementwiseSpec};
pub use twin::twin_row;
