//! [`VerifiedGraph`]: a fused graph in which every value is made once before it is read, with the width its reader expects, and
//! every attention has the scale and the rotary embedding that the config gives its layer.
//!
//! A graph that fails is an error of this compiler, so checks are assertions; each names the operation that failed. Later stages
//! take only checked graphs.

use unicorn_kernels::elementwise::ElementwiseOp;
use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::heads::{Destination, Growth, HeadsPart};
use unicorn_kernels::route::{Scores, routes_width};
use unicorn_kernels::short_conv::ConvForm;
use unicorn_kernels::streams::StreamsForm;

use crate::fuse::{Columns, FusedGraph, FusedNode, FusedOp, HeadsStep, Matrix, VectorId};
use crate::graph::{ColumnsBlock, StreamsOp, Value, ValueId};
use crate::import::{FullHeads, ModelConfig};

/// A checked graph; the only input of `select`.
pub struct VerifiedGraph {
    graph: FusedGraph,
    edges: Edges,
    /// The same for steps without rows of images; `None`: it is the same.
    of_text: Option<Box<VerifiedGraph>>,
}

impl VerifiedGraph {
    /// The graph that was checked.
    pub fn graph(&self) -> &FusedGraph {
        &self.graph
    }

    /// The graph of steps whose rows may be of images, or of other steps.
    pub(crate) fn of_steps(&self, images: bool) -> &VerifiedGraph {
        self.of_text.as_deref().filter(|_| !images).unwrap_or(self)
    }

    /// The node that makes a value.
    pub(crate) fn producer(&self, value: ValueId) -> Option<&FusedNode> {
        self.edges.producer[value.0].map(|node| &self.graph.nodes[node])
    }

    /// Indices of the nodes that read a value, in order, each once.
    pub(crate) fn readers(&self, value: ValueId) -> &[usize] {
        &self.edges.readers[value.0]
    }
}

/// The producer and the readers of each value.
struct Edges {
    producer: Vec<Option<usize>>,
    readers: Vec<Vec<usize>>,
}

impl Edges {
    fn of(graph: &FusedGraph) -> Edges {
        let n_values = graph.values.len();
        let mut edges = Edges { producer: vec![None; n_values], readers: vec![Vec::new(); n_values] };
        for (index, node) in graph.nodes.iter().enumerate() {
            for input in node.op.inputs() {
                let readers = &mut edges.readers[input.0];
                if readers.last() != Some(&index) {
                    readers.push(index);
                }
            }
            for out in node.op.outputs() {
                edges.producer[out.0] = Some(index);
            }
        }
        edges
    }
}

impl FusedGraph {
    /// Checks order, uniqueness, widths, attention's scale and rotary embeddings.
    ///
    /// # Panics
    /// When an operation fails, naming it.
    pub fn verify(self, config: &ModelConfig) -> VerifiedGraph {
        let edges = Edges::of(&self);
        let mut made = vec![false; self.values.len()];
        for node in &self.nodes {
            if let Err(what) = self.check(node, &mut made, &edges, config) {
                let layer = node.layer.map_or(String::new(), |layer| format!(" of layer {layer}"));
                panic!("{}{layer}: {what}", self.describe(&node.op));
            }
        }
        assert!(made[self.logits.0], "no operation makes the logits");
        assert_eq!(self.predicted.map(|logits| made[logits.0]), config.predictor.then_some(true), "logits of a head");
        assert!(self.image_rows.is_none_or(|rows| made[rows.0]), "no operation makes the rows of an image");
        self.check_rotations(config);
        let of_text = self
            .without_image_features()
            .map(|graph| Box::new(VerifiedGraph { edges: Edges::of(&graph), graph, of_text: None }));
        VerifiedGraph { graph: self, edges, of_text }
    }

