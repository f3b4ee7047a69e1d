//! From a graph to a list of kernels for one target and one program: which kernel, with which numbers, on which operands.
//!
//! Nothing has an address yet: operands name values, weights and caches, and `place` turns them into bindings.

mod attention;
mod counter_sync;
mod experts;
mod fused_tail;
mod gemm;
mod image;
mod matmul;
mod npu;
mod recurrent;
mod selection;
mod streams;
mod tile;

use std::collections::BTreeMap;

use unicorn_artifact::LogitsRows;
use unicorn_artifact::plan::STATE_PAGE_TOKENS;
use unicorn_artifact::step::MAX_SAMPLERS;
use unicorn_kernels::Number;
use unicorn_kernels::elementwise::ElementwiseSpec;
use unicorn_kernels::embed::EmbedSpec;
use unicorn_kernels::heads::RopePositions;
use unicorn_kernels::layout::TILE_ROWS;
use unicorn_kernels::sample::SampleSpec;
use unicorn_kernels::{CacheLayout, KernelSpec, KvFormat, Role, WeightLayout};
use unicorn_spirv::Target;

use crate::fuse::{FusedGraph, FusedNode, FusedOp, MatrixId};
use crate::graph::ValueId;
use crate::import::{FullHeads, ModelConfig};
use crate::verify::VerifiedGraph;
use crate::weights::{PackedId, PackedSource, PackedWeights};

pub(crate) use crate::graph::stride;
pub(crate) use image::{image_section, limit_image_rows};
pub(crate) use npu::NpuProducts;
pub use selection::Selection;
pub(crate) use selection::{SelectedKernel, SelectedProgram, TargetSelection};

/// Tokens of a page of the KV cache.
pub(crate) const PAGE_TOKENS: usize = 32;

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramKind {
    pub(crate) rows: usize,
    pub(crate) logits: LogitsRows,
    /// Each row is the newest token of a sequence of its own, and a token is sampled for each.
    pub(crate) batch: bool,
    /// Its rows may be of images.
    pub(crate) images: bool,
    /// Number of cached tokens from which on it replaces the program that is otherwise equal.
    pub(crate) from_tokens: usize,
}

impl ProgramKind {
    /// The program that makes this number of rows of an image's patches.
    pub(crate) fn makes_image_rows(rows: usize) -> ProgramKind {
        ProgramKind { rows, logits: LogitsRows::Image, batch: false, images: false, from_tokens: 0 }
    }

    pub(crate) fn samples(self) -> bool {
        self.batch || self.logits == LogitsRows::One || self.is_mixed() || self.predicts()
    }

    /// Whether its row is a token for which the head for drafts predicts the one that follows.
    pub(crate) fn predicts(self) -> bool {
        self.logits == LogitsRows::Predicted
    }

    /// Whether its rows are the newest tokens of several sequences and, behind them, parts of prompts.
    pub(crate) fn is_mixed(self) -> bool {
        self.logits.prompts_beside() > 0
    }
}

