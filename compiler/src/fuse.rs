//! [`FusedGraph`]: the same model in as few operations as the kernels allow. Each fused operation is one kernel.
//!
//! What is merged, in the order of a layer: residual sum, post norm and norm into one `norm` (which a step of one row does
//! inside the next matmul); q, k and v into one matmul with their biases; QK norm, RoPE, query scale and cache writes
//! into one `heads`; gate, up, activation and product into one matmul; a shared expert into the routed ones; soft cap into the output head.
//!
//! [`plain`] makes the same type without merging anything: the oracle behind `--no-fuse`.

mod attention;
mod image;
mod latent;
mod op;
mod recurrent;
mod shared;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use unicorn_kernels::Number;
use unicorn_kernels::elementwise::ElementwiseOp;
use unicorn_kernels::heads::{Destination, HeadsPart, NormOf};

pub(crate) use op::{Columns, DeltaStep, FusedOp, HeadsStep, NormStep};

use attention::destination;
use shared::Joined;

use crate::format_policy::FormatPolicy;
use crate::graph::{MatrixRef, ModelGraph, Node, Op, Value, ValueId, VectorRef, stride};
use crate::import::ModelConfig;

/// Index into [`FusedGraph::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MatrixId(pub usize);

/// Index into [`FusedGraph::vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VectorId(pub usize);

/// One packed matrix: source tensors below one another, or two of them with their tiles in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Its source tensors' names, joined by `+`; unique in a graph.
    pub name: String,
    /// Source tensors, in the order of its rows; of equal `cols`.
    pub parts: Vec<MatrixRef>,
    /// Tiles of 8 rows alternate between the two parts (gate and up).
    pub(crate) interleaved: bool,
    /// Tensors of a shared expert, one for each part: those of the last experts, below one another or side by side. Empty: there are none.
    pub(crate) shared: Vec<MatrixRef>,
    /// Number of experts, shared ones included. Each has one matrix of each part, padded to whole tiles; all rows of an expert, then those of the next.
    pub(crate) experts: Option<usize>,
    /// It chooses experts, where a small error may choose another, or would be a row of what does.
    pub(crate) is_router: bool,
    /// It controls how recurrent state changes, where errors add up over all tokens.
    pub(crate) is_state_gate: bool,
    pub(crate) layer: Option<usize>,
    /// Rows are looked up by token; the same matrix may be the output head as well.
    pub(crate) is_table: bool,
    pub(crate) is_head: bool,
}

/// One packed vector of f32: source tensors one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vector {
    pub(crate) parts: Vec<VectorRef>,
    /// They are the biases of this stack of experts: one for each row of an expert's, of all parts and without padding, then those of
    /// the next. Tensors have `*` where an expert's has its number.
    pub(crate) stack: Option<MatrixId>,
    pub(crate) layer: Option<usize>,
}

/// One fused operation and the layer it belongs to (`None`: embedding and head).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FusedNode {
    pub(crate) layer: Option<usize>,
    pub(crate) op: FusedOp,
}

/// The whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedGraph {
    pub(crate) values: Vec<Value>,
    /// Packed matrices, each once; nodes name them by index.
    pub matrices: Vec<Matrix>,
    pub(crate) vectors: Vec<Vector>,
    pub(crate) nodes: Vec<FusedNode>,
    pub(crate) logits: ValueId,
    /// Logits of the token behind the next one, if the model has a head for it.
    pub(crate) predicted: Option<ValueId>,
    /// The rows that an image becomes, if the model has a vision tower.
    pub(crate) image_rows: Option<ValueId>,
}

impl FusedGraph {
    /// The matrices of gate and up that one matmul applies to rows that come from a norm.
    pub(crate) fn products_of_normed_rows(&self) -> impl Iterator<Item = MatrixId> {
        let norms = self.nodes.iter().filter_map(|node| match &node.op {
            FusedOp::Norm(step) => step.weight.map(|_| step.out),
            _ => None,
        });
        let normed: BTreeSet<ValueId> = norms.collect();
        self.nodes.iter().filter_map(move |node| match node.op {
            FusedOp::MatMul { input, matrix, act_mul: Some(_), .. } if normed.contains(&input) => Some(matrix),
            _ => None,
        })
    }
}

