//! [`ModelGraph`]: the model as plain operations. The input of fusion, and the oracle that its result is compared with.
//!
//! In: a [`ModelConfig`]. Out: operations in the order of execution over values (activations, f32, one row a token) and
//! weights by canonical tensor name. No format, tile or address is known here.

mod image;
mod image_grid;
mod latent;
mod op;
mod predictor;
mod recurrent;
mod streams;
mod text;

use std::borrow::Cow;
use std::f32::consts::FRAC_1_SQRT_2;

use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::heads::{Growth, NormOf};
use unicorn_kernels::route::{Scores, routes_width};
use unicorn_kernels::{Activation, Number};

pub(crate) use op::Op;
pub(crate) use streams::StreamsOp;
pub(crate) use text::{columns, routing};

use crate::import::{self, ExpertsConfig, FullHeads, ModelConfig, PerLayerInputs, QkNorm};

/// Index into the values of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// An activation: `width` f32 a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) width: usize,
    /// Rows for each row of the step: 1, or one for each expert that a row is given to, or for each head.
    pub(crate) rows_per_token: usize,
}

/// Elements between rows of an activation of `width`.
pub(crate) fn stride(width: usize) -> usize {
    width.next_multiple_of(32)
}

/// A weight matrix by canonical tensor name, (rows, cols); or a stack of such, one for each expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixRef {
    /// Name of the tensor; of a stack, with `*` in place of the expert's number.
    pub tensor: String,
    /// Outputs of the matrix, or of each matrix of a stack.
    pub rows: usize,
    /// Inputs of the matrix, or of each matrix of a stack.
    pub(crate) cols: usize,
    /// Matrices of a stack; `None`: it is one matrix.
    pub(crate) experts: Option<usize>,
}

/// A vector of f32 by canonical tensor name, with the values `scale * (element + offset)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VectorRef {
    pub(crate) tensor: String,
    pub(crate) offset: f32,
    pub(crate) scale: f32,
}

/// Which half of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachePart {
    Keys,
    Values,
    /// Both, as one latent vector.
    Latent,
}

/// Consecutive heads of [`Op::HeadColumns`], made of the same columns of each value's heads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ColumnsBlock {
    pub(crate) n_heads: usize,
    pub(crate) parts: Vec<ColumnsPart>,
}

/// Columns of each head of a value: of its rows, if it has several for a row of the step, else of `n_heads` equal parts of its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ColumnsPart {
    pub(crate) value: ValueId,
    pub(crate) first: usize,
    pub(crate) width: usize,
}

/// One operation and the layer it belongs to (`None`: embedding and head).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) layer: Option<usize>,
    pub(crate) op: Op,
}

/// The whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelGraph {
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) logits: ValueId,
    /// Logits of the token behind the next one, if the model has a head for it; what makes them is behind what makes the logits.
    pub(crate) predicted: Option<ValueId>,
    /// The rows that an image becomes, if the model has a vision tower; what makes them is behind what makes the logits.
    pub(crate) image_rows: Option<ValueId>,
    /// The output head's matrix.
    pub(crate) head: MatrixRef,
    /// Elements of a head of each layer: a value that has heads has its width over this many.
    pub(crate) head_dims: Vec<usize>,
}