    /// All heads of query and key of a layer with a rotary embedding are rotated once, and those of other layers are not.
    fn check_rotations(&self, config: &ModelConfig) {
        let mut rotated = vec![0; config.layers.len()];
        for node in &self.nodes {
            if let (Some(layer), FusedOp::Heads(step)) = (node.layer, &node.op) {
                rotated[layer] += step.parts.iter().filter(|part| part.rope).map(|part| part.n_heads).sum::<usize>();
            }
        }
        for (index, (layer, rotated)) in config.layers.iter().zip(rotated).enumerate() {
            let keys = if config.has_own_cache(index) { config.heads_of(index).n_kv_heads } else { 0 };
            let both = config.n_heads + keys;
            let expected = if layer.rope.is_some() { both } else { 0 };
            assert_eq!(rotated, expected, "heads of layer {index} that are rotated, of query and key");
        }
    }

    fn check(&self, node: &FusedNode, made: &mut [bool], edges: &Edges, config: &ModelConfig) -> Result<(), String> {
        for input in node.op.inputs() {
            ensure(made[input.0], || format!("value {} is read before it is made", self.values[input.0].name))?;
        }
        for out in node.op.outputs() {
            ensure(!made[out.0], || format!("value {} is made twice", self.values[out.0].name))?;
            made[out.0] = true;
        }
        match &node.op {
            FusedOp::Embed { table, out, .. } => self.check_width("table", self.matrices[table.0].cols(), *out),
            FusedOp::Norm(step) => {
                // A norm's input is the stream, or a whole query or key.
                let width = if step.residual.is_some() { config.hidden_size } else { self.width(step.input) };
                let all = [Some(step.input), step.residual, step.sum, Some(step.out)];
                for value in all.into_iter().flatten() {
                    self.check_width("norm", width, value)?;
                }
                ensure(step.post_weight.is_some() || !step.scale_sum, || {
                    "the factor of a sum is behind the weights of a post norm".into()
                })?;
                ensure(step.residual.is_some() == step.sum.is_some(), || "a sum comes with a residual".into())
            }
            FusedOp::MatMul { input, matrix, act_mul, out, .. } => {
                let matrix = &self.matrices[matrix.0];
                let halves = if act_mul.is_some() { 2 } else { 1 };
                self.check_width("columns", matrix.cols(), *input)?;
                self.check_width("rows", matrix.rows() / halves, *out)?;
                ensure(matrix.interleaved == act_mul.is_some(), || {
                    "tiles of gate and up alternate where their product is taken, and nowhere else".into()
                })
            }
            FusedOp::Route { .. } => self.check_route(&node.op, config),
            FusedOp::EveryMatrix { matrices, out } => self.check_width("routes", routes_width(*matrices), *out),
            FusedOp::HeadColumns { blocks, out } => self.check_columns(blocks, *out),
            FusedOp::ExpertMatMul { .. } => self.check_expert_matmul(&node.op, edges, config),
            FusedOp::ExpertSum { input, routes, out } => {
                self.check_width("input", self.width(*input), *out)?;
                self.check_width("routes", routes_width(self.values[input.0].rows_per_token), *routes)
            }
            FusedOp::ShortConv { input, form, out, .. } => {
                let channels = config.conv_channels();
                let expected = if config.delta.is_some() { ConvForm::Activated } else { ConvForm::Gated };
                ensure(*form == expected, || format!("convolutions of this model are {expected:?}"))?;
                match form {
                    // The gate of the norm may be behind them.
                    ConvForm::Activated => self.check_part("channels", channels, Columns { of: *input, first: 0 })?,
                    ConvForm::Gated => self.check_width("channels", form.input_width(channels), *input)?,
                }
                self.check_width("channels", channels, *out)
            }
            FusedOp::PreviousRow { input, out } => {
                self.check_width("row", config.hidden_size, *input)?;
                self.check_width("row", config.hidden_size, *out)
            }
            FusedOp::KeepRow { input } => self.check_width("row", config.hidden_size, *input),
            FusedOp::DeltaRule(step) => {
                let delta = config.delta.ok_or("the model has no recurrent layers")?;
                self.check_width("channels", delta.channels(), step.input)?;
                self.check_part("heads", delta.value_heads, step.decay)?;
                self.check_part("heads", delta.value_heads, step.strength)?;
                ensure(self.width(step.decay.of) == self.width(step.strength.of), || {
                    "decay and strength have one stride".into()
                })?;
                self.check_width("values", delta.value_width(), step.out)
            }
            FusedOp::GatedNorm { input, gate, form, out, .. } => {
                let width = match form {
                    GatedForm::Silu => config.delta.map_or(0, |delta| delta.value_width()),
                    GatedForm::Sum => config.per_layer_inputs.map_or(0, |inputs| inputs.width) * config.layers.len(),
                };
                self.check_part("values", width, *gate)?;
                [input, out].into_iter().try_for_each(|value| self.check_width("values", width, *value))
            }
            FusedOp::SparseActMul { gate, up, deviations, out, .. } => {
                let expected = node.layer.and_then(|layer| config.gate_deviations(layer));
                ensure(Some(*deviations) == expected, || format!("{deviations} deviations, expected {expected:?}"))?;
                [up, out].into_iter().try_for_each(|value| self.check_width("gate", self.width(*gate), *value))
            }
            FusedOp::Streams(op) => self.check_streams(op, config),
            FusedOp::Heads(step) => self.check_heads(node, step, config),
            FusedOp::Attention { query, scale, growth, sinks, out } => {
                ensure(sinks.is_some() == config.attention_sinks, || {
                    "heads have sinks where the config has them".into()
                })?;
                let width = config.n_heads * heads_of(node, config).head_dim;
                self.check_width("heads", width, *query)?;
                self.check_width("heads", config.latent.map_or(width, |latent| latent.rank), *out)?;
                self.check_scale(*query, *scale, edges, config)?;
                self.check_growth(*query, *growth, edges, config)
            }
            FusedOp::Patches { out } => {
                let vision = config.vision.as_ref().ok_or("the model has no vision tower")?;
                self.check_width("patches", vision.patch_width(), *out)?;
                self.check_rows(vision.patches_per_row(), *out)
            }
            FusedOp::LayerNorm { input, out, .. } => {
                self.check_width("layer norm", self.width(*input), *out)?;
                self.check_rows(self.values[input.0].rows_per_token, *out)
            }
            FusedOp::ImagePositions { input, out, .. } => {
                self.check_width("positions", self.width(*input), *out)?;
                self.check_rows(self.values[input.0].rows_per_token, *out)
            }
            FusedOp::ImageRope { input, n_heads, out } => {
                let vision = config.vision.as_ref().ok_or("the model has no vision tower")?;
                let width = n_heads * (vision.hidden_size / vision.heads);
                self.check_width("rotated heads", width, *out)?;
                ensure(width <= self.width(*input), || format!("{width} columns of heads"))?;
                self.check_rows(self.values[input.0].rows_per_token, *out)
            }
            FusedOp::ImageFeatures { input, first, out } => {
                let vision = config.vision.as_ref().ok_or("the model has no vision tower")?;
                self.check_width("features", self.width(*input), *out)?;
                let (end, row) = (first + self.width(*out), vision.row_width(config.hidden_size));
                ensure(end <= row, || format!("columns {first} to {end} of a row of {row}"))
            }
            FusedOp::ImageAttention { sources, out, .. } => {
                for (source, first) in sources {
                    self.check_rows(self.values[source.0].rows_per_token, *out)?;
                    let end = first + self.width(*out);
                    ensure(end <= self.width(*source), || format!("columns {first} to {end} of heads"))?;
                }
                Ok(())
            }
            FusedOp::ImagePool { input, across, side, out } => {
                self.check_width("pool", self.width(*input), *out)?;
                let vision = config.vision.as_ref().ok_or("the model has no vision tower")?;
                self.check_rows(side * side * self.values[out.0].rows_per_token, *input)?;
                let found = across * side;
                let expected = vision.patches_across();
                ensure(found == expected, || format!("{found} patches from left to right, expected {expected}"))
            }
            FusedOp::Elementwise { op: ElementwiseOp::Gate { .. }, input, second, out, .. } => {
                self.check_width("input", self.width(*input), *out)?;
                self.check_width("gate", 1, second.expect("a gate is a second input"))
            }
            FusedOp::Elementwise { op: ElementwiseOp::ActMulPart { first, .. }, input, second, out, .. } => {
                let (width, second) = (self.width(*input), self.width(second.expect("a product has a second input")));
                self.check_width("input", width, *out)?;
                ensure(first + width <= second, || format!("columns {first} to {} of {second}", first + width))
            }
            FusedOp::Elementwise { input, second, out, .. } => {
                self.check_width("input", self.width(*input), *out)?;
                second.map_or(Ok(()), |second| self.check_width("input", self.width(*input), second))
            }
        }
    }