impl Matrix {
    /// A matrix of these tensors, of which no operation is known.
    fn of(parts: Vec<MatrixRef>, interleaved: bool, layer: Option<usize>) -> Matrix {
        Matrix {
            name: String::new(),
            experts: parts[0].experts,
            parts,
            interleaved,
            shared: Vec::new(),
            is_router: false,
            is_state_gate: false,
            layer,
            is_table: false,
            is_head: false,
        }
    }

    /// All its tensors' matrices.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &MatrixRef> {
        self.parts.iter().chain(&self.shared)
    }

    /// The last words of its tensors' names, for people.
    pub(crate) fn short_name(&self) -> String {
        let word = |part: &MatrixRef| {
            let mut words = part.tensor.trim_end_matches(".weight").trim_end_matches(".*").rsplit('.');
            words.next().unwrap_or_default().to_owned()
        };
        self.parts.iter().map(word).collect::<Vec<_>>().join("+")
    }
}

/// Merges operations that one kernel can compute in one dispatch. Matrices become one where `policy` gives them one format.
pub fn fuse(graph: &ModelGraph, config: &ModelConfig, policy: FormatPolicy) -> FusedGraph {
    let mut fuser = Fuser::new(graph, config, policy);
    fuser.join_shared_experts();
    for index in 0..graph.nodes.len() {
        if !fuser.done[index] {
            fuser.fuse_from(index);
        }
    }
    fuser.out
}

/// One fused operation for each plain one; two for attention, whose query is scaled first. Matrices have the formats that [`fuse`] gives them.
pub fn plain(graph: &ModelGraph, config: &ModelConfig, policy: FormatPolicy) -> FusedGraph {
    let mut fuser = Fuser::new(graph, config, policy);
    fuser.router_gates = fuser.gates_that_join();
    for index in 0..graph.nodes.len() {
        fuser.lower_unmerged(index);
    }
    fuser.out
}

struct Fuser<'a> {
    graph: &'a ModelGraph,
    config: &'a ModelConfig,
    policy: FormatPolicy,
    /// Nodes that read each value.
    consumers: Vec<Vec<usize>>,
    producer: Vec<Option<usize>>,
    done: Vec<bool>,
    /// Queries that their heads step has multiplied by attention's scale.
    scaled: BTreeSet<ValueId>,
    /// The values that matmuls read in place of a sum without a norm.
    copies: BTreeMap<ValueId, ValueId>,
    /// Values that have become parts of others.
    columns: BTreeMap<ValueId, Columns>,
    /// Shared experts that have become the last of those of these routes.
    shared: BTreeMap<ValueId, Joined>,
    /// Further rows of the matrices that make these logits.
    router_rows: BTreeMap<ValueId, MatrixRef>,
    /// Where nothing is merged, the gates that would be such rows.
    router_gates: Vec<MatrixRef>,
    /// The matrices of `out`, by the names of their tensors.
    matrix_of: BTreeMap<String, MatrixId>,
    out: FusedGraph,
}

impl<'a> Fuser<'a> {
    fn new(graph: &'a ModelGraph, config: &'a ModelConfig, policy: FormatPolicy) -> Fuser<'a> {
        let mut consumers = vec![Vec::new(); graph.values.len()];
        let mut producer = vec![None; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            for input in node.op.inputs() {
                consumers[input.0].push(index);
            }
            for out in node.op.outs() {
                producer[out.0] = Some(index);
            }
        }
        let out = FusedGraph {
            values: graph.values.clone(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            nodes: Vec::new(),
            logits: graph.logits,
            predicted: graph.predicted,
            image_rows: graph.image_rows,
        };
        let done = vec![false; graph.nodes.len()];
        Fuser {
            graph,
            config,
            policy,
            consumers,
            producer,
            done,
            scaled: BTreeSet::new(),
            copies: BTreeMap::new(),
            columns: BTreeMap::new(),
            shared: BTreeMap::new(),
            router_rows: BTreeMap::new(),
            router_gates: Vec::new(),
            matrix_of: BTreeMap::new(),
            out,
        }
    }

