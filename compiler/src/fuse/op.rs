//! The operations of a fused graph.

use unicorn_kernels::Activation;
use unicorn_kernels::elementwise::ElementwiseOp;
use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::heads::{Destination, Growth, HeadsPart};
use unicorn_kernels::route::{ExpertGroups, Scores, SharedExperts};
use unicorn_kernels::short_conv::ConvForm;

use super::{MatrixId, VectorId};
use crate::graph::{ColumnsBlock, StreamsOp, ValueId, column_sources};

/// An operation that one kernel computes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FusedOp {
    Embed {
        table: MatrixId,
        scale: f32,
        out: ValueId,
    },
    Norm(NormStep),
    MatMul {
        input: ValueId,
        matrix: MatrixId,
        bias: Option<VectorId>,
        act_mul: Option<Activation>,
        softcap: Option<f32>,
        out: ValueId,
    },
    /// See [`Op::Route`](crate::graph::Op::Route).
    Route {
        input: ValueId,
        chosen: usize,
        /// Experts of the stacks behind those that are chosen from. The last logit is their gate's, if they have one.
        shared: SharedExperts,
        scores: Scores,
        normalized: bool,
        factor: f32,
        scale: Option<VectorId>,
        choice_bias: Option<VectorId>,
        groups: Option<ExpertGroups>,
        out: ValueId,
    },
    /// See [`Op::EveryMatrix`](crate::graph::Op::EveryMatrix).
    EveryMatrix {
        matrices: usize,
        out: ValueId,
    },
    /// See [`Op::HeadColumns`](crate::graph::Op::HeadColumns).
    HeadColumns {
        blocks: Vec<ColumnsBlock>,
        out: ValueId,
    },
    ExpertMatMul {
        input: ValueId,
        routes: ValueId,
        matrix: MatrixId,
        /// The biases of all experts.
        bias: Option<VectorId>,
        act_mul: Option<Activation>,
        out: ValueId,
    },
    ExpertSum {
        input: ValueId,
        routes: ValueId,
        out: ValueId,
    },
    Heads(HeadsStep),
    Attention {
        /// The query, already multiplied by `scale` in the heads step that makes it.
        query: ValueId,
        /// Factor of the product of query and key.
        scale: f32,
        growth: Option<Growth>,
        /// A logit of each head that takes its share of the softmax and has no value.
        sinks: Option<VectorId>,
        out: ValueId,
    },
    Elementwise {
        op: ElementwiseOp,
        input: ValueId,
        second: Option<ValueId>,
        bias: Option<VectorId>,
        out: ValueId,
    },
    ShortConv {
        input: ValueId,
        taps: VectorId,
        form: ConvForm,
        out: ValueId,
    },
    /// See [`Op::PreviousRow`](crate::graph::Op::PreviousRow).
    PreviousRow {
        input: ValueId,
        out: ValueId,
    },
    /// See [`Op::KeepRow`](crate::graph::Op::KeepRow).
    KeepRow {
        input: ValueId,
    },
    DeltaRule(DeltaStep),
    /// See [`Op::Patches`](crate::graph::Op::Patches).
    Patches {
        out: ValueId,
    },
    LayerNorm {
        input: ValueId,
        weight_and_bias: VectorId,
        eps: f32,
        out: ValueId,
    },
    /// See [`Op::ImagePositions`](crate::graph::Op::ImagePositions).
    ImagePositions {
        input: ValueId,
        learned: VectorId,
        positions: usize,
        side: usize,
        out: ValueId,
    },
    /// See [`Op::ImageRope`](crate::graph::Op::ImageRope).
    ImageRope {
        input: ValueId,
        n_heads: usize,
        out: ValueId,
    },
    /// See [`Op::ImageFeatures`](crate::graph::Op::ImageFeatures).
    ImageFeatures {
        input: ValueId,
        first: usize,
        out: ValueId,
    },
    ImageAttention {
        /// Where queries, keys and values are: values, and the columns where they begin.
        sources: [(ValueId, usize); 3],
        n_heads: usize,
        scale: f32,
        out: ValueId,
    },
    /// See [`Op::ImagePool`](crate::graph::Op::ImagePool).
    ImagePool {
        input: ValueId,
        across: usize,
        side: usize,
        out: ValueId,
    },
    GatedNorm {
        input: ValueId,
        gate: Columns,
        weight: VectorId,
        form: GatedForm,
        out: ValueId,
    },
    /// See [`Op::SparseActMul`](crate::graph::Op::SparseActMul).
    SparseActMul {
        gate: ValueId,
        up: ValueId,
        activation: Activation,
        deviations: f32,
        out: ValueId,
    },
    /// What is done with several streams of the residual.
    Streams(StreamsOp<VectorId>),
}

/// A value that is a part of another: its columns from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) of: ValueId,
    pub(crate) first: usize,
}

/// See [`Op::DeltaRule`](crate::graph::Op::DeltaRule).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaStep {
    pub(crate) input: ValueId,
    pub(crate) decay: Columns,
    pub(crate) strength: Columns,
    pub(crate) decay_rate: VectorId,
    pub(crate) decay_bias: VectorId,
    pub(crate) out: ValueId,
}

