//! Mixtures of experts: which experts each row is given to, their matmuls, and the sum of what they make.

use unicorn_kernels::expert_sum::ExpertSumSpec;
use unicorn_kernels::layout::TILE_ROWS;
use unicorn_kernels::matmul::{ExpertsSpec, MatMulSpec, MatMulTile};
use unicorn_kernels::route::RouteSpec;
use unicorn_kernels::{ActivationFormat, KernelSpec, Precision, Role, WeightLayout};

use super::tile::tile;
use super::{Operand, Selector};
use crate::fuse::{FusedNode, FusedOp};
use crate::graph::ValueId;
use crate::weights::PackedId;

impl Selector<'_> {
    pub(super) fn route(&mut self, node: &FusedNode) {
        let FusedOp::Route { input, chosen, normalized, out } = node.op else { unreachable!("called for routers") };
        let spec = RouteSpec {
            experts: self.graph.values[input.0].width,
            chosen,
            normalized,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
        };
        self.push(node, KernelSpec::Route(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(input),
            _ => Operand::Value(out),
        });
    }

    pub(super) fn expert_sum(&mut self, node: &FusedNode) {
        let FusedOp::ExpertSum { input, routes, out } = node.op else { unreachable!("called for sums") };
        let value = &self.graph.values[input.0];
        let spec = ExpertSumSpec {
            width: value.width,
            chosen: value.rows_per_token,
            stride: self.stride_of(input),
            routes_stride: self.stride_of(routes),
        };
        self.push(node, KernelSpec::ExpertSum(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::Routes => Operand::Value(routes),
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    /// One dispatch for each part of the stack: of a row whose expert is in another part, workgroups end at once.
    pub(super) fn expert_matmul(&mut self, node: &FusedNode) {
        let FusedOp::ExpertMatMul { input, routes, matrix, out, .. } = node.op else {
            unreachable!("called for experts")
        };
        let experts = self.graph.matrices[matrix.0].experts.expect("experts are a stack");
        let encodes = self.experts_encode(node);
        let input_operand = |format| match format {
            ActivationFormat::F32 => Operand::Value(input),
            _ => Operand::Encoded(input),
        };
        for (part, &id) in self.weights.matrix(matrix).iter().enumerate() {
            let spec = self.expert_spec(node, id, encodes);
            let input = input_operand(spec.input);
            // Of rows that are given to as many experts as there are, each is read once if caches are kind.
            let read = self.rows_of(out).min(experts);
            let bytes = self.weights.get(id).len_bytes * read as u64 / experts as u64;
            self.push(node, KernelSpec::MatMul(spec), self.kind.rows, bytes, |role| match role {
                Role::Weights => Operand::Weight(id),
                Role::Routes => Operand::Value(routes),
                Role::InputQuads | Role::QuantizedInput => input,
                Role::Encoded => Operand::Encoded(out),
                _ => Operand::Value(out),
            });
            self.mark_part(part);
        }
        if !encodes {
            self.quantize(node, out);
        }
    }

    fn expert_spec(&self, node: &FusedNode, id: PackedId, encodes: bool) -> MatMulSpec {
        let FusedOp::ExpertMatMul { input, routes, matrix, act_mul, out } = node.op else {
            unreachable!("called for experts")
        };
        let (stack, first_row) = self.matrix(id);
        let matrix = &self.graph.matrices[matrix.0];
        let expert_rows = matrix.expert_rows();
        let own = &self.graph.values[out.0];
        let mut spec = MatMulSpec {
            layout: WeightLayout { rows: matrix.rows(), ..stack },
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            output_first: 0,
            input: self.experts_input(input),
            output: if encodes { self.stored_format(out) } else { ActivationFormat::F32 },
            prologue: None,
            bias: false,
            act_mul,
            fused_tail: None,
            clears: 0,
            softcap: None,
            experts: Some(ExpertsSpec {
                chosen: own.rows_per_token,
                own_input: self.graph.values[input.0].rows_per_token > 1,
                first: first_row / expert_rows,
                count: stack.rows / expert_rows,
                routes_stride: self.stride_of(routes),
            }),
            row_from_step: false,
            tile: MatMulTile::default(),
            subgroup_size: self.target.subgroup_size,
            counter_sync: false,
        };
        debug_assert!(expert_rows.is_multiple_of(TILE_ROWS));
        spec.tile = tile(self.target, &spec, 1);
        spec
    }

    /// The format in which experts read a value: integers also where others, such as the router, read it in f32.
    pub(super) fn experts_input(&self, value: ValueId) -> ActivationFormat {
        match self.stored_format(value) {
            ActivationFormat::F32 => self.encoded_beside(value).unwrap_or(ActivationFormat::F32),
            stored => stored,
        }
    }

    /// The integers that experts read of a value that is stored in f32.
    pub(super) fn encoded_beside(&self, value: ValueId) -> Option<ActivationFormat> {
        let is_read_by_experts =
            self.readers(value).any(|node| matches!(node.op, FusedOp::ExpertMatMul { input, .. } if input == value));
        let is_f32 = self.stored_format(value) == ActivationFormat::F32;
        (is_f32 && is_read_by_experts && self.reads_integers(value)).then_some(EXPERTS_INPUT)
    }

    /// What experts read best of `input`.
    pub(super) fn best_experts_input(&self, input: ValueId) -> ActivationFormat {
        if self.reads_integers(input) { EXPERTS_INPUT } else { ActivationFormat::F32 }
    }

    /// Whether the matmul makes the integers that its result is wanted in.
    fn experts_encode(&self, node: &FusedNode) -> bool {
        let FusedOp::ExpertMatMul { act_mul, out, .. } = node.op else { return false };
        act_mul.is_some() && self.stored_format(out) == EXPERTS_INPUT
    }
}

const EXPERTS_INPUT: ActivationFormat = ActivationFormat::Quantized(Precision::Int8);