/// Every program of a target, but for those for long sequences (`Target::long_context`) and the one that makes rows of images. For rows of one sequence they grow by eights, and
/// logits of all rows are requested by tools, in chunks of 64 at most; for sequences by twos.
pub(crate) const PROGRAMS: [ProgramKind; 28] = {
    const fn kind(rows: usize, logits: LogitsRows) -> ProgramKind {
        ProgramKind { rows, logits, batch: false, images: false, from_tokens: 0 }
    }
    const fn batch(rows: usize) -> ProgramKind {
        ProgramKind { rows, logits: LogitsRows::All, batch: true, images: false, from_tokens: 0 }
    }
    [
        ProgramKind { rows: 1, logits: LogitsRows::One, batch: true, images: false, from_tokens: 0 },
        batch(2),
        batch(4),
        batch(8),
        batch(16),
        batch(32),
        batch(64),
        kind(1, LogitsRows::None),
        kind(1, LogitsRows::All),
        kind(8, LogitsRows::One),
        kind(8, LogitsRows::None),
        kind(8, LogitsRows::All),
        kind(64, LogitsRows::One),
        kind(64, LogitsRows::None),
        kind(64, LogitsRows::All),
        kind(512, LogitsRows::One),
        kind(512, LogitsRows::None),
        // In a section of their own, which readers from before 8.3 skip.
        kind(8, LogitsRows::Hidden),
        kind(64, LogitsRows::Hidden),
        kind(512, LogitsRows::Hidden),
        // Of models with a vision tower, in another such section.
        ProgramKind { images: true, ..kind(512, LogitsRows::One) },
        ProgramKind { images: true, ..kind(512, LogitsRows::None) },
        // Of sequences that decode beside prompts, in another; by twos, because a matmul computes all rows of its program.
        kind(32, LogitsRows::SamplersBesideTwo),
        kind(64, LogitsRows::SamplersBesideTwo),
        kind(128, LogitsRows::SamplersBesideTwo),
        kind(256, LogitsRows::SamplersBesideTwo),
        kind(512, LogitsRows::SamplersBesideTwo),
        // Of models with a head for drafts, in another.
        kind(1, LogitsRows::Predicted),
    ]
};

/// One dispatch: a kernel and what it works on.
#[derive(Clone, Debug)]
pub struct KernelDispatch {
    /// The kernel and the constants that it is compiled for.
    pub spec: KernelSpec,
    pub(crate) workgroups: [usize; 3],
    /// Most rows that it works on.
    pub(crate) rows: usize,
    /// Operands in the order of `spec.bindings()`.
    pub operands: Vec<Operand>,
    /// Its name in profiles: the layer and what it computes.
    pub label: String,
    pub(crate) weight_bytes: u64,
    /// Works on another part of the same matrix, or on other rows, than the dispatch before, and so writes elsewhere in the same output.
    pub(crate) is_next_part: bool,
    /// Its workgroups wait for those of the dispatch before by counters, see `unicorn_kernels::counter_sync`.
    pub(crate) is_counted: bool,
}

/// A buffer range that a dispatch binds, before it has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operand {
    /// The step's parameters, tokens and block tables, which the host writes.
    StepBuffer,
    /// A range of a weight section.
    Weight(PackedId),
    /// An activation in f32.
    Value(ValueId),
    /// The same value as the integers, or f16, that matmuls read.
    Encoded(ValueId),
    /// The same value as sums that workgroups add to.
    Sums(ValueId),
    /// Counters of workgroups that leave a result in parts, 0 between dispatches.
    CompletionCounters,
    /// The slots of the dispatch before this one and its own, see `unicorn_kernels::counter_sync`.
    SyncCounters {
        /// Index of this dispatch in its program.
        dispatch: usize,
    },
    /// The slots of the whole program.
    SyncCounterSlots,
    /// Partial results of the splits of an attention or of a GEMM, to be combined: `len` f32 elements.
    Partials {
        /// The value to which they are combined.
        of: ValueId,
        /// f32 elements.
        len: usize,
    },
    /// The activations of an NPU's product, as its program reads them.
    NpuInput {
        /// Index into the NPU section's products.
        product: usize,
        /// Its size in words of 4 bytes.
        words: usize,
    },
    /// The outputs of an NPU's product, as its program writes them.
    NpuOutput {
        /// Index into the NPU section's products.
        product: usize,
        /// Its size in words of 4 bytes.
        words: usize,
    },
    /// The step's rows by expert, as these routes give them.
    ExpertRows {
        /// Output of the operation that chose the experts.
        routes: ValueId,
        /// Words of 4 bytes.
        len: usize,
    },
    /// A layer's keys in the KV cache, or the first part of its recurrent state.
    Keys {
        /// Index of its group of layers, which share a block table.
        group: usize,
        /// Index of the layer in the model.
        layer: usize,
    },
    /// A layer's values in the KV cache, or the second part of its recurrent state.
    Values {
        /// Index of its group of layers, which share a block table.
        group: usize,
        /// Index of the layer in the model.
        layer: usize,
    },
    /// f32 logits, a row for each row that the program gives logits of.
    Logits,
    /// This many f32 elements that the host writes: patches of an image, or rows of images.
    HostRows {
        /// f32 elements.
        len: usize,
    },
    /// This many f32 elements at the start of the logits: the rows that the head would read.
    Hidden {
        /// f32 elements.
        len: usize,
    },
    /// Tokens that the sampler chose, one a sequence.
    Samples,
}