/// The plain graph of a decoder-only transformer.
pub fn build(config: &ModelConfig) -> ModelGraph {
    let mut builder = Builder { config, values: Vec::new(), nodes: Vec::new(), layer: None };
    let (rows, cols) = (config.vocab_size, config.hidden_size);
    let table = MatrixRef { tensor: "embed_tokens.weight".into(), rows, cols, experts: None };
    let scale = config.embedding_scale;
    let mut stream =
        builder.push("embedding", config.hidden_size, |out| Op::Embed { table: table.clone(), scale, out });
    let embedding = stream;
    let every_head = config.latent.map(|_| builder.every_head());
    let layer_inputs = config.per_layer_inputs.map(|inputs| builder.per_layer_inputs(stream, inputs));
    if let (Some(streams), Some((values, inputs))) = (&config.streams, layer_inputs.zip(config.per_layer_inputs)) {
        stream = builder.layers_of_streams(stream, values, inputs, streams);
    }
    let layers_of_one_stream = if config.streams.is_some() { 0 } else { config.n_decoder_layers() };
    for layer in 0..layers_of_one_stream {
        builder.layer = Some(layer);
        stream = match config.layers[layer].is_recurrent {
            true if config.short_conv_taps.is_some() => builder.conv_block(stream),
            true => builder.delta_block(stream),
            false => match (config.latent, every_head) {
                (Some(latent), Some(every_head)) => builder.latent_block(stream, latent, every_head),
                _ => builder.attention_block(stream),
            },
        };
        stream = builder.mlp_block(stream);
        if let (Some(inputs), Some(PerLayerInputs { width, .. })) = (layer_inputs, config.per_layer_inputs) {
            stream = builder.input_block(stream, inputs, layer * width, width);
        }
        if config.layer_scalars {
            let (input, factor) = (stream, builder.plain_vector("layer_scalar"));
            stream = builder.push("scaled", config.hidden_size, |out| Op::Scale { input, factor, out });
        }
    }
    builder.layer = None;
    // What scales the logits scales the last norm as well, and its weights are f32.
    let normed = builder.scaled_norm(stream, "norm.weight", config.logits_scale);
    let head = if config.tied_embeddings { table } else { MatrixRef { tensor: "lm_head.weight".into(), ..table } };
    let mut logits =
        builder.push("logits", config.vocab_size, |out| Op::MatMul { input: normed, matrix: head.clone(), out });
    if let Some(cap) = config.final_softcap {
        let input = logits;
        logits = builder.push("capped", config.vocab_size, |out| Op::SoftCap { input, cap, out });
    }
    let predicted = config.predictor_layer().map(|layer| builder.predicted(embedding, normed, layer, &head));
    let head_dims = (0..config.layers.len()).map(|layer| config.heads_of(layer).head_dim).collect();
    let image_rows = config.vision.as_ref().map(|vision| match &vision.grid {
        Some(grid) => builder.grid_rows(vision, grid),
        None => builder.image_rows(vision),
    });
    ModelGraph { values: builder.values, nodes: builder.nodes, logits, predicted, image_rows, head, head_dims }
}

struct Builder<'a> {
    config: &'a ModelConfig,
    values: Vec<Value>,
    nodes: Vec<Node>,
    layer: Option<usize>,
}

