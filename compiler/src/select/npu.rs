//! Products that an NPU computes between two dispatches: one converts f32 rows to its activations, one its outputs to f32 rows.

use std::collections::BTreeMap;

use unicorn_artifact::npu::MAX_RUNS;
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_kernels::npu_input::NpuInputSpec;
use unicorn_kernels::npu_output::NpuOutputSpec;
use unicorn_kernels::{KernelSpec, Number, Role};

use super::matmul::quantize_lanes;
use super::{Operand, Selector};
use crate::fuse::{FusedNode, FusedOp, MatrixId, NormStep};
use crate::graph::ValueId;

/// The products that an NPU computes in a step.
pub struct NpuProducts {
    /// Tokens of the step.
    pub rows: usize,
    /// Index of the product and shape of its program, by matrix.
    pub products: BTreeMap<MatrixId, (usize, GemmShape)>,
}

impl NpuProducts {
    /// Whether steps of `rows` rows use the NPU: those of its programs' rows, and multiples for which it runs them several times, but for steps of one token.
    pub fn serves(&self, rows: usize) -> bool {
        let is_multiple = |rows: usize| rows.is_multiple_of(self.rows) && rows / self.rows <= MAX_RUNS as usize;
        let has_whole_tiles = || self.products.values().all(|(_, shape)| shape.rows == self.rows);
        !self.products.is_empty() && (rows == self.rows || self.rows > 1 && is_multiple(rows) && has_whole_tiles())
    }

    /// Parts in which the NPU takes a step of `rows` rows, which it serves.
    pub fn parts(&self, rows: usize) -> usize {
        rows / self.rows
    }
}

impl Selector<'_> {
    /// The NPU's product that computes a node.
    pub(super) fn on_npu(&self, node: &FusedNode) -> Option<(usize, GemmShape)> {
        let FusedOp::MatMul { matrix, .. } = &node.op else { return None };
        self.npu?.products.get(matrix).copied()
    }

    /// Whether the NPU is given this norm's rows before it, since only its products read them: the kernel that converts them multiplies by the norm's weights, and
    /// a core divides its sums.
    pub(super) fn ends_on_npu(&self, step: &NormStep) -> bool {
        let mut readers = self.readers(step.out).peekable();
        let can_fold = self.options.fold && step.weight.is_some() && !self.is_result(step.out);
        can_fold && readers.peek().is_some() && readers.all(|reader| self.on_npu(reader).is_some())
    }

    /// The norm of this kind that makes `value`.
    fn norm_to_npu(&self, value: ValueId) -> Option<&NormStep> {
        let FusedOp::Norm(step) = &self.verified.producer(value)?.op else { return None };
        (step.out == value && self.ends_on_npu(step)).then_some(step)
    }

    /// Both dispatches around the NPU's command.
    pub(super) fn npu_product(&mut self, node: &FusedNode, product: usize, shape: &GemmShape) {
        let FusedOp::MatMul { input, out, .. } = node.op else { unreachable!("called for matmuls") };
        let (width, stride) = (self.graph.values[input.0].width, self.stride_of(input));
        let lanes = quantize_lanes(width, self.target.workgroup_invocations);
        // Row tiles follow each other: rows of several runs have the layout of a program with as many rows.
        let shape = &GemmShape { rows: shape.rows.max(self.kind.rows), ..*shape };
        let norm = self.norm_to_npu(input);
        let rows = norm.map_or(input, NormStep::before);
        let weight = norm.and_then(|step| self.norm_operand(step, Role::NormWeight));
        let spec = NpuInputSpec {
            norm_eps: norm.map(|step| Number::new(self.norm_eps(step))),
            ..NpuInputSpec::of(shape, width, stride, lanes, self.target.subgroup_size)
        };
        let words = shape.activation_bytes() / 4;
        self.push(node, KernelSpec::NpuInput(spec), self.kind.rows, 0, |role| match role {
            Role::InputQuads => Operand::Value(rows),
            Role::NormWeight => weight.expect("the norm has weights"),
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
