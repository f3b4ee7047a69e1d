//! Models with several streams of the residual (Gemma 3n): each layer works on the first and corrects the others by what it made of it.
//!
//! ```text
//! x, others   = predicted of the streams before
//! y           = (x + attention(norm(x)) + norm(x) + low rank(norm(x))) / √2      each branch after a norm
//! z           = y + MLP(norm(y))
//! x, others   = corrected by z
//! others      = others + norm(input of the layer, gated by x)
//! ```

use std::fmt::Display;

use unicorn_kernels::altup::AltUpForm;
use unicorn_kernels::route::routes_width;
use unicorn_kernels::streams::StreamsForm;

use super::{Builder, MatrixRef, Op, ValueId, VectorRef};
use crate::import::{PerLayerInputs, StreamsConfig};

/// What is done with streams. `Weights` are the vectors of an operation, one after the other. Values of streams beside the first have a row
/// of each for a row of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StreamsOp<Weights> {
    /// A row with those of the streams beside the first, see [`unicorn_kernels::streams`]; [`StreamsForm::Add`] has the weights of a norm.
    Combine { form: StreamsForm, input: ValueId, others: ValueId, weights: Option<Weights>, out: ValueId },
    /// The streams in front of a layer, see [`unicorn_kernels::altup`].
    Predict { streams: [ValueId; 2], weights: Weights, out: [ValueId; 2] },
    /// The streams behind it, and the first as the layer's last gate reads it.
    Correct { activated: ValueId, streams: [ValueId; 2], weights: Weights, out: [ValueId; 2], scaled: ValueId },
    /// See [`unicorn_kernels::laurel`].
    Laurel { stream: ValueId, attended: ValueId, laurel: ValueId, weights: Weights, out: ValueId },
}

impl<Weights> StreamsOp<Weights> {
    /// The values that it makes.
    pub(crate) fn outs(&self) -> Vec<ValueId> {
        match *self {
            StreamsOp::Combine { out, .. } | StreamsOp::Laurel { out, .. } => vec![out],
            StreamsOp::Predict { out, .. } => out.to_vec(),
            StreamsOp::Correct { out: [first, others], scaled, .. } => vec![first, others, scaled],
        }
    }

    /// The values that it reads.
    pub(crate) fn inputs(&self) -> Vec<ValueId> {
        match *self {
            StreamsOp::Combine { input, others, .. } => vec![input, others],
            StreamsOp::Predict { streams, .. } => streams.to_vec(),
            StreamsOp::Correct { activated, streams: [first, others], .. } => vec![activated, first, others],
            StreamsOp::Laurel { stream, attended, laurel, .. } => vec![stream, attended, laurel],
        }
    }

    /// Its name in the text forms of graphs.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            StreamsOp::Combine { form: StreamsForm::Begin, .. } => "begin_streams",
            StreamsOp::Combine { form: StreamsForm::Add, .. } => "add_to_streams",
            StreamsOp::Combine { form: StreamsForm::End, .. } => "end_streams",
            StreamsOp::Predict { .. } => "predict_streams",
            StreamsOp::Correct { .. } => "correct_streams",
            StreamsOp::Laurel { .. } => "laurel",
        }
    }

    pub(crate) fn weights(&self) -> Option<&Weights> {
        match self {
            StreamsOp::Combine { weights, .. } => weights.as_ref(),
            StreamsOp::Predict { weights, .. }
            | StreamsOp::Correct { weights, .. }
            | StreamsOp::Laurel { weights, .. } => Some(weights),
        }
    }

    /// The same operation with other weights.
    pub(crate) fn map<Others>(self, mut of: impl FnMut(Weights) -> Others) -> StreamsOp<Others> {
        match self {
            StreamsOp::Combine { form, input, others, weights, out } => {
                StreamsOp::Combine { form, input, others, weights: weights.map(of), out }
            }
            StreamsOp::Predict { streams, weights, out } => StreamsOp::Predict { streams, weights: of(weights), out },
            StreamsOp::Correct { activated, streams, weights, out, scaled } => {
                StreamsOp::Correct { activated, streams, weights: of(weights), out, scaled }
            }
            StreamsOp::Laurel { stream, attended, laurel, weights, out } => {
                StreamsOp::Laurel { stream, attended, laurel, weights: of(weights), out }
            }
        }
    }
}

/// Vectors as the text forms of graphs have them, with a space in front.
pub(super) fn joined(weights: &[impl Display]) -> String {
    format!(" {}", weights.iter().map(ToString::to_string).collect::<Vec<_>>().join("+"))
}