    fn fuse_from(&mut self, index: usize) {
        let node = &self.graph.nodes[index];
        let merged = match node.op {
            Op::MatMul { input, .. } => {
                self.gate_up(index, input)
                    || self.qkv(index, input)
                    || self.delta_projections(index, input)
                    || self.image_attention(index)
                    || self.matmul_with_tail(index)
            }
            Op::ExpertMatMul { input, .. } => self.expert_gate_up(input),
            Op::HeadColumns { .. } => self.latent_heads(index),
            Op::Add { .. } => self.add_norm(index),
            // A post norm becomes part of the sum that reads it.
            Op::Norm { out, .. } => self.is_post_norm(out),
            _ => false,
        };
        if !merged {
            self.lower_unmerged(index);
        }
    }

    /// gate and up of one input, multiplied: one matmul.
    fn gate_up(&mut self, index: usize, input: ValueId) -> bool {
        let matmuls = |consumer: &usize| matches!(self.graph.nodes[*consumer].op, Op::MatMul { .. });
        let tails: Vec<LinearTail> =
            self.consumers[input.0].iter().copied().filter(matmuls).filter_map(|node| self.linear_tail(node)).collect();
        // A shared expert's gate and up are not all that reads the input.
        let mut pairs = tails.windows(2).map(|pair| (&pair[0], &pair[1]));
        let Some((gate_tail, up_tail)) = pairs.find(|(gate, _)| gate.nodes[0] == index) else { return false };
        let Some((product, Op::ActMul { gate: a, up: b, activation, out, .. })) = self.sole_consumer(gate_tail.value)
        else {
            return false;
        };
        // Tiles of gate and up alternate, so a part's last tile must be whole.
        if (*a, *b) != (gate_tail.value, up_tail.value)
            || gate_tail.matrix.rows % unicorn_kernels::layout::TILE_ROWS != 0
        {
            return false;
        }
        // Biases would have to alternate as well; no supported family has them here without q, k, v biases.
        if gate_tail.bias.is_some() || up_tail.bias.is_some() {
            return false;
        }
        let layer = self.graph.nodes[index].layer;
        let (act_mul, out) = (Some(*activation), *out);
        let nodes = [&gate_tail.nodes[..], &up_tail.nodes, &[product]].concat();
        let matrix = self.matrix(vec![gate_tail.matrix.clone(), up_tail.matrix.clone()], true, layer);
        self.emit(layer, FusedOp::MatMul { input, matrix, bias: None, act_mul, softcap: None, out });
        self.mark(&nodes);
        true
    }

    /// The same for experts.
    fn expert_gate_up(&mut self, input: ValueId) -> bool {
        let of_experts = |&consumer: &usize| match &self.graph.nodes[consumer].op {
            Op::ExpertMatMul { matrix, bias, routes, out, .. } => {
                Some((consumer, (matrix.clone(), bias.clone()), *routes, *out))
            }
            _ => None,
        };
        let stacks: Vec<_> = self.consumers[input.0].iter().filter_map(of_experts).collect();
        let [(gate_node, (gate_matrix, gate_bias), routes, gate), (up_node, (up_matrix, up_bias), _, up)] = &stacks[..]
        else {
            return false;
        };
        let Some((product, Op::ActMul { gate: a, up: b, activation, out, .. })) = self.sole_consumer(*gate) else {
            return false;
        };
        if (a, b) != (gate, up) || gate_matrix.rows % unicorn_kernels::layout::TILE_ROWS != 0 {
            return false;
        }
        let (layer, routes) = (self.graph.nodes[*gate_node].layer, *routes);
        let (act_mul, out, nodes) = (Some(*activation), *out, [*gate_node, *up_node, product]);
        let matrix = self.stack(vec![gate_matrix.clone(), up_matrix.clone()], routes, true, layer);
        let biases: Vec<VectorRef> = [gate_bias, up_bias].into_iter().flatten().cloned().collect();
        let bias = self.stacked_bias(biases, matrix, layer);
        self.emit(layer, FusedOp::ExpertMatMul { input, routes, matrix, bias, act_mul, out });
        self.mark(&nodes);
        true
    }