    /// Rows of streams are as wide as the stream; a layer's are those of all streams but the first.
    fn check_streams(&self, op: &StreamsOp<VectorId>, config: &ModelConfig) -> Result<(), String> {
        let others = config.streams.as_ref().ok_or("the model has one stream")?.count - 1;
        for value in op.inputs().into_iter().chain(op.outs()) {
            self.check_width("stream", config.hidden_size, value)?;
        }
        let rows = match *op {
            StreamsOp::Combine { form: StreamsForm::End, others, .. } => vec![others],
            StreamsOp::Combine { others, out, .. } => vec![others, out],
            StreamsOp::Predict { streams: [_, before], out: [_, behind], .. }
            | StreamsOp::Correct { streams: [_, before], out: [_, behind], .. } => vec![before, behind],
            StreamsOp::Laurel { .. } => vec![],
        };
        rows.into_iter().try_for_each(|value| self.check_rows(others, value))
    }

    fn width(&self, value: ValueId) -> usize {
        self.values[value.0].width
    }

    /// Whether `value` has so many columns where `columns` begin.
    fn check_part(&self, what: &str, expected: usize, columns: Columns) -> Result<(), String> {
        let (value, found) = (&self.values[columns.of.0].name, self.width(columns.of));
        ensure(columns.first + expected <= found, || {
            format!("value {value} is {found} wide, expected {expected} from {} on ({what})", columns.first)
        })
    }