/// `sum = [factor ·] (residual + [post norm](input))`, `out = norm(sum)`, or `sum` again where matmuls read it without a norm.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NormStep {
    pub(crate) input: ValueId,
    pub(crate) residual: Option<ValueId>,
    pub(crate) post_weight: Option<VectorId>,
    /// The sum is multiplied by the element that follows the post norm's weight.
    pub(crate) scale_sum: bool,
    /// `None`: the sum is not normed.
    pub(crate) weight: Option<VectorId>,
    /// Present with `residual`.
    pub(crate) sum: Option<ValueId>,
    pub(crate) out: ValueId,
}

impl NormStep {
    /// The rows that are normed.
    pub(crate) fn before(&self) -> ValueId {
        self.sum.unwrap_or(self.input)
    }
}

/// What is done to each head of q, k and v between their projection and attention: norms, rotation, scale and cache writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeadsStep {
    pub(crate) input: ValueId,
    pub(crate) parts: Vec<HeadsPart>,
    /// The input has no values: those are its keys.
    pub(crate) values_are_keys: bool,
    pub(crate) query_norm: Option<VectorId>,
    pub(crate) key_norm: Option<VectorId>,
    pub(crate) rope: Option<usize>,
    pub(crate) out: Option<ValueId>,
}

impl FusedOp {
    /// Values written: the result, and the sum of a norm that adds.
    pub(crate) fn outputs(&self) -> Vec<ValueId> {
        match self {
            FusedOp::Embed { out, .. }
            | FusedOp::MatMul { out, .. }
            | FusedOp::Route { out, .. }
            | FusedOp::EveryMatrix { out, .. }
            | FusedOp::HeadColumns { out, .. }
            | FusedOp::ExpertMatMul { out, .. }
            | FusedOp::ExpertSum { out, .. }
            | FusedOp::Attention { out, .. }
            | FusedOp::ShortConv { out, .. }
            | FusedOp::PreviousRow { out, .. }
            | FusedOp::DeltaRule(DeltaStep { out, .. })
            | FusedOp::GatedNorm { out, .. }
            | FusedOp::Patches { out }
            | FusedOp::LayerNorm { out, .. }
            | FusedOp::ImagePositions { out, .. }
            | FusedOp::ImageRope { out, .. }
            | FusedOp::ImageFeatures { out, .. }
            | FusedOp::ImageAttention { out, .. }
            | FusedOp::ImagePool { out, .. }
            | FusedOp::SparseActMul { out, .. }
            | FusedOp::Elementwise { out, .. } => vec![*out],
            FusedOp::Streams(op) => op.outs(),
            FusedOp::Norm(step) => [Some(step.out), step.sum].into_iter().flatten().collect(),
            FusedOp::Heads(step) => step.out.into_iter().collect(),
            FusedOp::KeepRow { .. } => vec![],
        }
    }

    pub(crate) fn inputs(&self) -> Vec<ValueId> {
        match self {
            FusedOp::Embed { .. } | FusedOp::EveryMatrix { .. } | FusedOp::Patches { .. } => vec![],
            FusedOp::HeadColumns { blocks, .. } => column_sources(blocks),
            FusedOp::Norm(step) => [Some(step.input), step.residual].into_iter().flatten().collect(),
            FusedOp::MatMul { input, .. } | FusedOp::Route { input, .. } => vec![*input],
            FusedOp::ExpertMatMul { input, routes, .. } | FusedOp::ExpertSum { input, routes, .. } => {
                vec![*input, *routes]
            }
            FusedOp::Heads(step) => vec![step.input],
            FusedOp::LayerNorm { input, .. } | FusedOp::ImagePool { input, .. } => vec![*input],
            FusedOp::ImagePositions { input, .. } | FusedOp::ImageRope { input, .. } => vec![*input],
            FusedOp::ImageFeatures { input, .. } => vec![*input],
            FusedOp::ImageAttention { sources, .. } => sources.map(|(value, _)| value).to_vec(),
            FusedOp::Attention { query, .. } => vec![*query],
            FusedOp::ShortConv { input, .. } | FusedOp::PreviousRow { input, .. } | FusedOp::KeepRow { input } => {
                vec![*input]
            }
            FusedOp::DeltaRule(step) => vec![step.input, step.decay.of, step.strength.of],
            FusedOp::GatedNorm { input, gate, .. } => vec![*input, gate.of],
            FusedOp::SparseActMul { gate, up, .. } => vec![*gate, *up],
            FusedOp::Streams(op) => op.inputs(),
            FusedOp::Elementwise { input, second, .. } => [Some(*input), *second].into_iter().flatten().collect(),
        }
    }

    /// Whether it changes the KV cache or recurrent state, which outlive the step.
    pub(crate) fn writes_cache(&self) -> bool {
        match self {
            FusedOp::Heads(step) => step.parts.iter().any(|part| part.to != Destination::Output),
            FusedOp::ShortConv { .. } | FusedOp::PreviousRow { .. } | FusedOp::DeltaRule(_) => true,
            _ => false,
        }
    }
}