impl Builder<'_> {
    fn attention_block(&mut self, stream: ValueId) -> ValueId {
        let normed = if self.config.pre_norms { self.norm(stream, "input_layernorm.weight") } else { stream };
        let out = self.attention(normed);
        self.add_to_stream(stream, out, "post_attention_layernorm.weight")
    }

    /// Attention of the layer's kind, from its input after a norm to its output projection.
    fn attention(&mut self, normed: ValueId) -> ValueId {
        let config = self.config;
        let layer = &config.layers[self.layer.expect("inside a layer")];
        let FullHeads { n_kv_heads, head_dim, values_are_keys } = config.heads_of(self.layer.expect("inside a layer"));
        let q = self.projection(normed, "q", config.n_heads * head_dim);
        let keys_and_values = config.has_own_cache(self.layer.expect("inside a layer")).then(|| {
            let k = self.projection(normed, "k", n_kv_heads * head_dim);
            (k, if values_are_keys { k } else { self.projection(normed, "v", n_kv_heads * head_dim) })
        });
        let q = self.projection_norm(q, "q");
        let keys_and_values = keys_and_values.map(|(k, v)| (self.projection_norm(k, "k"), v));
        let q = self.head_norm(q, NormOf::Query);
        let keys_and_values =
            keys_and_values.map(|(k, v)| (self.head_norm(k, NormOf::Key), self.head_norm(v, NormOf::Value)));
        let q = self.rope(q, layer.rope);
        if let Some((k, v)) = keys_and_values {
            let k = self.rope(k, layer.rope);
            self.node(Op::CacheWrite { input: k, part: CachePart::Keys });
            self.node(Op::CacheWrite { input: v, part: CachePart::Values });
        }
        let (width, scale) = (config.n_heads * head_dim, config.query_scale);
        let growth = |growth: import::QueryGrowth| Growth { beta: Number::new(growth.beta), interval: growth.interval };
        let growth = config.query_growth.map(growth);
        let sinks = config.attention_sinks.then(|| self.plain_vector("self_attn.sinks"));
        let mut mixed = self.push("attention", width, |out| Op::Attention { query: q, scale, growth, sinks, out });
        if config.attention_gate {
            let gate = self.projection(normed, "gate", width);
            mixed = self.push("gated", width, |out| Op::Gate { input: mixed, gate, out });
        }
        self.linear(mixed, "self_attn.o_proj", width, config.hidden_size, config.o_bias)
    }

    fn mlp_block(&mut self, stream: ValueId) -> ValueId {
        let config = self.config;
        let layer = self.layer.expect("inside a layer");
        let (hidden, inner) = (config.hidden_size, config.mlp_width(layer));
        // Two norms a layer are named after what precedes them; four, after their place.
        let norm =
            if config.post_norms { "pre_feedforward_layernorm.weight" } else { "post_attention_layernorm.weight" };
        let normed = if config.pre_norms { self.norm(stream, norm) } else { stream };
        let layer = &config.layers[layer];
        let out = match &config.experts {
            Some(experts) if layer.has_experts && config.experts_beside_mlp => {
                let dense = self.feed_forward(normed, "mlp", hidden, inner, config.mlp_bias);
                self.experts_beside(stream, dense, experts)
            }
            Some(experts) if layer.has_experts => {
                let routes = self.routes(normed, experts, None);
                self.experts(normed, routes, experts)
            }
            _ => self.feed_forward(normed, "mlp", hidden, inner, config.mlp_bias),
        };
        let out = self.with_image_features(out);
        self.add_to_stream(stream, out, "post_feedforward_layernorm.weight")
    }

    fn feed_forward(&mut self, input: ValueId, block: &str, hidden: usize, inner: usize, bias: bool) -> ValueId {
        let gate = self.linear(input, &format!("{block}.gate_proj"), hidden, inner, bias);
        let up = self.linear(input, &format!("{block}.up_proj"), hidden, inner, bias);
        let product = match self.layer.and_then(|layer| self.config.gate_deviations(layer)) {
            Some(deviations) => {
                let activation = self.activation();
                self.push("product", inner, |out| Op::SparseActMul { gate, up, activation, deviations, out })
            }
            None => self.act_mul(gate, up, 0),
        };
        self.linear(product, &format!("{block}.down_proj"), inner, hidden, bias)
    }

    fn activation(&self) -> Activation {
        match self.config.activation {
            import::Activation::Silu => Activation::Silu,
            import::Activation::GeluTanh => Activation::GeluTanh,
            import::Activation::ClampedSwiGlu => Activation::ClampedSwiGlu,
        }
    }

    fn act_mul(&mut self, gate: ValueId, up: ValueId, up_column: usize) -> ValueId {
        let activation = self.activation();
        let Value { width, rows_per_token, .. } = self.values[gate.0];
        self.push_rows("product", width, rows_per_token, |out| Op::ActMul { gate, up, up_column, activation, out })
    }

    /// The inputs of all layers, one after the other: a row of their embedding plus a projection of the stream after a norm, both
    /// divided by the square root of two.
    fn per_layer_inputs(&mut self, stream: ValueId, inputs: PerLayerInputs) -> ValueId {
        let PerLayerInputs { vocab_size: rows, width } = inputs;
        let cols = self.config.layers.len() * width;
        let table = MatrixRef { tensor: "embed_tokens_per_layer.weight".into(), rows, cols, experts: None };
        let scale = (width as f32).sqrt() * FRAC_1_SQRT_2;
        let tokens = self.push("layer_tokens", cols, |out| Op::Embed { table, scale, out });
        // Its factor of one over the root of its columns has no effect before the norm, but for epsilon.
        let projected = self.linear(stream, "per_layer_model_projection", self.config.hidden_size, cols, false);
        let weight = VectorRef { scale: FRAC_1_SQRT_2, ..self.plain_vector("per_layer_projection_norm.weight") };
        let form = GatedForm::Sum;
        self.push("layer_inputs", cols, |out| Op::GatedNorm { input: projected, gate: tokens, weight, form, out })
    }

    /// A gate of the stream times the layer's input, projected back; `first` is its first column in the inputs of all layers.
    fn input_block(&mut self, stream: ValueId, inputs: ValueId, first: usize, width: usize) -> ValueId {
        let hidden = self.config.hidden_size;
        let gate = self.linear(stream, "per_layer_input_gate", hidden, width, false);
        let product = self.act_mul(gate, inputs, first);
        let out = self.linear(product, "per_layer_projection", width, hidden, false);
        self.add_to_stream(stream, out, "post_per_layer_input_norm.weight")
    }

    /// The sum of what the MLP and a mixture of experts make of the stream, each after a norm of its own.
    fn experts_beside(&mut self, stream: ValueId, dense: ValueId, experts: &ExpertsConfig) -> ValueId {
        let hidden = self.config.hidden_size;
        let dense = self.norm(dense, "post_feedforward_layernorm_1.weight");
        let weight = VectorRef { scale: (hidden as f32).powf(-0.5), ..self.plain_vector("router.scale") };
        let routed = self.push("routed", hidden, |out| Op::Norm { input: stream, weight, out });
        let scale = self.plain_vector("router.per_expert_scale");
        let routes = self.routes(routed, experts, Some(scale));
        let normed = self.norm(stream, "pre_feedforward_layernorm_2.weight");
        let mixed = self.experts(normed, routes, experts);
        let mixed = self.norm(mixed, "post_feedforward_layernorm_2.weight");
        self.push("mixed", hidden, |out| Op::Add { left: dense, right: mixed, out })
    }

    /// Which experts each row is given to.
    fn routes(&mut self, input: ValueId, experts: &ExpertsConfig, scale: Option<VectorRef>) -> ValueId {
        let ExpertsConfig { count, chosen, normalized, .. } = *experts;
        let logits = self.linear(input, "mlp.gate", self.config.hidden_size, count, self.config.expert_bias);
        let routing = self.config.routing.unwrap_or_default();
        let choice_bias = routing.choice_bias.then(|| self.plain_vector("mlp.gate.choice_bias"));
        self.push("routes", routes_width(chosen), |out| Op::Route {
            input: logits,
            chosen,
            scores: if routing.sigmoid { Scores::Sigmoid } else { Scores::Softmax },
            normalized,
            factor: routing.factor,
            scale,
            choice_bias,
            groups: self.config.expert_groups,
            out,
        })
    }

    /// A mixture of experts and, if there is one, the shared expert that every row is given to.
    fn experts(&mut self, input: ValueId, routes: ValueId, experts: &ExpertsConfig) -> ValueId {
        let hidden = self.config.hidden_size;
        let ExpertsConfig { count, chosen, intermediate_size: inner, .. } = *experts;
        let has_bias = self.config.expert_bias;
        let stack = |builder: &mut Self, input, name: &str, rows, cols| {
            let tensor = builder.tensor(&format!("mlp.experts.*.{name}.weight"));
            let matrix = MatrixRef { tensor, rows, cols, experts: Some(count) };
            let bias = has_bias.then(|| builder.plain_vector(&format!("mlp.experts.*.{name}.bias")));
            builder.push_rows(name, rows, chosen, |out| Op::ExpertMatMul { input, routes, matrix, bias, out })
        };
        let gate = stack(self, input, "gate_proj", inner, hidden);
        let up = stack(self, input, "up_proj", inner, hidden);
        let product = self.act_mul(gate, up, 0);
        let down = stack(self, product, "down_proj", hidden, inner);
        let mixed = self.push("experts", hidden, |out| Op::ExpertSum { input: down, routes, out });
        let Some(inner) = experts.shared_intermediate_size else { return mixed };
        let shared = self.feed_forward(input, "mlp.shared_expert", hidden, inner, false);
        let gated = if self.config.shared_expert_ungated {
            shared
        } else {
            let gate = self.linear(input, "mlp.shared_expert_gate", hidden, 1, false);
            self.push("gated", hidden, |out| Op::Gate { input: shared, gate, out })
        };
        self.push("mixed", hidden, |out| Op::Add { left: mixed, right: gated, out })
    }

    fn add_to_stream(&mut self, stream: ValueId, block: ValueId, post_norm: &str) -> ValueId {
        let right = if self.config.post_norms { self.norm(block, post_norm) } else { block };
        self.push("stream", self.config.hidden_size, |out| Op::Add { left: stream, right, out })
    }

    fn projection(&mut self, input: ValueId, which: &str, width: usize) -> ValueId {
        let config = self.config;
        let name = format!("self_attn.{which}_proj");
        self.linear(input, &name, config.hidden_size, width, config.qkv_bias)
    }

    fn linear(&mut self, input: ValueId, name: &str, cols: usize, rows: usize, bias: bool) -> ValueId {
        let matrix = MatrixRef { tensor: self.tensor(&format!("{name}.weight")), rows, cols, experts: None };
        let short = name.rsplit_once('.').map_or(name, |(_, last)| last);
        let product = self.push(short, rows, |out| Op::MatMul { input, matrix, out });
        if !bias {
            return product;
        }
        let bias = self.plain_vector(&format!("{name}.bias"));
        self.push(&format!("{short}_biased"), rows, |out| Op::Bias { input: product, bias, out })
    }

    fn norm(&mut self, input: ValueId, tensor: &str) -> ValueId {
        self.scaled_norm(input, tensor, 1.0)
    }

    fn scaled_norm(&mut self, input: ValueId, tensor: &str, scale: f32) -> ValueId {
        let weight = VectorRef { scale, ..self.norm_weight(tensor) };
        self.push("normed", self.config.hidden_size, |out| Op::Norm { input, weight, out })
    }

    /// The norm over all heads of a query or key together.
    fn projection_norm(&mut self, input: ValueId, letter: &str) -> ValueId {
        if self.config.qk_norm != QkNorm::Projection {
            return input;
        }
        let weight = self.norm_weight(&format!("self_attn.{letter}_norm.weight"));
        self.push(&format!("{letter}_normed"), self.width(input), |out| Op::Norm { input, weight, out })
    }

    fn head_norm(&mut self, input: ValueId, of: NormOf) -> ValueId {
        let (letter, is_normed) = match of {
            NormOf::Query => ("q", self.config.qk_norm == QkNorm::Heads),
            NormOf::Key => ("k", self.config.qk_norm == QkNorm::Heads),
            NormOf::Value => ("v", self.config.value_norm),
        };
        if !is_normed {
            return input;
        }
        let weight = (of != NormOf::Value).then(|| self.norm_weight(&format!("self_attn.{letter}_norm.weight")));
        let width = self.width(input);
        self.push(&format!("{letter}_normed"), width, |out| Op::HeadNorm { input, of, weight, out })
    }

    fn norm_weight(&self, tensor: &str) -> VectorRef {
        VectorRef { tensor: self.tensor(tensor), offset: self.config.norm_offset, scale: 1.0 }
    }

    /// A vector without offset and scale.
    fn plain_vector(&self, name: &str) -> VectorRef {
        VectorRef { tensor: self.tensor(name), offset: 0.0, scale: 1.0 }
    }

    fn rope(&mut self, input: ValueId, rope: Option<usize>) -> ValueId {
        let Some(rope) = rope else { return input };
        self.push("rotated", self.width(input), |out| Op::Rope { input, rope, out })
    }

    fn width(&self, value: ValueId) -> usize {
        self.values[value.0].width
    }

    fn tensor(&self, name: &str) -> String {
        self.layer.map_or(name.to_owned(), |layer| format!("layers.{layer}.{name}"))
    }

    fn push(&mut self, name: &str, width: usize, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        self.push_rows(name, width, 1, op)
    }

    fn push_rows(
        &mut self,
        name: &str,
        width: usize,
        rows_per_token: usize,
        op: impl FnOnce(ValueId) -> Op,
    ) -> ValueId {
        let id = self.value(name, width, rows_per_token);
        self.node(op(id));
        id
    }

    /// A value that a later node makes.
    fn value(&mut self, name: &str, width: usize, rows_per_token: usize) -> ValueId {
        let id = ValueId(self.values.len());
        let name = self.layer.map_or(name.to_owned(), |layer| format!("{name}.{layer}"));
        self.values.push(Value { name, width, rows_per_token });
        id
    }

    fn node(&mut self, op: Op) {
        self.nodes.push(Node { layer: self.layer, op });
    }
}

/// The values that heads are made of, in order, each once.
pub(crate) fn column_sources(blocks: &[ColumnsBlock]) -> Vec<ValueId> {
    let mut sources = Vec::new();
    for part in blocks.iter().flat_map(|block| &block.parts) {
        if !sources.contains(&part.value) {
            sources.push(part.value);
        }
    }
    sources
}

impl MatrixRef {
    /// The tensor of one expert; the matrix's own if it is not a stack.
    pub(crate) fn tensor_of(&self, expert: usize) -> Cow<'_, str> {
        match self.experts {
            Some(_) => self.tensor.replace('*', &expert.to_string()).into(),
            None => self.tensor.as_str().into(),
        }
    }

    /// The tensors of all experts, in order.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = Cow<'_, str>> {
        (0..self.experts.unwrap_or(1)).map(|expert| self.tensor_of(expert))
    }
}

impl VectorRef {
    /// The tensor of one expert; the vector's own if it does not belong to a stack.
    pub(crate) fn tensor_of(&self, expert: usize) -> String {
        self.tensor.replace('*', &expert.to_string())
    }
}