    fn check_width(&self, what: &str, expected: usize, value: ValueId) -> Result<(), String> {
        let found = self.width(value);
        ensure(found == expected, || {
            format!("value {} is {found} wide, expected {expected} ({what})", self.values[value.0].name)
        })
    }

    fn check_rows(&self, expected: usize, value: ValueId) -> Result<(), String> {
        let Value { name, rows_per_token: found, .. } = &self.values[value.0];
        ensure(*found == expected, || format!("value {name} has {found} rows for one of the step, expected {expected}"))
    }

    /// Columns are inside their values' heads, and the heads fill the result.
    fn check_columns(&self, blocks: &[ColumnsBlock], out: ValueId) -> Result<(), String> {
        let out = &self.values[out.0];
        let mut found = 0;
        for block in blocks {
            for part in &block.parts {
                let source = &self.values[part.value.0];
                let heads = if source.rows_per_token > 1 { 1 } else { block.n_heads };
                ensure(part.first + part.width <= source.width / heads, || {
                    format!("columns {} to {} of heads of {}", part.first, part.first + part.width, source.name)
                })?;
            }
            found += block.n_heads * block.parts.iter().map(|part| part.width).sum::<usize>();
        }
        ensure(found == out.width * out.rows_per_token, || format!("{found} columns of heads for {}", out.name))
    }

    /// Experts are chosen and weighted as the config has it.
    fn check_route(&self, op: &FusedOp, config: &ModelConfig) -> Result<(), String> {
        let FusedOp::Route { input, chosen, shared, scores, factor, scale, choice_bias, groups, out, .. } = op else {
            unreachable!("called for routes");
        };
        let routing = config.routing.unwrap_or_default();
        ensure((*scores == Scores::Sigmoid, *factor) == (routing.sigmoid, routing.factor), || {
            format!("experts' weights are {factor} times their {scores:?}, expected the config's {routing:?}")
        })?;
        ensure(choice_bias.is_some() == routing.choice_bias, || {
            "experts are chosen by a bias where the config has one".into()
        })?;
        ensure(*groups == config.expert_groups, || {
            format!("experts are chosen in groups {groups:?}, expected the config's {:?}", config.expert_groups)
        })?;
        ensure(scale.is_some() == config.experts_beside_mlp, || {
            "experts have a scale where the config has one".into()
        })?;
        let experts = config.experts.as_ref().map_or(0, |experts| experts.count);
        ensure(shared.count == 0 || shared.gated != config.shared_expert_ungated, || {
            "a shared expert has a gate where the config has one".into()
        })?;
        self.check_width("experts", experts + shared.logits(), *input)?;
        self.check_width("routes", routes_width(*chosen + shared.count), *out)
    }