    /// A matmul with the bias and soft cap that follow it.
    fn matmul_with_tail(&mut self, index: usize) -> bool {
        let Op::MatMul { input, .. } = self.graph.nodes[index].op else { return false };
        let Some(mut tail) = self.linear_tail(index) else { return false };
        let layer = self.graph.nodes[index].layer;
        let mut softcap = None;
        if let Some((node, Op::SoftCap { cap, out, .. })) = self.sole_consumer(tail.value) {
            softcap = Some(*cap);
            tail.value = *out;
            tail.nodes.push(node);
        }
        let bias = tail.bias.clone().map(|bias| self.vector(vec![bias], layer));
        let further = self.router_rows.get(&tail.value).cloned();
        let matrix = self.matrix([tail.matrix].into_iter().chain(further).collect(), false, layer);
        self.emit(layer, FusedOp::MatMul { input, matrix, bias, act_mul: None, softcap, out: tail.value });
        self.mark(&tail.nodes);
        true
    }

    /// A residual sum with the norm that reads it and the post norm before it.
    fn add_norm(&mut self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        let Op::Add { left, right, out: mut sum } = node.op else { return false };
        // A layer's factor is stored behind the post norm's weights.
        let scale = match self.sole_consumer(sum) {
            Some((scale, Op::Scale { factor, out, .. })) if self.is_post_norm(right) => {
                sum = *out;
                Some((scale, factor.clone()))
            }
            _ => None,
        };
        let norm = self.consumers[sum.0].iter().find_map(|&consumer| match &self.graph.nodes[consumer].op {
            // A norm that itself becomes part of a sum reads this one unchanged.
            Op::Norm { weight, out, .. } if !self.is_post_norm(*out) => Some((consumer, weight.clone(), *out)),
            _ => None,
        });
        if norm.is_none() && !self.is_post_norm(right) {
            return false;
        }
        let post = self.producer[right.0].and_then(|producer| match &self.graph.nodes[producer].op {
            Op::Norm { input, weight, .. } if self.is_post_norm(right) => Some((producer, *input, weight.clone())),
            _ => None,
        });
        let layer = node.layer;
        let scale_sum = scale.is_some();
        let (input, post_weight) = match post {
            Some((post_node, input, weight)) => {
                self.mark(&[post_node]);
                let (scale_node, factor) = scale.unzip();
                self.mark(&Vec::from_iter(scale_node));
                (input, Some(self.vector([weight].into_iter().chain(factor).collect(), layer)))
            }
            None => (right, None),
        };
        let (layer, weight, out) = match norm {
            Some((norm_node, weight, out)) => {
                self.mark(&[norm_node]);
                let layer = self.graph.nodes[norm_node].layer;
                (layer, Some(self.vector(vec![weight], layer)), out)
            }
            None => {
                let copy =
                    self.value(format!("{}.read", self.graph.values[sum.0].name), self.graph.values[sum.0].width);
                self.copies.insert(sum, copy);
                (layer, None, copy)
            }
        };
        let step = NormStep { input, residual: Some(left), post_weight, scale_sum, weight, sum: Some(sum), out };
        self.emit(layer, FusedOp::Norm(step));
        self.mark(&[index]);
        true
    }

    /// Whether `value` is a norm's output that only the right side of a sum reads.
    fn is_post_norm(&self, value: ValueId) -> bool {
        let is_norm = self.producer[value.0].is_some_and(|node| matches!(self.graph.nodes[node].op, Op::Norm { .. }));
        is_norm && matches!(self.sole_consumer(value), Some((_, Op::Add { right, .. })) if *right == value)
    }

    fn sole_consumer(&self, value: ValueId) -> Option<(usize, &'a Op)> {
        match self.consumers[value.0][..] {
            [only] => Some((only, &self.graph.nodes[only].op)),
            _ => None,
        }
    }

    /// A matmul and, if one follows, its bias.
    fn linear_tail(&self, index: usize) -> Option<LinearTail> {
        let Op::MatMul { matrix, out, .. } = &self.graph.nodes[index].op else { return None };
        let mut tail = LinearTail { matrix: matrix.clone(), bias: None, value: *out, nodes: vec![index] };
        if let Some((node, Op::Bias { bias, out, .. })) = self.sole_consumer(tail.value) {
            tail.bias = Some(bias.clone());
            tail.value = *out;
            tail.nodes.push(node);
        }
        Some(tail)
    }

