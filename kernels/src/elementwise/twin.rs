//! The kernel in plain loops, to check it by.

use super::spec::{ElementwiseOp, ElementwiseSpec};

/// One row in plain loops; `second` may also be the bias, of this row, a factor, or a gate's only element; it is empty where the
/// operation has one operand, and where the row is none of an image.
pub fn twin_row(spec: &ElementwiseSpec, input: &[f32], second: &[f32]) -> Vec<f32> {
    let apply = |(column, &x): (usize, &f32)| match spec.op {
        ElementwiseOp::Copy => x,
        ElementwiseOp::Add | ElementwiseOp::Bias | ElementwiseOp::RowBias => x + second[column],
        ElementwiseOp::ImageFeatures { first, .. } => x + second.get(first + column).copied().unwrap_or_default(),
        ElementwiseOp::Activate(activation) => activation.apply(x),
        ElementwiseOp::Scale => x * second[0],
        ElementwiseOp::ActMul(activation) => activation.gated(x, second[column]),
        ElementwiseOp::ActMulPart { activation, first, .. } => activation.gated(x, second[first + column]),
        ElementwiseOp::Gate { .. } => x / (1.0 + (-second[0]).exp()),
        ElementwiseOp::GateEach => x / (1.0 + (-second[column]).exp()),
        ElementwiseOp::SoftCap(cap) => cap.get() * (x / cap.get()).tanh(),
    };
    input[..spec.width].iter().enumerate().map(apply).collect()
}
