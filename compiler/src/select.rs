//! From a graph to a list of kernels for one target and one program: which kernel, with which numbers, on which operands.
//!
//! Nothing has an address yet: operands name values, weights and caches, and `place` turns them into bindings.

use artifacts::LogitsRows;
use kernels::activations::ACTIVATION_GROUP;
use kernels::attention::AttentionSpec;
use kernels::elementwise::ElementwiseSpec;
use kernels::embed::EmbedSpec;
use kernels::gemm::{GemmSpec, GemmTile};
use kernels::heads::{HeadsSpec, rope_coarse};
use kernels::layout::TILE_ROWS;
use kernels::matmul::{MatMulSpec, MatMulTile};
use kernels::norm::NormSpec;
use kernels::quantize::QuantizeSpec;
use kernels::sample::SampleSpec;
use kernels::spec::Number;
use kernels::{ActivationFormat, KernelSpec, Precision, Role, WeightLayout};
use shaders_gen::Target;

use crate::fuse::{FusedGraph, FusedNode, FusedOp, HeadsStep, NormStep};
use crate::graph::ValueId;
use crate::import::ModelConfig;
use crate::verify::VerifiedGraph;
use crate::weights::{PackedId, PackedSource, PackedWeights};

/// Tokens of a page of the KV cache.
pub const PAGE_TOKENS: usize = 32;
/// (row, head) pairs that one attention workgroup carries at most.
const ATTENTION_QUERIES: usize = 8;

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramKind {
    pub rows: usize,
    pub logits: LogitsRows,
    /// Each row is the newest token of a sequence of its own, and a token is drawn for each.
    pub batch: bool,
}

impl ProgramKind {
    pub fn samples(self) -> bool {
        self.batch || self.logits == LogitsRows::One
    }
}

/// Every program of a target. For rows of one sequence they grow by eights, and logits of all rows are asked for by tools,
/// in chunks of 64 at most; for sequences by twos.
pub const PROGRAMS: [ProgramKind; 17] = {
    const fn kind(rows: usize, logits: LogitsRows) -> ProgramKind {
        ProgramKind { rows, logits, batch: false }
    }
    const fn batch(rows: usize) -> ProgramKind {
        ProgramKind { rows, logits: LogitsRows::All, batch: true }
    }
    [
        ProgramKind { rows: 1, logits: LogitsRows::One, batch: true },
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
    ]
};

/// One dispatch to be.
#[derive(Clone, Debug)]
pub struct Step {
    pub spec: KernelSpec,
    pub workgroups: [usize; 3],
    /// In the order of `spec.bindings()`.
    pub operands: Vec<Operand>,
    pub label: String,
    pub weight_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operand {
    StepBuffer,
    Weight(PackedId),
    Value(ValueId),
    /// The same value as the integers that matmuls read.
    Encoded(ValueId),
    Keys {
        group: usize,
        layer: usize,
    },
    Values {
        group: usize,
        layer: usize,
    },
    Logits,
    Drawn,
}

/// Layers of one window, and so of one block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    pub window: Option<usize>,
    pub layers: Vec<usize>,
}

/// Layers grouped by window, in order of first appearance.
pub fn kv_groups(config: &ModelConfig) -> Vec<KvGroup> {
    let mut groups: Vec<KvGroup> = Vec::new();
    for (index, layer) in config.layers.iter().enumerate() {
        match groups.iter_mut().find(|group| group.window == layer.window) {
            Some(group) => group.layers.push(index),
            None => groups.push(KvGroup { window: layer.window, layers: vec![index] }),
        }
    }
    groups
}

/// Elements between rows of an activation of `width`.
pub fn stride(width: usize) -> usize {
    width.next_multiple_of(32)
}