    /// The node as an operation of its own, not merged with others.
    fn lower_unmerged(&mut self, index: usize) {
        let Node { layer, op } = &self.graph.nodes[index];
        let layer = *layer;
        let heads = |input, norm, rope, to| HeadsPart {
            n_heads: self.n_heads(input, layer),
            norm,
            rope,
            scale: Number::new(1.0),
            growth: None,
            to,
        };
        let elementwise = |op, input, second, out| FusedOp::Elementwise { op, input, second, bias: None, out };
        let width = |value: ValueId| self.graph.values[value.0].width;
        let fused = match op.clone() {
            Op::Embed { table, scale, out } => {
                let table = self.matrix(vec![table], false, layer);
                // Outside the layers, but read by rows; a tied head reports it.
                self.out.matrices[table.0].is_table = true;
                self.out.matrices[table.0].is_head = false;
                FusedOp::Embed { table, scale, out }
            }
            Op::Norm { input, weight, out } => {
                let weight = Some(self.vector(vec![weight], layer));
                let (residual, post_weight, scale_sum, sum) = (None, None, false, None);
                FusedOp::Norm(NormStep { input, residual, post_weight, scale_sum, weight, sum, out })
            }
            Op::MatMul { input, matrix, out } => {
                let is_router = self.router_gates.contains(&matrix);
                let matrix = self.matrix(vec![matrix], false, layer);
                self.out.matrices[matrix.0].is_router |= is_router;
                FusedOp::MatMul { input, matrix, bias: None, act_mul: None, softcap: None, out }
            }
            Op::Bias { input, bias, out } => {
                let bias = Some(self.vector(vec![bias], layer));
                FusedOp::Elementwise { op: ElementwiseOp::Bias, input, second: None, bias, out }
            }
            Op::HeadNorm { input, of, weight, out } => {
                let part = heads(input, Some(of), false, Destination::Output);
                let weight = weight.map(|weight| self.vector(vec![weight], layer));
                let mut norm = heads_step(input, part, None, Some(out));
                match of {
                    NormOf::Query => norm.query_norm = weight,
                    NormOf::Key => norm.key_norm = weight,
                    NormOf::Value => {}
                }
                FusedOp::Heads(norm)
            }
            Op::Rope { input, rope, out } => {
                let part = heads(input, None, true, Destination::Output);
                FusedOp::Heads(heads_step(input, part, Some(rope), Some(out)))
            }
            Op::CacheWrite { input, part } => {
                let part = heads(input, None, false, destination(part));
                FusedOp::Heads(heads_step(input, part, None, None))
            }
            op @ Op::Attention { .. } => self.attention(op, layer),
            Op::Add { left, right, out } => elementwise(ElementwiseOp::Add, left, Some(right), out),
            Op::ActMul { gate, up, activation, out, .. } if width(gate) == width(up) => {
                elementwise(ElementwiseOp::ActMul(activation), gate, Some(up), out)
            }
            Op::ActMul { gate, up, up_column: first, activation, out } => {
                let op = ElementwiseOp::ActMulPart { activation, first, second_stride: stride(width(up)) };
                elementwise(op, gate, Some(up), out)
            }
            Op::Scale { input, factor, out } => {
                let bias = Some(self.vector(vec![factor], layer));
                FusedOp::Elementwise { op: ElementwiseOp::Scale, input, second: None, bias, out }
            }
            Op::SoftCap { input, cap, out } => elementwise(ElementwiseOp::SoftCap(Number::new(cap)), input, None, out),
            op @ Op::Route { .. } => self.route(op, layer),
            Op::EveryMatrix { matrices, out } => FusedOp::EveryMatrix { matrices, out },
            Op::HeadColumns { blocks, out } => FusedOp::HeadColumns { blocks, out },
            Op::ExpertMatMul { input, routes, matrix, bias, out } => {
                let matrix = self.stack(vec![matrix], routes, false, layer);
                let bias = self.stacked_bias(bias.into_iter().collect(), matrix, layer);
                FusedOp::ExpertMatMul { input, routes, matrix, bias, act_mul: None, out }
            }
            Op::ExpertSum { input, routes, out } => {
                let out = self.shared.get(&routes).map_or(out, |joined| joined.sum);
                FusedOp::ExpertSum { input, routes, out }
            }
            Op::Gate { input, gate, out } => {
                let second_stride = stride(width(gate));
                let op = match width(gate) {
                    1 => ElementwiseOp::Gate { second_stride },
                    _ => ElementwiseOp::GateEach,
                };
                elementwise(op, input, Some(gate), out)
            }
            Op::ShortConv { input, taps, form, out } => {
                let input = self.columns_of(input).of;
                FusedOp::ShortConv { input, taps: self.vector(vec![taps], layer), form, out }
            }
            Op::PreviousRow { input, out } => FusedOp::PreviousRow { input, out },
            Op::KeepRow { input } => FusedOp::KeepRow { input },
            op @ Op::DeltaRule { .. } => self.delta_rule(op, layer),
            Op::Patches { out } => FusedOp::Patches { out },
            Op::LayerNorm { input, weight, bias, eps, out } => {
                FusedOp::LayerNorm { input, weight_and_bias: self.vector(vec![weight, bias], layer), eps, out }
            }
            Op::RowBias { input, bias, out } => {
                let bias = Some(self.vector(vec![bias], layer));
                FusedOp::Elementwise { op: ElementwiseOp::RowBias, input, second: None, bias, out }
            }
            Op::Activate { input, activation, out } => {
                elementwise(ElementwiseOp::Activate(activation), input, None, out)
            }
            Op::ImagePositions { input, learned, positions, side, out } => {
                FusedOp::ImagePositions { input, learned: self.vector(vec![learned], layer), positions, side, out }
            }
            Op::ImageRope { input, n_heads, out } => FusedOp::ImageRope { input, n_heads, out },
            Op::ImageFeatures { input, first, out } => FusedOp::ImageFeatures { input, first, out },
            Op::ImageAttention { sources, n_heads, scale, out } => {
                FusedOp::ImageAttention { sources, n_heads, scale, out }
            }
            Op::ImagePool { input, across, side, out } => FusedOp::ImagePool { input, across, side, out },
            Op::SparseActMul { gate, up, activation, deviations, out } => {
                FusedOp::SparseActMul { gate, up, activation, deviations, out }
            }
            Op::Streams(op) => FusedOp::Streams(op.map(|parts| self.vector(parts, layer))),
            Op::GatedNorm { input, gate, weight, form, out } => {
                let gate = self.columns_of(gate);
                FusedOp::GatedNorm { input, gate, weight: self.vector(vec![weight], layer), form, out }
            }
        };
        self.emit(layer, fused);
        self.mark(&[index]);
    }