    /// The stack has the matrices and biases of the experts that its routes name.
    fn check_expert_matmul(&self, op: &FusedOp, edges: &Edges, config: &ModelConfig) -> Result<(), String> {
        let FusedOp::ExpertMatMul { input, routes, matrix, bias, act_mul, out } = op else {
            unreachable!("called for matmuls of experts");
        };
        let routed = edges.producer[routes.0].map(|node| &self.nodes[node].op);
        let (every, shared) = match routed {
            Some(FusedOp::EveryMatrix { matrices, .. }) => (Some(*matrices), 0),
            Some(FusedOp::Route { shared, .. }) => (None, shared.count),
            _ => (None, 0),
        };
        ensure(bias.is_some() == (config.expert_bias && every.is_none()), || {
            "experts have biases where the config has them".into()
        })?;
        ensure(bias.is_none_or(|bias| self.vectors[bias.0].stack == Some(*matrix)), || {
            "biases are of the stack that they are added to".into()
        })?;
        let (matrix, out_value) = (&self.matrices[matrix.0], &self.values[out.0]);
        let halves = if act_mul.is_some() { 2 } else { 1 };
        self.check_width("columns", matrix.cols(), *input)?;
        self.check_width("rows of one expert", matrix.rows() / halves, *out)?;
        self.check_width("routes", routes_width(out_value.rows_per_token), *routes)?;
        let experts = every.or(config.experts.as_ref().map(|experts| experts.count + shared));
        ensure(matrix.experts == experts, || "the stack has a matrix of every expert".into())?;
        ensure(matrix.interleaved == act_mul.is_some(), || {
            "tiles of gate and up alternate where their product is taken, and nowhere else".into()
        })
    }

    fn check_heads(&self, node: &FusedNode, step: &HeadsStep, config: &ModelConfig) -> Result<(), String> {
        let FullHeads { n_kv_heads, head_dim, values_are_keys } = heads_of(node, config);
        ensure(values_are_keys || !step.values_are_keys, || "values are keys where the config has that".into())?;
        let n_heads: usize = step.parts.iter().map(|part| part.n_heads).sum();
        let elsewhere = if step.values_are_keys { n_kv_heads } else { 0 };
        self.check_width("heads", (n_heads - elsewhere) * head_dim, step.input)?;
        let to_output = step.parts.iter().any(|part| part.to == Destination::Output);
        ensure(step.out.is_some() == to_output, || "heads that go to an output have one".into())?;
        let expected = node.layer.and_then(|layer| config.layers[layer].rope);
        ensure(step.rope.is_none() || step.rope == expected, || {
            format!("rotary embedding is {:?}, expected {expected:?}, the layer's", step.rope)
        })?;
        for part in step.parts.iter().filter(|part| part.to != Destination::Output) {
            let scale = part.scale.get();
            ensure(scale == 1.0, || format!("{:?} are scaled by {scale}, expected 1: the query is scaled", part.to))?;
        }
        Ok(())
    }

    /// The scale is the config's, and the heads steps that make the query multiply by it, together.
    fn check_scale(&self, query: ValueId, scale: f32, edges: &Edges, config: &ModelConfig) -> Result<(), String> {
        let expected = config.query_scale;
        ensure(scale == expected, || format!("scale is {scale}, expected {expected}, the config's"))?;
        let scaled_by: f32 = self.query_parts(query, edges).iter().map(|part| part.scale.get()).product();
        ensure(scaled_by == scale, || {
            format!("query {} is scaled by {scaled_by}, expected {scale}", self.values[query.0].name)
        })
    }

