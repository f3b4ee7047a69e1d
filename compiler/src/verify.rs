//! [`VerifiedGraph`]: a fused graph in which every value is made once before it is read, with the width its reader expects.
//! A graph that fails is our own mistake, so checks are assertions; later stages take only what passed them.

use unicorn_kernels::heads::Destination;

use crate::fuse::{FusedGraph, FusedOp, HeadsStep, Matrix};
use crate::graph::ValueId;
use crate::import::ModelConfig;

/// A checked graph; the only input of `select`.
pub struct VerifiedGraph(FusedGraph);

impl VerifiedGraph {
    pub fn graph(&self) -> &FusedGraph {
        &self.0
    }
}

impl FusedGraph {
    /// Checks order, uniqueness and widths.
    pub fn verify(self, config: &ModelConfig) -> VerifiedGraph {
        let mut made = vec![false; self.values.len()];
        for node in &self.nodes {
            for input in node.op.inputs() {
                assert!(made[input.0], "value {} is read before it is made", self.values[input.0].name);
            }
            for out in node.op.outputs() {
                assert!(!made[out.0], "value {} is made twice", self.values[out.0].name);
                made[out.0] = true;
            }
            self.verify_widths(&node.op, config);
        }
        assert!(made[self.logits.0], "logits are made");
        VerifiedGraph(self)
    }

    fn width(&self, value: ValueId) -> usize {
        self.values[value.0].width
    }

    fn verify_widths(&self, op: &FusedOp, config: &ModelConfig) {
        match op {
            FusedOp::Embed { table, out, .. } => assert_eq!(self.matrices[table.0].cols(), self.width(*out)),
            FusedOp::Norm(step) => {
                let all = [Some(step.input), step.residual, step.sum, Some(step.out)];
                assert!(all.into_iter().flatten().all(|value| self.width(value) == config.hidden_size));
                assert_eq!(step.residual.is_some(), step.sum.is_some(), "a sum comes with a residual");
            }
            FusedOp::MatMul { input, matrix, act_mul, out, .. } => {
                let matrix = &self.matrices[matrix.0];
                assert_eq!(matrix.cols(), self.width(*input));
                let halves = if act_mul.is_some() { 2 } else { 1 };
                assert_eq!(matrix.rows(), halves * self.width(*out));
                assert_eq!(matrix.interleaved, act_mul.is_some(), "gate and up tiles alternate for act_mul only");
            }
            FusedOp::Heads(step) => self.verify_heads(step, config),
            FusedOp::Attention { query, out } => {
                assert_eq!(self.width(*query), config.n_heads * config.head_dim);
                assert_eq!(self.width(*query), self.width(*out));
            }
            FusedOp::Elementwise { input, second, out, .. } => {
                assert_eq!(self.width(*input), self.width(*out));
                assert!(second.is_none_or(|second| self.width(second) == self.width(*input)));
            }
        }
    }

    fn verify_heads(&self, step: &HeadsStep, config: &ModelConfig) {
        let n_heads: usize = step.parts.iter().map(|part| part.n_heads).sum();
        assert_eq!(self.width(step.input), n_heads * config.head_dim);
        let to_output = step.parts.iter().any(|part| part.to == Destination::Output);
        assert_eq!(step.out.is_some(), to_output, "heads that go to an output have one");
    }
}

impl Matrix {
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    pub fn cols(&self) -> usize {
        self.parts[0].cols
    }
}
