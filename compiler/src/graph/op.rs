//! The plain operations, and what each reads and makes.

use unicorn_kernels::Activation;
use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::heads::{Growth, NormOf};
use unicorn_kernels::route::{ExpertGroups, Scores};
use unicorn_kernels::short_conv::ConvForm;

use super::{CachePart, ColumnsBlock, MatrixRef, StreamsOp, ValueId, VectorRef, column_sources};

/// A plain operation. Values are named by index; each makes one, `out`, but those that write a cache or keep a row, and those of streams.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    /// Row of `table` for each token, times `scale`.
    Embed {
        table: MatrixRef,
        scale: f32,
        out: ValueId,
    },
    /// RMS norm.
    Norm {
        input: ValueId,
        weight: VectorRef,
        out: ValueId,
    },
    MatMul {
        input: ValueId,
        matrix: MatrixRef,
        out: ValueId,
    },
    Bias {
        input: ValueId,
        bias: VectorRef,
        out: ValueId,
    },
    /// RMS norm of each head.
    HeadNorm {
        input: ValueId,
        of: NormOf,
        /// Weight of the norm; norms of values have none.
        weight: Option<VectorRef>,
        out: ValueId,
    },
    /// Rotary embedding of each head: the one of this index in [`ModelConfig::ropes`].
    Rope {
        input: ValueId,
        rope: usize,
        out: ValueId,
    },
    /// Appends each row to the layer's cache.
    CacheWrite {
        input: ValueId,
        part: CachePart,
    },
    /// For each head: `scale` times the products of query and cached keys, softmax, and the sum of the values with these weights.
    Attention {
        query: ValueId,
        scale: f32,
        /// Another factor of queries, which grows with their position.
        growth: Option<Growth>,
        /// A logit of each head that takes its share of the softmax and has no value.
        sinks: Option<VectorRef>,
        out: ValueId,
    },
    Add {
        left: ValueId,
        right: ValueId,
        out: ValueId,
    },
    ActMul {
        gate: ValueId,
        up: ValueId,
        /// Column of `up` that the first column of `gate` is multiplied by.
        up_column: usize,
        activation: Activation,
        out: ValueId,
    },
    /// Multiplication by the only element of a vector.
    Scale {
        input: ValueId,
        factor: VectorRef,
        out: ValueId,
    },
    SoftCap {
        input: ValueId,
        cap: f32,
        out: ValueId,
    },
    /// For each row, the `chosen` experts of the highest scores, or scores plus the experts' elements of `choice_bias`, and their
    /// weights: their scores, or their shares of these, times `factor` and the experts' elements of `scale`. With `groups`, they are of the best
    /// groups of experts alone.
    Route {
        input: ValueId,
        chosen: usize,
        scores: Scores,
        normalized: bool,
        factor: f32,
        scale: Option<VectorRef>,
        choice_bias: Option<VectorRef>,
        groups: Option<ExpertGroups>,
        out: ValueId,
    },
    /// Routes of rows that are given to every matrix of a stack of this many, in order.
    EveryMatrix {
        matrices: usize,
        out: ValueId,
    },
    /// Heads that are made of columns of several values' heads, one after the other.
    HeadColumns {
        blocks: Vec<ColumnsBlock>,
        out: ValueId,
    },
    /// Each row times the matrices of its experts, plus their biases, a row each.
    ExpertMatMul {
        input: ValueId,
        routes: ValueId,
        matrix: MatrixRef,
        /// The bias of each expert; its tensor has `*` where the matrix' has.
        bias: Option<VectorRef>,
        out: ValueId,
    },
    /// Weighted sum of the rows of a row's experts.
    ExpertSum {
        input: ValueId,
        routes: ValueId,
        out: ValueId,
    },
    /// `input * sigmoid(gate)`, one gate a row or one an element.
    Gate {
        input: ValueId,
        gate: ValueId,
        out: ValueId,
    },
    /// A causal convolution of each channel over the sequence, then SiLU; or between two gates.
    ShortConv {
        input: ValueId,
        taps: VectorRef,
        form: ConvForm,
        out: ValueId,
    },
    /// The row before each row of the sequence. Steps that draft have no `input`: they read the row that the step before them has kept, or that of
    /// the draft before.
    PreviousRow {
        input: ValueId,
        out: ValueId,
    },
    /// Keeps the row of a draft for the next draft.
    KeepRow {
        input: ValueId,
    },
    /// The gated delta rule of each head: reads q, k and v of a row and changes the layer's state.
    DeltaRule {
        input: ValueId,
        decay: ValueId,
        strength: ValueId,
        decay_rate: VectorRef,
        decay_bias: VectorRef,
        out: ValueId,
    },
    /// Rows of an image's patches, which the host writes.
    Patches {
        out: ValueId,
    },
    /// Layer norm.
    LayerNorm {
        input: ValueId,
        weight: VectorRef,
        bias: VectorRef,
        eps: f32,
        out: ValueId,
    },
    /// Sum with a bias that each row has for itself.
    RowBias {
        input: ValueId,
        bias: VectorRef,
        out: ValueId,
    },
    Activate {
        input: ValueId,
        activation: Activation,
        out: ValueId,
    },
    /// Sum with a learned position, `positions` of which are a side of a square that an image of any size is laid on; `side` patches are a
    /// side of a row of the step.
    ImagePositions {
        input: ValueId,
        learned: VectorRef,
        positions: usize,
        side: usize,
        out: ValueId,
    },
    /// Rotary embedding of the first heads of each patch by its place in the image.
    ImageRope {
        input: ValueId,
        n_heads: usize,
        out: ValueId,
    },
    /// Sum with what is at column `first` of the row of an image, where a row of the step is one. Steps without images do not have it.
    ImageFeatures {
        input: ValueId,
        first: usize,
        out: ValueId,
    },
    /// Attention of all patches of an image to all of them.
    ImageAttention {
        /// Where queries, keys and values are: values, and the columns where they begin.
        sources: [(ValueId, usize); 3],
        n_heads: usize,
        scale: f32,
        out: ValueId,
    },
    /// Mean over squares of patches, `side` from left to right, of which there are `across` from left to right.
    ImagePool {
        input: ValueId,
        across: usize,
        side: usize,
        out: ValueId,
    },
    /// RMS norm of each head, then what `form` does with the second value.
    GatedNorm {
        input: ValueId,
        gate: ValueId,
        weight: VectorRef,
        form: GatedForm,
        out: ValueId,
    },
    /// The product of gate and up, where only gates from so many standard deviations above the mean on are kept.
    SparseActMul {
        gate: ValueId,
        up: ValueId,
        activation: Activation,
        deviations: f32,
        out: ValueId,
    },
    /// What is done with several streams of the residual.
    Streams(StreamsOp<Vec<VectorRef>>),
}