impl Builder<'_> {
    /// All layers and what is around them; `inputs` are those of the layers beside the stream.
    pub(super) fn layers_of_streams(
        &mut self,
        embedding: ValueId,
        inputs: ValueId,
        PerLayerInputs { width, .. }: PerLayerInputs,
        config: &StreamsConfig,
    ) -> ValueId {
        let (hidden, others) = (self.config.hidden_size, config.count - 1);
        let every = self.push("streams", routes_width(others), |out| Op::EveryMatrix { matrices: others, out });
        let projected = self.of_each_stream(embedding, every, "altup_projections", others);
        let combine = |form, input, others| {
            move |out| Op::Streams(StreamsOp::Combine { form, input, others, weights: None, out })
        };
        let begun = self.push_rows("others", hidden, others, combine(StreamsForm::Begin, embedding, projected));
        let mut streams = [embedding, begun];
        for layer in 0..self.config.n_decoder_layers() {
            self.layer = Some(layer);
            streams = self.layer_of_streams(streams, others, inputs, layer * width, width);
        }
        self.layer = None;
        let unembedded = self.of_each_stream(streams[1], every, "altup_unembed_projections", others);
        self.push("stream", hidden, combine(StreamsForm::End, streams[0], unembedded))
    }

    fn layer_of_streams(
        &mut self,
        streams: [ValueId; 2],
        others: usize,
        inputs: ValueId,
        first: usize,
        width: usize,
    ) -> [ValueId; 2] {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let weights = self.router(AltUpForm::Predict);
        let predicted = [self.value("predicted", hidden, 1), self.value("others_predicted", hidden, others)];
        self.node(Op::Streams(StreamsOp::Predict { streams, weights, out: predicted }));

        let stream = predicted[0];
        let normed = self.norm(stream, "input_layernorm.weight");
        let rank = config.streams.as_ref().map_or(0, |streams| streams.laurel_rank);
        let low = self.linear(normed, "laurel.linear_left", hidden, rank, false);
        let laurel = self.linear(low, "laurel.linear_right", rank, hidden, false);
        let attended = self.attention(normed);
        let norms = ["input_layernorm", "post_attention_layernorm", "laurel.post_laurel_norm"];
        let weights = norms.map(|norm| self.norm_weight(&format!("{norm}.weight"))).to_vec();
        let laurel = StreamsOp::Laurel { stream, attended, laurel, weights, out: self.value("stream", hidden, 1) };
        let stream = laurel.outs()[0];
        self.node(Op::Streams(laurel));
        let activated = self.mlp_block(stream);

        let weights = self.router(AltUpForm::Correct);
        let corrected = [self.value("corrected", hidden, 1), self.value("others_corrected", hidden, others)];
        let scaled = self.value("scaled", hidden, 1);
        self.node(Op::Streams(StreamsOp::Correct { activated, streams: predicted, weights, out: corrected, scaled }));

        let gate = self.linear(scaled, "per_layer_input_gate", hidden, width, false);
        let product = self.act_mul(gate, inputs, first);
        let input = self.linear(product, "per_layer_projection", width, hidden, false);
        let weights = Some(vec![self.norm_weight("post_per_layer_input_norm.weight")]);
        let form = StreamsForm::Add;
        let added = self.push_rows("others", hidden, others, |out| {
            Op::Streams(StreamsOp::Combine { form, input, others: corrected[1], weights, out })
        });
        [corrected[0], added]
    }

    /// The weights of a layer's router and what it chooses by, in the order of `unicorn_kernels::altup`.
    fn router(&self, form: AltUpForm) -> Vec<VectorRef> {
        // What the router reads is divided by its width.
        let norm =
            VectorRef { scale: 1.0 / self.config.hidden_size as f32, ..self.plain_vector("altup.router_norm.weight") };
        let of_form: &[&str] = match form {
            AltUpForm::Predict => &["altup.prediction_coefs.weight"],
            AltUpForm::Correct => &["altup.correction_coefs.weight", "altup.correct_output_scale"],
        };
        let others = ["altup.modality_router.weight"].iter().chain(of_form).map(|name| self.plain_vector(name));
        [norm].into_iter().chain(others).collect()
    }

    /// A row times the matrix of each stream beside the first, or the row of each.
    fn of_each_stream(&mut self, input: ValueId, routes: ValueId, name: &str, others: usize) -> ValueId {
        let hidden = self.config.hidden_size;
        let matrix =
            MatrixRef { tensor: format!("{name}.*.weight"), rows: hidden, cols: hidden, experts: Some(others) };
        self.push_rows(name, hidden, others, |out| Op::ExpertMatMul { input, routes, matrix, bias: None, out })
    }
}