    /// The growth is the config's, and one of the heads steps that make the query has it.
    fn check_growth(
        &self,
        query: ValueId,
        growth: Option<Growth>,
        edges: &Edges,
        config: &ModelConfig,
    ) -> Result<(), String> {
        let found = growth.map(|growth| (growth.beta.get(), growth.interval));
        let expected = config.query_growth.map(|growth| (growth.beta, growth.interval));
        ensure(found == expected, || format!("growth is {found:?}, expected {expected:?}, the config's"))?;
        let made: Vec<Growth> = self.query_parts(query, edges).iter().filter_map(|part| part.growth).collect();
        ensure(made == Vec::from_iter(growth), || {
            format!("query {} grows by {made:?}, expected {growth:?}", self.values[query.0].name)
        })
    }

    /// The parts of heads steps that make a query, the last step first.
    fn query_parts(&self, query: ValueId, edges: &Edges) -> Vec<HeadsPart> {
        let heads_step = |value: ValueId| match &self.nodes[edges.producer[value.0]?].op {
            FusedOp::Heads(step) => Some(step),
            _ => None,
        };
        let (mut value, mut parts) = (query, Vec::new());
        while let Some(step) = heads_step(value) {
            parts.extend(step.parts.iter().filter(|part| part.to == Destination::Output));
            value = step.input;
        }
        parts
    }
}

/// The heads of the layer that a node of attention belongs to.
fn heads_of(node: &FusedNode, config: &ModelConfig) -> FullHeads {
    config.heads_of(node.layer.expect("attention is inside a layer"))
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

impl Matrix {
    /// Rows of all parts together, for one expert.
    pub(crate) fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Columns, of which each part has the same number.
    pub(crate) fn cols(&self) -> usize {
        self.parts[0].cols
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format_policy::{FormatPolicy, WeightsOption};
    use crate::{fuse, graph};

    const POLICY: FormatPolicy = FormatPolicy { weights: WeightsOption::Int4, group: 32 };

    fn fused(config: &ModelConfig) -> FusedGraph {
        fuse::fuse(&graph::build(config), config, POLICY)
    }

    fn config() -> ModelConfig {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny/gemma3-text");
        crate::import::open_model(&folder).expect("a model of the tests").config
    }

    #[test]
    #[should_panic(expected = "attention of layer 1: query rotated.1 is scaled by 3, expected 0.")]
    fn a_query_that_is_scaled_otherwise_is_refused() {
        let config = config();
        let mut fused = fused(&config);
        let of_layer =
            fused.nodes.iter_mut().find(|node| node.layer == Some(1) && matches!(node.op, FusedOp::Heads(_)));
        let FusedOp::Heads(step) = &mut of_layer.expect("a layer has heads").op else { unreachable!("just matched") };
        step.parts[0].scale = unicorn_kernels::Number::new(3.0);
        fused.verify(&config);
    }

    #[test]
    fn attention_reads_the_heads_step_of_its_layer() {
        let fused = fused(&config());
        let n_heads_steps = fused.nodes.iter().filter(|node| matches!(node.op, FusedOp::Heads(_))).count();
        assert_eq!(n_heads_steps, config().layers.len());
    }

    #[test]
    #[should_panic(expected = "expected None, the layer's")]
    fn a_rotation_that_a_layer_does_not_have_is_refused() {
        let mut config = config();
        let fused = fused(&config);
        config.layers[0].rope = None;
        fused.verify(&config);
    }

    #[test]
    #[should_panic(expected = "heads of layer 0 that are rotated")]
    fn a_rotation_that_was_left_out_is_refused() {
        let mut config = config();
        let rope = config.layers[0].rope.take();
        let fused = fused(&config);
        config.layers[0].rope = rope;
        fused.verify(&config);
    }

    #[test]
    fn layers_without_rotation_keep_their_scale_and_heads() {
        let mut config = config();
        config.layers.iter_mut().for_each(|layer| layer.rope = None);
        for fused in [fused(&config), fuse::plain(&graph::build(&config), &config, POLICY)] {
            let fused = fused.verify(&config);
            let steps = fused.graph().nodes.iter().filter_map(|node| match &node.op {
                FusedOp::Heads(step) => Some(step),
                _ => None,
            });
            assert!(steps.flat_map(|step| &step.parts).all(|part| !part.rope));
        }
    }
}