impl Operand {
    /// Whether it is stored in the arena while it is used.
    pub fn is_activation(self) -> bool {
        matches!(
            self,
            Operand::Value(_)
                | Operand::Encoded(_)
                | Operand::Sums(_)
                | Operand::Partials { .. }
                | Operand::ExpertRows { .. }
                | Operand::NpuInput { .. }
                | Operand::NpuOutput { .. }
        )
    }
}

/// Layers that share a block table: those with the same window, or those with recurrent state. Layers that read the cache of another
/// are in none; that of a head for drafts is in two, since it also keeps a row (`previous_row`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvGroup {
    pub(crate) window: Option<usize>,
    /// Recurrent state instead of the cache.
    pub(crate) is_recurrent: bool,
    pub(crate) layers: Vec<usize>,
}

/// Layers grouped by window or recurrent state, in order of first appearance.
pub(crate) fn kv_groups(config: &ModelConfig) -> Vec<KvGroup> {
    let mut groups: Vec<KvGroup> = Vec::new();
    for (index, layer) in config.layers.iter().enumerate().filter(|(index, _)| config.has_own_cache(*index)) {
        let keeps = (layer.window, layer.is_recurrent);
        match groups.iter_mut().find(|group| (group.window, group.is_recurrent) == keeps) {
            Some(group) => group.layers.push(index),
            None => {
                let (window, is_recurrent) = keeps;
                groups.push(KvGroup { window, is_recurrent, layers: vec![index] });
            }
        }
    }
    if let Some(layer) = config.predictor_layer() {
        let with_state = groups.iter_mut().find(|group| group.is_recurrent);
        with_state.expect("a head for drafts is behind layers with recurrent state").layers.push(layer);
    }
    groups
}

/// (KV group, layer within it) of the rows that the head for drafts keeps, `layer` of the model.
fn kept_rows_of(groups: &[KvGroup], layer: usize) -> (usize, usize) {
    let place = |(index, group): (usize, &KvGroup)| {
        let at = group.layers.iter().position(|&other| other == layer).filter(|_| group.is_recurrent);
        at.map(|at| (index, at))
    };
    groups.iter().enumerate().find_map(place).expect("the head's layer is in the group with recurrent state")
}

impl KvGroup {
    /// Bytes of K in one page, which V takes as well; of latent vectors and recurrent state, bytes of each half of a page.
    pub(crate) fn page_bytes(&self, config: &ModelConfig, format: KvFormat) -> u64 {
        // Layers of a group have the same heads.
        let bytes = match self.is_recurrent {
            true => config.state_layout().page_bytes(),
            false => cache_layout(config, self.layers[0], format).page_bytes(),
        };
        bytes as u64
    }

    /// Tokens of a page.
    pub(crate) fn page_tokens(&self) -> u32 {
        if self.is_recurrent { STATE_PAGE_TOKENS } else { PAGE_TOKENS as u32 }
    }
}

/// (KV group, layer within it) of the cache that each layer reads.
fn caches(groups: &[KvGroup], config: &ModelConfig) -> Vec<(usize, usize)> {
    let place = |layer: usize| {
        let owner = config.cache_owner(layer);
        let is_recurrent = config.layers[owner].is_recurrent;
        let is_alike = |group: &&KvGroup| group.is_recurrent == is_recurrent;
        let at = |group: &KvGroup| group.layers.iter().position(|&layer| layer == owner).filter(|_| is_alike(&group));
        let found = groups.iter().enumerate().find_map(|(group, of_group)| Some((group, at(of_group)?)));
        found.expect("a layer with a cache of its own is in a group")
    };
    (0..config.layers.len()).map(place).collect()
}