/// The kernels of one program.
pub fn select(
    graph: &VerifiedGraph,
    config: &ModelConfig,
    weights: &PackedWeights,
    target: &Target,
    kind: ProgramKind,
    fold_norms: bool,
) -> Vec<Step> {
    let graph = graph.graph();
    let groups = kv_groups(config);
    let mut selector =
        Selector { graph, config, weights, target, kind, groups: &groups, fold_norms, steps: Vec::new() };
    let live = selector.live_nodes();
    for (index, node) in graph.nodes.iter().enumerate() {
        if live[index] {
            selector.node(node);
        }
    }
    if kind.samples() {
        selector.sample();
    }
    selector.steps
}

struct Selector<'a> {
    graph: &'a FusedGraph,
    config: &'a ModelConfig,
    weights: &'a PackedWeights,
    target: &'a Target,
    kind: ProgramKind,
    groups: &'a [KvGroup],
    fold_norms: bool,
    steps: Vec<Step>,
}

impl Selector<'_> {
    /// Nodes that reach the cache or, where a program has logits, those.
    fn live_nodes(&self) -> Vec<bool> {
        let mut wanted = vec![false; self.graph.values.len()];
        wanted[self.graph.logits.0] = self.kind.logits != LogitsRows::None;
        let mut live = vec![false; self.graph.nodes.len()];
        for (index, node) in self.graph.nodes.iter().enumerate().rev() {
            if node.op.writes_cache() || node.op.outputs().iter().any(|out| wanted[out.0]) {
                live[index] = true;
                for input in node.op.inputs() {
                    wanted[input.0] = true;
                }
            }
        }
        live
    }

    fn node(&mut self, node: &FusedNode) {
        match &node.op {
            FusedOp::Embed { table, scale, out } => {
                for &id in self.weights.matrix(*table) {
                    let (layout, first_row) = self.matrix(id);
                    let spec = EmbedSpec {
                        layout,
                        first_token: first_row,
                        output_stride: self.stride_of(*out),
                        scale: Number::new(*scale),
                    };
                    let rows = self.kind.rows as u64;
                    let bytes = rows * (layout.tile_bytes() / TILE_ROWS) as u64;
                    self.push(node, KernelSpec::Embed(spec), self.kind.rows, bytes, |role| match role {
                        Role::Weights => Operand::Weight(id),
                        _ => Operand::Value(*out),
                    });
                }
            }
            FusedOp::Norm(step) => {
                if self.folds_into(step).is_none() {
                    self.norm(node, step);
                }
            }
            FusedOp::MatMul { .. } => self.matmul(node),
            FusedOp::Heads(step) => self.heads(node, step),
            FusedOp::Attention { query, out } => self.attention(node, *query, *out),
            FusedOp::Elementwise { op, input, second, bias, out } => {
                let spec = ElementwiseSpec {
                    op: *op,
                    width: self.graph.values[input.0].width,
                    input_stride: self.stride_of(*input),
                    output_stride: self.stride_of(*out),
                };
                let bias = bias.map(|bias| Operand::Weight(self.weights.vector(bias)));
                let result = self.value(*out);
                let rows = if result == Operand::Logits { self.logits_rows() } else { self.kind.rows };
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

    fn norm_spec(&self, step: &NormStep) -> NormSpec {
        let width = self.config.hidden_size;
        NormSpec {
            width,
            stride: stride(width),
            eps: Number::new(self.config.rms_norm_eps),
            add: step.residual.is_some(),
            post_norm: step.post_weight.is_some(),
            format: self.stored_format(step.out),
            lanes: self.target.norm.lanes,
            subgroup_size: self.target.subgroup_size,
        }
    }

    fn norm_operand(&self, step: &NormStep, role: Role) -> Option<Operand> {
        let vector = |id| Operand::Weight(self.weights.vector(id));
        match role {
            Role::InputQuads => Some(Operand::Value(step.input)),
            Role::Residual => step.residual.map(Operand::Value),
            Role::Sum => step.sum.map(Operand::Value),
            Role::NormWeight => Some(vector(step.weight)),
            Role::PostNormWeight => step.post_weight.map(vector),
            _ => None,
        }
    }

    fn norm(&mut self, node: &FusedNode, step: &NormStep) {
        let operand = |role| match role {
            Role::Step => Operand::StepBuffer,
            Role::OutputQuads => Operand::Value(step.out),
            Role::Encoded => Operand::Encoded(step.out),
            role => self.norm_operand(step, role).expect("every other role is an operand of the norm"),
        };
        let operands =
            Vec::from_iter(roles_of(KernelSpec::Norm(self.norm_spec(step))).map(|role| (role, operand(role))));
        self.push(node, KernelSpec::Norm(self.norm_spec(step)), self.kind.rows, 0, |role| {
            operands.iter().find(|(one, _)| *one == role).expect("listed above").1
        });
    }

    /// The matmul that does this norm as its prologue: the only reader of its output, in a program where that matmul has
    /// one row, if a workgroup has room for the row.
    fn folds_into(&self, step: &NormStep) -> Option<&FusedNode> {
        let mut readers = self.graph.nodes.iter().filter(|node| node.op.inputs().contains(&step.out));
        let (Some(reader), None) = (readers.next(), readers.next()) else { return None };
        let FusedOp::MatMul { matrix, .. } = &reader.op else { return None };
        // A matrix that is cut would do the norm again with each part, and write its sum more than once.
        let [only] = self.weights.matrix(*matrix) else { return None };
        let one_row = self.kind.rows == 1 || self.row_from_step(reader);
        let spec = self.matmul_spec(reader, *only, Some(step));
        (self.fold_norms && self.target.norm.fold && one_row && spec.shared_bytes() <= self.target.shared_memory_bytes)
            .then_some(reader)
    }

    fn norm_before(&self, input: ValueId) -> Option<&NormStep> {
        self.graph.nodes.iter().find_map(|node| match &node.op {
            FusedOp::Norm(step) if step.out == input && self.folds_into(step).is_some() => Some(step),
            _ => None,
        })
    }

    /// Whether a matmul makes logits for one row of several.
    fn row_from_step(&self, node: &FusedNode) -> bool {
        let FusedOp::MatMul { matrix, .. } = node.op else { return false };
        self.kind.logits == LogitsRows::One && self.graph.matrices[matrix.0].is_head
    }

    fn matmul(&mut self, node: &FusedNode) {
        let FusedOp::MatMul { input, matrix, bias, out, .. } = node.op else { unreachable!("called for matmuls") };
        let norm = self.norm_before(input).cloned();
        let result = self.value(out);
        let rows = if self.graph.matrices[matrix.0].is_head { self.logits_rows() } else { self.kind.rows };
        for &id in self.weights.matrix(matrix) {
            let bytes = self.weights.get(id).len_bytes;
            if let (ActivationFormat::Half(_), Some(tuning)) = (self.stored_format(input), self.target.matrix) {
                self.gemm(node, id, tuning.tile(rows), bytes);
                continue;
            }
            let spec = self.matmul_spec(node, id, norm.as_ref());
            let bias = bias.map(|bias| Operand::Weight(self.weights.vector(bias)));
            let of_norm = |role| norm.as_ref().and_then(|step| self.norm_operand(step, role));
            let operands = Vec::from_iter(roles_of(KernelSpec::MatMul(spec.clone())).map(|role| {
                let operand = match role {
                    Role::Weights => Operand::Weight(id),
                    Role::Codes => Operand::Encoded(input),
                    Role::Bias => bias.expect("biased"),
                    Role::Output => result,
                    Role::Encoded => Operand::Encoded(out),
                    Role::Step => Operand::StepBuffer,
                    Role::InputQuads if norm.is_none() => Operand::Value(input),
                    role => of_norm(role).expect("every other role is the prologue's"),
                };
                (role, operand)
            }));
            self.push(node, KernelSpec::MatMul(spec), rows, bytes, |role| {
                operands.iter().find(|(one, _)| *one == role).expect("listed above").1
            });
        }
        if !self.encodes_output(node) {
            self.quantize(node, out);
        }
    }

    /// The format in which a value's readers want it: integers if all are matmuls that take the same ones.
    fn stored_format(&self, value: ValueId) -> ActivationFormat {
        let readers = self.graph.nodes.iter().filter(|node| node.op.inputs().contains(&value));
        let mut formats = readers.map(|node| self.matmul_input(node));
        let first = formats.next().flatten();
        first.filter(|first| formats.all(|format| format == Some(*first))).unwrap_or(ActivationFormat::F32)
    }

    /// The format that a matmul reads best; `None`: no matmul.
    fn matmul_input(&self, node: &FusedNode) -> Option<ActivationFormat> {
        let FusedOp::MatMul { input, out, matrix, softcap, .. } = node.op else { return None };
        // Quads of the norms before.
        let whole_quads = self.graph.values[input.0].width.is_multiple_of(4);
        if !(self.weights.integer_activations && self.target.integer_dot && whole_quads) {
            return Some(ActivationFormat::F32);
        }
        let precision = if self.becomes_heads(out) { Precision::Int11 } else { Precision::Int8 };
        let is_head = self.graph.matrices[matrix.0].is_head;
        let rows = if is_head { self.logits_rows() } else { self.kind.rows };
        // What a GEMM cannot do, and where its tiles would be mostly empty.
        let matrices = self.target.matrix.is_some() && softcap.is_none() && rows > self.target.matmul.columns;
        Some(if matrices { ActivationFormat::Half(precision) } else { ActivationFormat::Codes(precision) })
    }

    /// A matmul of many rows on matrix units.
    fn gemm(&mut self, node: &FusedNode, id: PackedId, tile: GemmTile, bytes: u64) {
        let FusedOp::MatMul { input, matrix, bias, act_mul, out, .. } = node.op else {
            unreachable!("called for matmuls")
        };
        let (layout, first_row) = self.matrix(id);
        let spec = GemmSpec {
            layout,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            output_first: if act_mul.is_some() { first_row / 2 } else { first_row },
            bias: bias.is_some(),
            act_mul,
            tile,
            subgroup_size: self.target.subgroup_size,
        };
        let rows = if self.graph.matrices[matrix.0].is_head { self.logits_rows() } else { self.kind.rows };
        let bias = bias.map(|bias| Operand::Weight(self.weights.vector(bias)));
        let result = self.value(out);
        self.push(node, KernelSpec::Gemm(spec), rows, bytes, |role| match role {
            Role::Weights => Operand::Weight(id),
            Role::Halves => Operand::Encoded(input),
            Role::Bias => bias.expect("biased"),
            _ => result,
        });
    }

    /// Whether a value is q, k or v.
    fn becomes_heads(&self, value: ValueId) -> bool {
        self.graph.nodes.iter().filter(|node| node.op.inputs().contains(&value)).any(|node| match &node.op {
            FusedOp::Heads(_) => true,
            FusedOp::Elementwise { out, .. } => self.becomes_heads(*out),
            _ => false,
        })
    }

    /// Whether a matmul makes the integers that its result is wanted in: whole groups of them in each workgroup.
    fn encodes_output(&self, node: &FusedNode) -> bool {
        let FusedOp::MatMul { matrix, act_mul, out, .. } = node.op else { return false };
        let whole = self.weights.matrix(matrix).len() == 1;
        let codes = matches!(self.stored_format(out), ActivationFormat::Codes(Precision::Int8));
        act_mul.is_some() && whole && codes
    }

    /// Makes the integers that a value is wanted in, from f32.
    fn quantize(&mut self, node: &FusedNode, value: ValueId) {
        let format = self.stored_format(value);
        if format == ActivationFormat::F32 {
            return;
        }
        let width = self.graph.values[value.0].width;
        let spec = QuantizeSpec { width, stride: stride(width), format, subgroup_size: self.target.subgroup_size };
        self.push(node, KernelSpec::Quantize(spec), self.kind.rows, 0, |role| match role {
            Role::InputQuads => Operand::Value(value),
            _ => Operand::Encoded(value),
        });
        self.steps.last_mut().expect("pushed above").label += " to integers";
    }

    fn matmul_spec(&self, node: &FusedNode, id: PackedId, norm: Option<&NormStep>) -> MatMulSpec {
        let FusedOp::MatMul { input, matrix, bias, act_mul, softcap, out } = node.op else {
            unreachable!("called for matmuls")
        };
        let (layout, first_row) = self.matrix(id);
        let row_from_step = self.row_from_step(node);
        let head_rows = if self.graph.matrices[matrix.0].is_head { self.logits_rows() } else { self.kind.rows };
        let least_tiles = match (norm, self.encodes_output(node)) {
            // 32 rows of gate and as many of up.
            (_, true) => 2 * ACTIVATION_GROUP / TILE_ROWS,
            (Some(_), false) => self.target.matmul.prologue_tiles,
            (None, false) => 1,
        };
        MatMulSpec {
            layout,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            output_first: if act_mul.is_some() { first_row / 2 } else { first_row },
            input: self.stored_format(input),
            output: if self.encodes_output(node) { self.stored_format(out) } else { ActivationFormat::F32 },
            prologue: norm.map(|step| self.norm_spec(step)),
            bias: bias.is_some(),
            act_mul,
            softcap: softcap.map(Number::new),
            row_from_step,
            tile: tile(self.target, &layout, head_rows, act_mul.is_some(), least_tiles),
            subgroup_size: self.target.subgroup_size,
        }
    }

    fn heads(&mut self, node: &FusedNode, step: &HeadsStep) {
        let (group, layer) = self.cache_of(node);
        let rope = step.rope.map(|index| &self.config.ropes[index]);
        let spec = HeadsSpec {
            parts: step.parts.clone(),
            head_dim: self.config.head_dim,
            input_stride: self.stride_of(step.input),
            output_stride: step.out.map_or(0, |out| self.stride_of(out)),
            eps: Number::new(self.config.rms_norm_eps),
            rotary_dim: rope.map_or(0, |rope| 2 * rope.inv_freq.len()),
            rope_coarse: rope_coarse(self.config.max_positions),
            page_tokens: PAGE_TOKENS,
            kv_group: group,
            subgroup_size: self.target.subgroup_size,
        };
        let weights = self.weights;
        self.push(node, KernelSpec::Heads(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(step.input),
            Role::QueryNorm => Operand::Weight(weights.vector(step.query_norm.expect("query norm"))),
            Role::KeyNorm => Operand::Weight(weights.vector(step.key_norm.expect("key norm"))),
            Role::RopeTable => Operand::Weight(weights.rope(step.rope.expect("rope"))),
            Role::Keys => Operand::Keys { group, layer },
            Role::Values => Operand::Values { group, layer },
            _ => Operand::Value(step.out.expect("an output")),
        });
    }

    fn attention(&mut self, node: &FusedNode, query: ValueId, out: ValueId) {
        let (group, layer) = self.cache_of(node);
        let config = self.config;
        let gqa = config.n_heads / config.n_kv_heads;
        let heads_per_group = (1..=gqa.min(ATTENTION_QUERIES)).rev().find(|n| gqa.is_multiple_of(*n)).unwrap_or(1);
        let spec = AttentionSpec {
            n_kv_heads: config.n_kv_heads,
            gqa,
            head_dim: config.head_dim,
            input_stride: self.stride_of(query),
            output_stride: self.stride_of(out),
            window: self.groups[group].window,
            softcap: config.attention_softcap.map(Number::new),
            page_tokens: PAGE_TOKENS,
            kv_group: group,
            heads_per_group,
            rows_per_group: if self.kind.batch { 1 } else { (ATTENTION_QUERIES / heads_per_group).min(self.kind.rows) },
        };
        self.push(node, KernelSpec::Attention(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(query),
            Role::Keys => Operand::Keys { group, layer },
            Role::Values => Operand::Values { group, layer },
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    fn sample(&mut self) {
        let spec = KernelSpec::Sample(SampleSpec {
            vocab: self.config.vocab_size,
            logits_stride: stride(self.config.vocab_size),
            workgroup: self.target.workgroup_invocations.min(256),
            subgroup_size: self.target.subgroup_size,
        });
        self.steps.push(Step {
            workgroups: spec.workgroups(self.logits_rows()),
            operands: vec![Operand::StepBuffer, Operand::Logits, Operand::Drawn],
            spec,
            label: "sample".into(),
            weight_bytes: 0,
        });
    }

    /// (KV group, layer within it) of a node.
    fn cache_of(&self, node: &FusedNode) -> (usize, usize) {
        let layer = node.layer.expect("attention is inside a layer");
        let in_group = |group: &KvGroup| group.layers.iter().position(|&one| one == layer);
        let found = self.groups.iter().enumerate().find_map(|(index, group)| in_group(group).map(|at| (index, at)));
        found.expect("every layer has a group")
    }

    fn logits_rows(&self) -> usize {
        if self.kind.logits == LogitsRows::One { 1 } else { self.kind.rows }
    }

    fn value(&self, id: ValueId) -> Operand {
        if id == self.graph.logits { Operand::Logits } else { Operand::Value(id) }
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
        self.steps.push(Step { workgroups: spec.workgroups(rows), operands, spec, label, weight_bytes });
    }

    /// What a node is to a person: its kernel, or the matrix it multiplies by.
    fn role_name(&self, node: &FusedNode) -> String {
        match &node.op {
            FusedOp::MatMul { matrix, .. } => {
                let short =
                    |tensor: &str| tensor.trim_end_matches(".weight").rsplit('.').next().unwrap_or("").to_owned();
                let parts: Vec<String> =
                    self.graph.matrices[matrix.0].parts.iter().map(|part| short(&part.tensor)).collect();
                parts.join("+")
            }
            FusedOp::Embed { .. } => "embed".into(),
            FusedOp::Norm(_) => "norm".into(),
            FusedOp::Heads(_) => "heads".into(),
            FusedOp::Attention { .. } => "attention".into(),
            FusedOp::Elementwise { op, .. } => format!("{op:?}").to_lowercase(),
        }
    }
}

fn roles_of(spec: KernelSpec) -> impl Iterator<Item = Role> {
    spec.bindings().into_iter().map(|binding| binding.role)
}

/// The target's tuning fitted to a shape.
fn tile(target: &Target, layout: &WeightLayout, rows: usize, paired: bool, least_tiles: usize) -> MatMulTile {
    let tuning = target.matmul;
    let columns = tuning.columns.min(rows.next_power_of_two());
    let tiles_per_lane = if columns == 1 { tuning.tiles_per_lane_one } else { tuning.tiles_per_lane_many };
    // A lane without a block to read only waits.
    let blocks = layout.blocks_per_tile();
    let k_slices = if blocks.is_power_of_two() { blocks } else { blocks.next_power_of_two() / 2 };
    let tiles_per_lane = if paired { tiles_per_lane.next_multiple_of(2) } else { tiles_per_lane };
    let lane_groups = tuning.workgroup / TILE_ROWS;
    let k_slices = tuning.k_slices.min(k_slices).min((lane_groups * tiles_per_lane / least_tiles).max(1));
    MatMulTile {
        columns,
        tiles_per_lane,
        k_slices,
        broadcast: tuning.broadcast,
        unroll: tuning.unroll,
        group_tiles: (lane_groups / k_slices).max(1),
    }
}