impl Op {
    /// The values that this operation makes; cache writes make none.
    pub(crate) fn outs(&self) -> Vec<ValueId> {
        match *self {
            Op::Embed { out, .. }
            | Op::Norm { out, .. }
            | Op::MatMul { out, .. }
            | Op::Bias { out, .. }
            | Op::HeadNorm { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::Add { out, .. }
            | Op::ActMul { out, .. }
            | Op::Route { out, .. }
            | Op::EveryMatrix { out, .. }
            | Op::HeadColumns { out, .. }
            | Op::ExpertMatMul { out, .. }
            | Op::ExpertSum { out, .. }
            | Op::Gate { out, .. }
            | Op::ShortConv { out, .. }
            | Op::PreviousRow { out, .. }
            | Op::DeltaRule { out, .. }
            | Op::GatedNorm { out, .. }
            | Op::Patches { out }
            | Op::LayerNorm { out, .. }
            | Op::RowBias { out, .. }
            | Op::Activate { out, .. }
            | Op::ImagePositions { out, .. }
            | Op::ImageRope { out, .. }
            | Op::ImageFeatures { out, .. }
            | Op::ImageAttention { out, .. }
            | Op::ImagePool { out, .. }
            | Op::Scale { out, .. }
            | Op::SparseActMul { out, .. }
            | Op::SoftCap { out, .. } => vec![out],
            Op::Streams(ref op) => op.outs(),
            Op::CacheWrite { .. } | Op::KeepRow { .. } => vec![],
        }
    }

    /// The values that it reads.
    pub(crate) fn inputs(&self) -> Vec<ValueId> {
        match *self {
            Op::Embed { .. } | Op::EveryMatrix { .. } | Op::Patches { .. } => vec![],
            Op::HeadColumns { ref blocks, .. } => column_sources(blocks),
            Op::Norm { input, .. }
            | Op::MatMul { input, .. }
            | Op::Bias { input, .. }
            | Op::HeadNorm { input, .. }
            | Op::Rope { input, .. }
            | Op::CacheWrite { input, .. }
            | Op::Route { input, .. }
            | Op::ShortConv { input, .. }
            | Op::PreviousRow { input, .. }
            | Op::KeepRow { input }
            | Op::LayerNorm { input, .. }
            | Op::RowBias { input, .. }
            | Op::Activate { input, .. }
            | Op::ImagePool { input, .. }
            | Op::ImagePositions { input, .. }
            | Op::ImageRope { input, .. }
            | Op::ImageFeatures { input, .. }
            | Op::Scale { input, .. }
            | Op::SoftCap { input, .. } => vec![input],
            Op::ExpertMatMul { input, routes, .. } | Op::ExpertSum { input, routes, .. } => vec![input, routes],
            Op::Gate { input, gate, .. } | Op::GatedNorm { input, gate, .. } => vec![input, gate],
            Op::DeltaRule { input, decay, strength, .. } => vec![input, decay, strength],
            Op::Attention { query, .. } => vec![query],
            Op::ImageAttention { sources, .. } => sources.map(|(value, _)| value).to_vec(),
            Op::Add { left, right, .. } => vec![left, right],
            Op::ActMul { gate, up, .. } | Op::SparseActMul { gate, up, .. } => vec![gate, up],
            Op::Streams(ref op) => op.inputs(),
        }
    }
}