/// A layer's cache.
pub(crate) fn cache_layout(config: &ModelConfig, layer: usize, format: KvFormat) -> CacheLayout {
    let FullHeads { n_kv_heads, head_dim, .. } = config.heads_of(layer);
    let latent_value = config.latent.map(|latent| latent.rank);
    CacheLayout { format, n_kv_heads, head_dim, page_tokens: PAGE_TOKENS, latent_value }
}

/// What a compile decides for all of its kernels.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SelectOptions {
    /// Norms become prologues of matmuls, and work on heads the prologue of attention, where they can: yes.
    pub fold: bool,
    /// Number format of the KV cache: f16.
    pub kv: KvFormat,
    /// Buffers have room for the partial results of alternatives, such as more splits: yes.
    pub alternatives: bool,
}

impl Default for SelectOptions {
    fn default() -> SelectOptions {
        SelectOptions { fold: true, kv: KvFormat::F16, alternatives: true }
    }
}

/// The kernels of one program; `npu`: the products that an NPU computes in it.
fn select(
    graph: &VerifiedGraph,
    config: &ModelConfig,
    weights: &PackedWeights,
    target: &Target,
    kind: ProgramKind,
    options: SelectOptions,
    npu: Option<&NpuProducts>,
) -> Vec<KernelDispatch> {
    let graph = graph.of_steps(kind.images);
    let groups = kv_groups(config);
    let mut selector = Selector {
        graph: graph.graph(),
        verified: graph,
        config,
        weights,
        target,
        kind,
        groups: &groups,
        caches: &caches(&groups, config),
        live: &live_nodes(graph.graph(), config, kind),
        options,
        npu,
        dispatches: Vec::new(),
    };
    for (node, _) in graph.graph().nodes.iter().zip(selector.live).filter(|(_, live)| **live) {
        selector.node(node);
    }
    if kind.samples() {
        selector.sample();
        if kind.rows == 1 {
            selector.dispatches = fused_tail::merge(selector.dispatches, target);
        }
        // Between two of its dispatches the host waits for the NPU.
        if target.counter_sync && npu.is_none() {
            counter_sync::synchronize(&mut selector.dispatches);
        }
    }
    selector.dispatches
}

/// Nodes on which the cache or, in programs with logits, the logits depend. Of a head for drafts these make its keys and values.
fn live_nodes(graph: &FusedGraph, config: &ModelConfig, kind: ProgramKind) -> Vec<bool> {
    if kind.predicts() {
        return live_in_drafts(graph, config);
    }
    let mut wanted = vec![false; graph.values.len()];
    match kind.logits {
        LogitsRows::None => {}
        LogitsRows::One | LogitsRows::All | LogitsRows::Samplers | LogitsRows::SamplersBesideTwo => {
            wanted[graph.logits.0] = true
        }
        LogitsRows::Hidden => wanted[head_input(graph).0] = true,
        LogitsRows::Image => wanted[graph.image_rows.expect("the model has a vision tower").0] = true,
        LogitsRows::Predicted => unreachable!("handled above"),
    }
    let appends = kind.logits != LogitsRows::Image;
    let mut live = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if appends && node.op.writes_cache() || node.op.outputs().iter().any(|out| wanted[out.0]) {
            live[index] = true;
            for input in node.op.inputs() {
                wanted[input.0] = true;
            }
        }
    }
    live
}

/// Nodes of a step that drafts: those of the head alone, which takes its row from a step before.
fn live_in_drafts(graph: &FusedGraph, config: &ModelConfig) -> Vec<bool> {
    let mut wanted = vec![false; graph.values.len()];
    wanted[graph.predicted.expect("the model has a head for drafts").0] = true;
    let mut live = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let keeps = node.op.writes_cache() || matches!(node.op, FusedOp::KeepRow { .. });
        let is_of_head = node.layer.is_some() && node.layer == config.predictor_layer();
        if keeps && is_of_head || node.op.outputs().iter().any(|out| wanted[out.0]) {
            live[index] = true;
            if !matches!(node.op, FusedOp::PreviousRow { .. }) {
                node.op.inputs().iter().for_each(|input| wanted[input.0] = true);
            }
        }
    }
    live
}

