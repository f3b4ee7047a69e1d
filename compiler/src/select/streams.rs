//! Several streams of the residual (Gemma 3n), and the products of gates of which only large ones are kept.

use unicorn_kernels::altup::{AltUpForm, AltUpSpec};
use unicorn_kernels::laurel::LaurelSpec;
use unicorn_kernels::sparse_act_mul::SparseActMulSpec;
use unicorn_kernels::streams::StreamsSpec;
use unicorn_kernels::{KernelSpec, Number, Role};

use super::{Operand, Selector, stride};
use crate::fuse::{FusedNode, FusedOp, VectorId};
use crate::graph::StreamsOp;

impl Selector<'_> {
    pub(super) fn streams(&mut self, node: &FusedNode, op: &StreamsOp<VectorId>) {
        let weights = op.weights().map(|&weights| Operand::Weight(self.weights.vector(weights)));
        let weights = || weights.expect("it has weights");
        let kernel = self.streams_kernel(op);
        let operand = |role| match (*op, role) {
            (_, Role::StreamWeights) => weights(),
            (StreamsOp::Combine { input, .. }, Role::Input) => Operand::Value(input),
            (StreamsOp::Combine { others, .. }, Role::Streams) => Operand::Value(others),
            (StreamsOp::Combine { out, .. }, _) => Operand::Value(out),
            (StreamsOp::Predict { streams: [first, _], .. }, Role::Input) => Operand::Value(first),
            (StreamsOp::Predict { streams: [_, others], .. }, Role::Streams) => Operand::Value(others),
            (StreamsOp::Predict { out: [_, others], .. }, Role::MadeStreams) => Operand::Value(others),
            (StreamsOp::Predict { out: [first, _], .. }, _) => Operand::Value(first),
            (StreamsOp::Correct { activated, .. }, Role::Input) => Operand::Value(activated),
            (StreamsOp::Correct { streams: [first, _], .. }, Role::Second) => Operand::Value(first),
            (StreamsOp::Correct { streams: [_, others], .. }, Role::Streams) => Operand::Value(others),
            (StreamsOp::Correct { out: [_, others], .. }, Role::MadeStreams) => Operand::Value(others),
            (StreamsOp::Correct { scaled, .. }, Role::ScaledOutput) => Operand::Value(scaled),
            (StreamsOp::Correct { out: [first, _], .. }, _) => Operand::Value(first),
            (StreamsOp::Laurel { stream, .. }, Role::Input) => Operand::Value(stream),
            (StreamsOp::Laurel { attended, .. }, Role::Second) => Operand::Value(attended),
            (StreamsOp::Laurel { laurel, .. }, Role::Third) => Operand::Value(laurel),
            (StreamsOp::Laurel { out, .. }, _) => Operand::Value(out),
        };
        self.push(node, kernel, self.kind.rows, 0, operand);
        if let StreamsOp::Correct { scaled, .. } = *op {
            self.quantize(node, scaled);
        }
    }

    fn streams_kernel(&self, op: &StreamsOp<VectorId>) -> KernelSpec {
        let (width, eps) = (self.config.hidden_size, Number::new(self.config.rms_norm_eps));
        let (stride, lanes, subgroup_size) = (stride(width), self.target.norm.lanes, self.target.subgroup_size);
        let streams = self.config.streams.as_ref().map_or(1, |streams| streams.count);
        let altup = |form| KernelSpec::AltUp(AltUpSpec { form, width, stride, streams, eps, lanes, subgroup_size });
        match *op {
            StreamsOp::Combine { form, .. } => {
                let others = streams - 1;
                KernelSpec::Streams(StreamsSpec { form, width, stride, others, eps, lanes, subgroup_size })
            }
            StreamsOp::Predict { .. } => altup(AltUpForm::Predict),
            StreamsOp::Correct { .. } => altup(AltUpForm::Correct),
            StreamsOp::Laurel { .. } => KernelSpec::Laurel(LaurelSpec { width, stride, eps, lanes, subgroup_size }),
        }
    }

    pub(super) fn sparse_act_mul(&mut self, node: &FusedNode) {
        let FusedOp::SparseActMul { gate, up, activation, deviations, out } = node.op else {
            unreachable!("called for sparse products")
        };
        let spec = SparseActMulSpec {
            width: self.graph.values[out.0].width,
            stride: self.stride_of(out),
            activation,
            deviations: Number::new(deviations),
            lanes: self.target.norm.lanes,
            subgroup_size: self.target.subgroup_size,
        };
        self.push(node, KernelSpec::SparseActMul(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(gate),
            Role::Second => Operand::Value(up),
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }
}