    /// Attention; before it, a step that scales the query, unless one did.
    fn attention(&mut self, op: Op, layer: Option<usize>) -> FusedOp {
        let Op::Attention { mut query, scale, growth, sinks, out } = op else { unreachable!("called for attention") };
        if !self.scaled.contains(&query) {
            let (norm, rope, to) = (None, false, Destination::Output);
            let n_heads = self.n_heads(query, layer);
            let part = HeadsPart { n_heads, norm, rope, scale: Number::new(scale), growth, to };
            let scaled = self.value(format!("scaled.{}", layer.unwrap_or_default()), self.graph.values[query.0].width);
            self.emit(layer, FusedOp::Heads(heads_step(query, part, None, Some(scaled))));
            query = scaled;
        }
        let sinks = sinks.map(|sinks| self.vector(vec![sinks], layer));
        FusedOp::Attention { query, scale, growth, sinks, out }
    }

    /// The choice of experts, with the shared ones that are in their stacks.
    fn route(&mut self, op: Op, layer: Option<usize>) -> FusedOp {
        let Op::Route { input, chosen, scores, normalized, factor, scale, choice_bias, groups, out } = op else {
            unreachable!("called for routes");
        };
        let matrix = self.matrix_that_made(input);
        self.out.matrices[matrix.0].is_router = true;
        let mut of_experts = |vector: Option<VectorRef>| vector.map(|vector| self.vector(vec![vector], layer));
        let (scale, choice_bias) = (of_experts(scale), of_experts(choice_bias));
        let shared = self.shared_experts(out);
        FusedOp::Route { input, chosen, shared, scores, normalized, factor, scale, choice_bias, groups, out }
    }

    /// A gated delta net, whose gates may be columns of a wider value.
    fn delta_rule(&mut self, op: Op, layer: Option<usize>) -> FusedOp {
        let Op::DeltaRule { input, decay, strength, decay_rate, decay_bias, out } = op else {
            unreachable!("called for delta rules");
        };
        let [decay, strength] = [decay, strength].map(|gate| self.columns_of(gate));
        for gate in [decay, strength] {
            let matrix = self.matrix_that_made(gate.of);
            self.out.matrices[matrix.0].is_state_gate = true;
        }
        FusedOp::DeltaRule(DeltaStep {
            input,
            decay,
            strength,
            decay_rate: self.vector(vec![decay_rate], layer),
            decay_bias: self.vector(vec![decay_bias], layer),
            out,
        })
    }