/// Input of the head: the stream after the final norm.
fn head_input(graph: &FusedGraph) -> ValueId {
    let of_head = |node: &FusedNode| match node.op {
        FusedOp::MatMul { input, matrix, .. } if graph.matrices[matrix.0].is_head => Some(input),
        _ => None,
    };
    graph.nodes.iter().find_map(of_head).expect("a model has a head")
}

struct Selector<'a> {
    graph: &'a FusedGraph,
    verified: &'a VerifiedGraph,
    config: &'a ModelConfig,
    weights: &'a PackedWeights,
    target: &'a Target,
    kind: ProgramKind,
    groups: &'a [KvGroup],
    /// (KV group, layer within it) of the cache that each layer reads.
    caches: &'a [(usize, usize)],
    /// Whether the program needs each node, by node.
    live: &'a [bool],
    options: SelectOptions,
    npu: Option<&'a NpuProducts>,
    dispatches: Vec<KernelDispatch>,
}

impl Selector<'_> {
    /// The nodes that read a value, in order.
    fn readers(&self, value: ValueId) -> impl Iterator<Item = &FusedNode> {
        self.verified.readers(value).iter().map(|&node| &self.graph.nodes[node])
    }

    fn node(&mut self, node: &FusedNode) {
        match &node.op {
            FusedOp::Embed { table, scale, out } => {
                for (part, &id) in self.weights.matrix(*table).iter().enumerate() {
                    let (layout, first_row) = self.matrix(id);
                    let spec = EmbedSpec {
                        layout,
                        first_token: first_row,
                        table_tokens: Some(self.graph.matrices[table.0].rows())
                            .filter(|&rows| rows < self.config.vocab_size),
                        output_stride: self.stride_of(*out),
                        scale: Number::new(*scale),
                        image_stride: Some(self.image_stride()).filter(|_| self.kind.images && part == 0),
                    };
                    let rows = self.kind.rows as u64;
                    let input_len = self.kind.rows * self.image_stride();
                    let bytes = rows * (layout.tile_bytes() / TILE_ROWS) as u64;
                    self.push(node, KernelSpec::Embed(spec), self.kind.rows, bytes, |role| match role {
                        Role::Weights => Operand::Weight(id),
                        Role::InputRows => Operand::HostRows { len: input_len },
                        _ => Operand::Value(*out),
                    });
                    self.mark_part(part);
                }
            }
            FusedOp::Norm(step) => {
                if self.folds_into(step).is_empty() {
                    self.norm(node, step);
                }
            }
            FusedOp::MatMul { .. } => self.matmul(node),
            FusedOp::Route { .. } => self.route(node),
            FusedOp::EveryMatrix { matrices, out } => self.every_matrix(node, *matrices, *out),
            FusedOp::HeadColumns { blocks, out } => self.head_columns(node, blocks, *out),
            FusedOp::ExpertMatMul { .. } => self.expert_matmul(node),
            FusedOp::ExpertSum { .. } => self.expert_sum(node),
            FusedOp::Heads(step) => {
                if !self.folds_into_attention(step) {
                    self.heads(node, step);
                }
            }
            FusedOp::Attention { query, out, .. } => self.attention(node, *query, *out),
            FusedOp::ShortConv { input, taps, form, out } => self.short_conv(node, *input, *taps, *form, *out),
            FusedOp::PreviousRow { input, out } => self.previous_row(node, *input, *out),
            FusedOp::KeepRow { input } => self.keep_row(node, *input),
            FusedOp::DeltaRule(step) => self.delta_rule(node, step),
            FusedOp::GatedNorm { input, gate, weight, form, out } => {
                self.gated_norm(node, *input, *gate, *weight, *form, *out)
            }
            FusedOp::SparseActMul { .. } => self.sparse_act_mul(node),
            FusedOp::Streams(op) => self.streams(node, op),
            FusedOp::Patches { out } => self.patches(node, *out),
            FusedOp::LayerNorm { .. } => self.layer_norm(node),
            FusedOp::ImageAttention { .. } => self.image_attention(node),
            FusedOp::ImagePool { .. } => self.image_pool(node),
            FusedOp::ImagePositions { .. } => self.image_positions(node),
            FusedOp::ImageRope { input, n_heads, out } => self.image_rope(node, *input, *n_heads, *out),
            FusedOp::ImageFeatures { input, first, out } => self.image_features(node, *input, *first, *out),
            FusedOp::Elementwise { op, input, second, bias, out } => {
                let spec = ElementwiseSpec {
                    op: *op,
                    width: self.graph.values[input.0].width,
                    input_stride: self.stride_of(*input),
                    output_stride: self.stride_of(*out),
                    rows_per_token: self.graph.values[out.0].rows_per_token,
                };
                let bias = bias.map(|bias| Operand::Weight(self.weights.vector(bias)));
                let result = self.value(*out);
                let rows = if result == Operand::Logits { self.logits_rows() } else { self.rows_of(*out) };
                self.push(node, KernelSpec::Elementwise(spec), rows, 0, |role| match role {
                    Role::Input => Operand::Value(*input),
                    Role::Second => Operand::Value(second.expect("binary")),
                    Role::Bias => bias.expect("biased"),
                    _ => result,
                });
                self.quantize(node, *out);
            }
        }
    }

    fn sample(&mut self) {
        let spec = KernelSpec::Sample(SampleSpec {
            vocab: self.config.vocab_size,
            logits_stride: stride(self.config.vocab_size),
            workgroup: self.target.workgroup_invocations.min(1024),
            subgroup_size: self.target.subgroup_size,
            keeps_rope_word: self.rope_positions() != RopePositions::Own,
            counter_sync: false,
        });
        self.dispatches.push(KernelDispatch {
            workgroups: spec.workgroups(self.logits_rows()),
            rows: self.logits_rows(),
            operands: vec![Operand::StepBuffer, Operand::Logits, Operand::Samples, Operand::StepBuffer],
            spec,
            label: "sample".into(),
            weight_bytes: 0,
            is_next_part: false,
            is_counted: false,
        });
    }

    /// The cache of a node's layer.
    fn cache_layout_of(&self, node: &FusedNode) -> CacheLayout {
        cache_layout(self.config, node.layer.expect("attention is inside a layer"), self.options.kv)
    }

    /// (KV group, layer within it) of a node.
    fn cache_of(&self, node: &FusedNode) -> (usize, usize) {
        self.caches[node.layer.expect("what keeps something is inside a layer")]
    }

    fn logits_rows(&self) -> usize {
        match self.kind.logits {
            LogitsRows::One | LogitsRows::Predicted => 1,
            LogitsRows::Samplers | LogitsRows::SamplersBesideTwo => self.kind.rows.min(MAX_SAMPLERS),
            _ => self.kind.rows,
        }
    }

    /// Rows that are multiplied by a matrix, with this result.
    fn product_rows(&self, matrix: MatrixId, out: ValueId) -> usize {
        if self.graph.matrices[matrix.0].is_head { self.logits_rows() } else { self.rows_of(out) }
    }

    fn value(&self, id: ValueId) -> Operand {
        match id {
            id if id == self.graph.logits || Some(id) == self.graph.predicted => Operand::Logits,
            id if self.is_result(id) => Operand::Hidden { len: self.rows_of(id) * self.stride_of(id) },
            id => Operand::Value(id),
        }
    }

    /// Whether a value is the result of the program in place of logits: no dispatch reads it.
    fn is_result(&self, id: ValueId) -> bool {
        match self.kind.logits {
            LogitsRows::Hidden => id == head_input(self.graph),
            LogitsRows::Image => Some(id) == self.graph.image_rows,
            _ => false,
        }
    }

    /// Most rows of a value.
    fn rows_of(&self, id: ValueId) -> usize {
        self.kind.rows * self.graph.values[id.0].rows_per_token
    }

    fn stride_of(&self, id: ValueId) -> usize {
        stride(self.graph.values[id.0].width)
    }

    fn matrix(&self, id: PackedId) -> (WeightLayout, usize) {
        match self.weights.get(id).source {
            PackedSource::Matrix { layout, first_row, .. } => (layout, first_row),
            _ => unreachable!("matrices are packed as matrices"),
        }
    }

    fn push(
        &mut self,
        node: &FusedNode,
        spec: KernelSpec,
        rows: usize,
        weight_bytes: u64,
        operand: impl Fn(Role) -> Operand,
    ) {
        let operand = |role| if role == Role::Step { Operand::StepBuffer } else { operand(role) };
        let operands = spec.bindings().into_iter().map(|binding| operand(binding.role)).collect();
        let label = match node.layer {
            Some(layer) => format!("{layer}.{}", self.role_name(node)),
            None => self.role_name(node),
        };
        self.dispatches.push(KernelDispatch {
            workgroups: spec.workgroups(rows),
            rows,
            operands,
            spec,
            label,
            weight_bytes,
            is_next_part: false,
            is_counted: false,
        });
    }

    /// Sets which part of its matrix the newest dispatch works on.
    fn mark_part(&mut self, part: usize) {
        self.dispatches.last_mut().expect("a part was pushed").is_next_part = part > 0;
    }

    /// A node's name for people: its kernel, or the matrix that it multiplies by.
    fn role_name(&self, node: &FusedNode) -> String {
        match &node.op {
            FusedOp::MatMul { matrix, .. } | FusedOp::ExpertMatMul { matrix, .. } => {
                let experts = match &self.graph.matrices[matrix.0] {
                    matrix if !matrix.shared.is_empty() => "experts and shared ",
                    matrix if matrix.is_of_experts() => "experts ",
                    _ => "",
                };
                format!("{experts}{}", self.graph.matrices[matrix.0].short_name())
            }
            FusedOp::Route { .. } => "route".into(),
            FusedOp::EveryMatrix { .. } => "every matrix".into(),
            FusedOp::HeadColumns { .. } => "head columns".into(),
            FusedOp::ExpertSum { .. } => "expert sum".into(),
            // A table beside the tokens' own has its name.
            FusedOp::Embed { table, .. } => match self.graph.matrices[table.0].short_name() {
                tokens if tokens == "embed_tokens" => "embed".into(),
                others => others,
            },
            FusedOp::Norm(_) => "norm".into(),
            FusedOp::Heads(_) => "heads".into(),
            FusedOp::Attention { .. } => "attention".into(),
            FusedOp::ShortConv { .. } => "short conv".into(),
            FusedOp::PreviousRow { .. } => "previous row".into(),
            FusedOp::KeepRow { .. } => "keep row".into(),
            FusedOp::DeltaRule(_) => "delta rule".into(),
            FusedOp::GatedNorm { .. } => "gated norm".into(),
            FusedOp::SparseActMul { .. } => "sparse act mul".into(),
            FusedOp::Streams(op) => op.verb().replace('_', " "),
            FusedOp::Patches { .. } => "patches".into(),
            FusedOp::LayerNorm { .. } => "layer norm".into(),
            FusedOp::ImageAttention { .. } => "image attention".into(),
            FusedOp::ImagePool { .. } => "image pool".into(),
            FusedOp::ImagePositions { .. } => "image positions".into(),
            FusedOp::ImageRope { .. } => "image rope".into(),
            FusedOp::ImageFeatures { .. } => "image features".into(),
            FusedOp::Elementwise { op, .. } => {
                let op = format!("{op:?}").to_lowercase();
                op.split(" {").next().unwrap_or_default().to_owned()
            }
        }
    }
}

/// The operand of each role of a kernel; the step buffer is always the same.
fn operands(spec: &KernelSpec, operand: impl Fn(Role) -> Operand) -> BTreeMap<Role, Operand> {
    let one = |role| (role, if role == Role::Step { Operand::StepBuffer } else { operand(role) });
    spec.bindings().into_iter().map(|binding| one(binding.role)).collect()
}
