//! Products that an NPU computes between two dispatches: one converts f32 rows to its activations, one its outputs to f32 rows.

use std::collections::BTreeMap;

use unicorn_kernels::npu::tile::GemmShape;
use unicorn_kernels::npu_input::NpuInputSpec;
use unicorn_kernels::npu_output::NpuOutputSpec;
use unicorn_kernels::{KernelSpec, Role};

use super::matmul::quantize_lanes;
use super::{Operand, Selector};
use crate::fuse::{FusedNode, FusedOp, MatrixId};

/// The products that an NPU computes in a step.
pub struct NpuProducts {
    /// Tokens of the step.
    pub rows: usize,
    /// Index of the product and shape of its program, by matrix.
    pub products: BTreeMap<MatrixId, (usize, GemmShape)>,
}

impl Selector<'_> {
    /// The NPU's product that computes a node.
    pub(super) fn on_npu(&self, node: &FusedNode) -> Option<(usize, GemmShape)> {
        let FusedOp::MatMul { matrix, .. } = &node.op else { return None };
        self.npu?.products.get(matrix).copied()
    }

    /// Both dispatches around the NPU's command.
    pub(super) fn npu_product(&mut self, node: &FusedNode, product: usize, shape: &GemmShape) {
        let FusedOp::MatMul { input, out, .. } = node.op else { unreachable!("called for matmuls") };
        let (width, stride) = (self.graph.values[input.0].width, self.stride_of(input));
        let lanes = quantize_lanes(width, self.target.workgroup_invocations);
        let spec = NpuInputSpec::of(shape, width, stride, lanes, self.target.subgroup_size);
        let words = shape.activation_bytes() / 4;
        self.push(node, KernelSpec::NpuInput(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(input),
            _ => Operand::NpuInput { product, words },
        });
        self.dispatches.last_mut().expect("pushed above").label += " to the NPU";
        let spec = NpuOutputSpec {
            width: self.graph.values[out.0].width,
            outputs: shape.outputs(),
            stride: self.stride_of(out),
        };
        let words = shape.rows * shape.outputs() / 2;
        let result = self.value(out);
        self.push(node, KernelSpec::NpuOutput(spec), self.kind.rows, 0, |role| match role {
            Role::QuantizedInput => Operand::NpuOutput { product, words },
            _ => result,
        });
        self.dispatches.last_mut().expect("pushed above").label += " from the NPU";
    }
}