    fn n_heads(&self, input: ValueId, layer: Option<usize>) -> usize {
        self.graph.values[input.0].width / self.graph.head_dims[layer.expect("heads are inside a layer")]
    }

    /// The matrix whose product a value is, before a bias.
    fn matrix_that_made(&self, value: ValueId) -> MatrixId {
        let made = |node: &FusedNode| match node.op {
            FusedOp::MatMul { matrix, out, .. } if out == value => Some(matrix),
            FusedOp::Elementwise { op: ElementwiseOp::Bias, input, out, .. } if out == value => {
                Some(self.matrix_that_made(input))
            }
            _ => None,
        };
        self.out.nodes.iter().rev().find_map(made).expect("routers and gates of state are matrices")
    }

    /// A value that the plain graph does not have.
    fn value(&mut self, name: String, width: usize) -> ValueId {
        self.value_of_rows(name, width, 1)
    }

    fn value_of_rows(&mut self, name: String, width: usize, rows_per_token: usize) -> ValueId {
        self.out.values.push(Value { name, width, rows_per_token });
        ValueId(self.out.values.len() - 1)
    }

    /// The packed matrix of these parts; a tied head finds its table again.
    fn matrix(&mut self, parts: Vec<MatrixRef>, interleaved: bool, layer: Option<usize>) -> MatrixId {
        self.packed(Matrix::of(parts, interleaved, layer))
    }

    /// The packed matrix of these parts of experts, and behind them those of a shared one.
    fn stack(&mut self, parts: Vec<MatrixRef>, routes: ValueId, interleaved: bool, layer: Option<usize>) -> MatrixId {
        let shared = self.shared_parts(routes, &parts);
        let mut matrix = Matrix { shared, ..Matrix::of(parts, interleaved, layer) };
        matrix.experts = matrix.experts.map(|experts| experts + self.shared_experts(routes).count);
        self.packed(matrix)
    }

    fn packed(&mut self, matrix: Matrix) -> MatrixId {
        let is_head = matrix.parts[0] == self.graph.head;
        let name = matrix.sources().map(|part| part.tensor.as_str()).collect::<Vec<_>>().join("+");
        if let Some(&found) = self.matrix_of.get(&name) {
            self.out.matrices[found.0].is_head |= is_head;
            return found;
        }
        let id = MatrixId(self.out.matrices.len());
        self.matrix_of.insert(name.clone(), id);
        self.out.matrices.push(Matrix { name, is_head, ..matrix });
        id
    }

    fn vector(&mut self, parts: Vec<VectorRef>, layer: Option<usize>) -> VectorId {
        let id = VectorId(self.out.vectors.len());
        self.out.vectors.push(Vector { parts, stack: None, layer });
        id
    }

    /// The biases of a stack's parts, if they have any.
    fn stacked_bias(&mut self, parts: Vec<VectorRef>, stack: MatrixId, layer: Option<usize>) -> Option<VectorId> {
        if parts.is_empty() {
            return None;
        }
        let id = self.vector(parts, layer);
        self.out.vectors[id.0].stack = Some(stack);
        Some(id)
    }

    fn emit(&mut self, layer: Option<usize>, mut op: FusedOp) {
        if let FusedOp::MatMul { input, .. } = &mut op {
            *input = *self.copies.get(input).unwrap_or(input);
        }
        self.out.nodes.push(FusedNode { layer, op });
    }

    fn mark(&mut self, nodes: &[usize]) {
        for &node in nodes {
            self.done[node] = true;
        }
    }
}

struct LinearTail {
    matrix: MatrixRef,
    bias: Option<VectorRef>,
    value: ValueId,
    nodes: Vec<usize>,
}

/// A step of one part of heads, without weights of norms.
fn heads_step(input: ValueId, part: HeadsPart, rope: Option<usize>, out: Option<ValueId>) -> HeadsStep {
    let (query_norm, key_norm) = (None, None);
    HeadsStep { input, parts: vec![part], values_are_keys: false, query_norm, key_norm, rope, out }
}
