//! The kernel in plain loops, to check it by.

use super::spec::{ElementwiseOp, ElementwiseSpec};

/// One row in plain loops; `second` may also be the bias, a factor, or a gate's only element; it is empty for a soft cap.
pub fn twin_row(spec: &ElementwiseSpec, input: &[f32], second: &[f32]) -> Vec<f32> {
    let apply = |(column, &x): (usize, &f32)| match spec.op {
        ElementwiseOp::Add | ElementwiseOp::Bias => x + second[column],
        ElementwiseOp::Scale => x * second[0],
        ElementwiseOp::ActMul(activation) => activation.gated(x, second[column]),
        ElementwiseOp::ActMulPart { activation, first, .. } => activation.gated(x, second[first + column]),
        ElementwiseOp::Gate { .. } => x / (1.0 + (-second[0]).exp()),
        ElementwiseOp::GateEach => x / (1.0 + (-second[column]).exp()),
        ElementwiseOp::SoftCap(cap) => cap.get() * (x / cap.get()).tanh(),
    };
    input[..spec.width].iter().enumerate().map(apply).collect()
}
