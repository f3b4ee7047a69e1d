//! Mean square of each matrix's input, by column (an importance matrix), estimated from the weights alone: what the INT4 search
//! weighs its errors with, where another compiler would run the model over calibration text.
//!
//! Mean and variance of every channel are carried through the plain graph, under assumptions that hold roughly:
//!
//! ```text
//! tokens       Zipf's law over token ids, which tokenizers give out by frequency: probability ∝ 1 / (id + 50)
//! norm         divides by the root of the mean second moment, as if that were the same for every token
//! matrix       channels of its input are independent: mean W·μ, variance W²·σ² (squares by element)
//! attention    the mean of a few independent values; which ones is unknown, so queries and keys do not matter
//! act_mul      gate and up are normal with the covariance that their common input gives them
//! residual     what is added is independent of the stream
//! ```
//!
//! Each weight is read once (those of gate and up twice). Sums run in a fixed order, whatever the number of threads.

use std::collections::BTreeMap;
use std::ops::Range;

use rayon::prelude::*;
use unicorn_kernels::Activation;
use unicorn_kernels::heads::NormOf;
use unicorn_kernels::short_conv::ConvForm;

use crate::error::Result;
use crate::graph::{CachePart, MatrixRef, ModelGraph, Node, Op, ValueId, VectorRef};
use crate::import::{Checkpoint, Tensor};

/// Importance of each column's squared error by canonical tensor name, in no unit. A matrix without one has columns of equal
/// importance: embedding and head, and those whose input is estimated as zero or beyond f32.
#[derive(Debug, Default, PartialEq)]
pub struct Importance {
    columns: BTreeMap<String, Vec<f32>>,
    /// By gate.
    product_bounds: BTreeMap<String, f64>,
}

impl Importance {
    /// Estimates all matrices inside layers; `advance` is called once for each node of `graph`, and ends it by an error.
    pub fn estimate(
        graph: &ModelGraph,
        checkpoint: &Checkpoint,
        mut advance: impl FnMut() -> Result<()>,
    ) -> Result<Importance> {
        let mut walk =
            Walk { graph, checkpoint, moments: BTreeMap::new(), values: None, importance: Importance::default() };
        for node in &graph.nodes {
            if node.layer.is_some() || matches!(node.op, Op::Embed { .. }) {
                walk.step(node);
            }
            advance()?;
        }
        Ok(walk.importance)
    }

    /// (cols) of the matrix `tensor`, each finite and above 0.
    pub fn of(&self, tensor: &str) -> Option<&[f32]> {
        self.columns.get(tensor).map(Vec::as_slice)
    }

    /// Upper bound of the products of this gate and its up if their input comes from a norm, by the Cauchy-Schwarz inequality: such
    /// a row has the length √width, weighted by channel, and an activation is at most its input.
    pub fn product_bound(&self, gate: &str) -> Option<f64> {
        self.product_bounds.get(gate).copied()
    }
}

/// Added to a token's id in Zipf's law: the most frequent tokens are less frequent than in that law.
const ZIPF_OFFSET: f64 = 50.0;
/// Tokens that attention takes its mean over, in effect.
const ATTENDED_TOKENS: f64 = 4.0;
/// Lower bound of a column's mean square, as a share of the mean, because a channel that is estimated as zero may still carry values.
const MIN_SHARE: f64 = 1e-3;
/// Exponent of the estimates, between 0 (all columns are equal) and 1 (as if they were measured).
const IMPORTANCE_EXPONENT: f64 = 0.75;
/// Rows that one task reads, and tasks between which pages are released.
const BLOCK_ROWS: usize = 256;
const BLOCKS_AT_A_TIME: usize = 16;

/// The moments of each channel of an activation.
type Moments = Vec<Moment>;

#[derive(Clone, Copy, Default)]
struct Moment {
    mean: f64,
    variance: f64,
}

impl Moment {
    fn mean_square(self) -> f64 {
        self.mean * self.mean + self.variance
    }

    /// Mean and variance of the product with an independent value.
    fn times(self, other: Moment) -> Moment {
        let mean = self.mean * other.mean;
        Moment { mean, variance: self.mean_square() * other.mean_square() - mean * mean }
    }
}

/// Sums over the channels of a row of gate and a row of up.
#[derive(Clone, Copy, Default)]
struct Products {
    covariance: f64,
    /// Sum of the row's squares, channels weighted as by the norm before.
    gate_square: f64,
    up_square: f64,
}

/// The graph's nodes in order, with what is known so far.
struct Walk<'a> {
    graph: &'a ModelGraph,
    checkpoint: &'a Checkpoint,
    moments: BTreeMap<ValueId, Moments>,
    /// The values over which the layer's attention takes means.
    values: Option<ValueId>,
    importance: Importance,
}

impl Walk<'_> {
    fn step(&mut self, node: &Node) {
        let op = &node.op;
        let head_dim = || self.graph.head_dims[node.layer.expect("heads are inside a layer")];
        let moments = match op {
            Op::Embed { table, scale, .. } => of_embedding(self.tensor(table), f64::from(*scale)),
            Op::Norm { input, weight, .. } => self.norm(*input, weight),
            Op::MatMul { input, matrix, .. } => self.matmul(*input, matrix),
            Op::Bias { input, bias, .. } => {
                let added = self.vector(bias);
                let biased = self.moments[input].iter().zip(added);
                biased.map(|(moment, bias)| Moment { mean: moment.mean + bias, ..*moment }).collect()
            }
            Op::CacheWrite { input, part } => {
                if *part == CachePart::Values {
                    self.values = Some(*input);
                }
                return;
            }
            Op::Attention { .. } => self.attention(head_dim()),
            Op::Add { left, right, .. } => {
                let both = self.moments[left].iter().zip(&self.moments[right]);
                let sum =
                    |(a, b): (&Moment, &Moment)| Moment { mean: a.mean + b.mean, variance: a.variance + b.variance };
                both.map(sum).collect()
            }
            Op::ActMul { gate, up, activation, .. } => self.act_mul(*gate, *up, *activation),
            Op::HeadNorm { input, of: NormOf::Value, .. } => self.value_norm(*input, head_dim()),
            Op::Scale { input, factor, .. } => {
                let factor = self.vector(factor).next().expect("a factor is one number");
                let scaled = |moment: &Moment| Moment {
                    mean: moment.mean * factor,
                    variance: moment.variance * factor * factor,
                };
                self.moments[input].iter().map(scaled).collect()
            }
            // Queries and keys only choose among values; soft caps come after the last matrix.
            Op::HeadNorm { .. } | Op::Rope { .. } | Op::SoftCap { .. } | Op::Route { .. } => return,
            Op::ExpertMatMul { input, matrix, bias, .. } => self.expert_matmul(*input, matrix, bias.as_ref()),
            Op::ExpertSum { input, out, .. } => self.expert_sum(*input, *out),
            Op::ShortConv { input, taps, form, .. } => self.short_conv(*input, taps, *form),
            Op::DeltaRule { input, out, .. } => self.delta_rule(*input, *out),
            Op::GatedNorm { input, gate, weight, .. } => self.gated_norm(*input, *gate, weight),
            // A gate is somewhere between 0 and 1, and for a row's channels the same, or independent of them.
            Op::Gate { input, .. } => {
                let halved = |moment: &Moment| Moment { mean: moment.mean / 2.0, variance: moment.variance / 4.0 };
                self.moments[input].iter().map(halved).collect()
            }
        };
        self.moments.insert(op.out().expect("what has moments has a value"), moments);
    }

    fn norm(&self, input: ValueId, weight: &VectorRef) -> Moments {
        let input = &self.moments[&input];
        let power = input.iter().map(|moment| moment.mean_square()).sum::<f64>() / input.len() as f64;
        let factor = 1.0 / (power + f64::from(self.checkpoint.config.rms_norm_eps)).sqrt();
        let scaled = input.iter().zip(self.vector(weight)).map(|(moment, weight)| {
            let scale = weight * factor;
            Moment { mean: moment.mean * scale, variance: moment.variance * scale * scale }
        });
        scaled.collect()
    }

    /// Each head divided by the root of its mean second moment.
    fn value_norm(&self, input: ValueId, head_dim: usize) -> Moments {
        let heads = self.moments[&input].chunks_exact(head_dim);
        let normed = heads.flat_map(|head| {
            let power = head.iter().map(|moment| moment.mean_square()).sum::<f64>() / head.len() as f64;
            let factor = 1.0 / (power + f64::from(self.checkpoint.config.rms_norm_eps)).sqrt();
            head.iter()
                .map(move |moment| Moment { mean: moment.mean * factor, variance: moment.variance * factor * factor })
        });
        normed.collect()
    }

    /// The inputs of one channel are independent and have one distribution, and so do its gates.
    fn short_conv(&self, input: ValueId, taps: &VectorRef, form: ConvForm) -> Moments {
        let (inputs, taps) = (&self.moments[&input], self.vector(taps).collect::<Vec<f64>>());
        let channels = inputs.len() / form.input_width(1);
        let convolved = |moment: Moment, channel: usize| {
            let taps = &taps[channel * (taps.len() / channels)..][..taps.len() / channels];
            Moment {
                mean: moment.mean * taps.iter().sum::<f64>(),
                variance: moment.variance * taps.iter().map(|tap| tap * tap).sum::<f64>(),
            }
        };
        let channel = |channel: usize| match form {
            ConvForm::Activated => {
                let sum = convolved(inputs[channel], channel);
                activated(sum, Moment { mean: 1.0, variance: 0.0 }, 0.0, Activation::Silu)
            }
            ConvForm::Gated => {
                let [before, after, convolved_input] = [0, 1, 2].map(|block| inputs[block * channels + channel]);
                convolved(before.times(convolved_input), channel).times(after)
            }
        };
        (0..channels).map(channel).collect()
    }

    /// A mean of values, as in attention. In the input, they follow queries and keys.
    fn delta_rule(&self, input: ValueId, out: ValueId) -> Moments {
        let (inputs, width) = (&self.moments[&input], self.graph.values[out.0].width);
        let values = inputs[inputs.len() - width..].iter();
        values.map(|value| Moment { variance: value.variance / ATTENDED_TOKENS, ..*value }).collect()
    }

    /// Each head divided by the root of its mean second moment.
    fn gated_norm(&self, input: ValueId, gate: ValueId, weight: &VectorRef) -> Moments {
        let weights: Vec<f64> = self.vector(weight).collect();
        let heads =
            self.moments[&input].chunks_exact(weights.len()).zip(self.moments[&gate].chunks_exact(weights.len()));
        let normed = heads.flat_map(|(head, gates)| {
            let power = head.iter().map(|moment| moment.mean_square()).sum::<f64>() / head.len() as f64;
            let factor = 1.0 / (power + f64::from(self.checkpoint.config.rms_norm_eps)).sqrt();
            head.iter().zip(gates).zip(&weights).map(move |((moment, gate), weight)| {
                let scale = weight * factor;
                let normed = Moment { mean: moment.mean * scale, variance: moment.variance * scale * scale };
                activated(*gate, normed, 0.0, Activation::Silu)
            })
        });
        normed.collect()
    }

    /// Records the importance of the matrix's columns and returns the moments of its output.
    fn matmul(&mut self, input: ValueId, matrix: &MatrixRef) -> Moments {
        let input = &self.moments[&input];
        if let Some(columns) = column_importance(input) {
            self.importance.columns.insert(matrix.tensor.clone(), columns);
        }
        by_row([self.tensor(matrix)], |[row]| product(row, input))
    }

    /// The same for a stack: the moments of one expert after the other. Experts share the input of their first matrix; the output
    /// of each is the input of its own next matrix.
    fn expert_matmul(&mut self, input: ValueId, matrix: &MatrixRef, bias: Option<&VectorRef>) -> Moments {
        let all = &self.moments[&input];
        let mut products = Vec::new();
        for (expert, tensor) in matrix.tensors().enumerate() {
            let own = if all.len() == matrix.cols { &all[..] } else { &all[expert * matrix.cols..][..matrix.cols] };
            if let Some(columns) = column_importance(own) {
                self.importance.columns.insert(tensor.to_string(), columns);
            }
            let first = products.len();
            products.extend(by_row([&self.checkpoint.tensors[&*tensor]], |[row]| product(row, own)));
            let biases = bias.map(|bias| VectorRef { tensor: bias.tensor_of(expert), ..bias.clone() });
            for (product, bias) in products[first..].iter_mut().zip(biases.iter().flat_map(|one| self.vector(one))) {
                product.mean += bias;
            }
        }
        products
    }

    /// Assumes that each expert is chosen equally often and that those of a row have equal weights.
    fn expert_sum(&self, input: ValueId, out: ValueId) -> Moments {
        let (all, width) = (&self.moments[&input], self.graph.values[out.0].width);
        let chosen = self.graph.values[input.0].rows_per_token as f64;
        let channel = |column: usize| {
            let count = (all.len() / width) as f64;
            let of_experts = || all.iter().skip(column).step_by(width);
            let mean = of_experts().map(|moment| moment.mean).sum::<f64>() / count;
            let mean_square = of_experts().map(|moment| moment.mean_square()).sum::<f64>() / count;
            Moment { mean, variance: (mean_square - mean * mean).max(0.0) / chosen }
        };
        (0..width).map(channel).collect()
    }

    /// For each query head, a mean over the values of its KV head, which are independent and have one distribution.
    fn attention(&self, head_dim: usize) -> Moments {
        let n_heads = self.checkpoint.config.n_heads;
        let values = &self.moments[&self.values.expect("attention follows its cache writes")];
        let n_kv_heads = values.len() / head_dim;
        let heads = (0..n_heads).flat_map(|head| {
            let first = head / (n_heads / n_kv_heads) * head_dim;
            &values[first..first + head_dim]
        });
        heads.map(|value| Moment { variance: value.variance / ATTENDED_TOKENS, ..*value }).collect()
    }

    fn act_mul(&mut self, gate: ValueId, up: ValueId, activation: Activation) -> Moments {
        let ((gate_matrix, input), (up_matrix, _)) = (self.matrix_of(gate), self.matrix_of(up));
        let (gate_matrix, up_matrix) = (gate_matrix.clone(), up_matrix.clone());
        let moments = &self.moments[&input];
        let norm = self.norm_of(input);
        let weights = norm.clone().unwrap_or_else(|| vec![1.0; moments.len()]);
        let together = |[gate_row, up_row]: [&[f32]; 2]| {
            let mut sums = Products::default();
            for (((gate, up), moment), weight) in gate_row.iter().zip(up_row).zip(moments).zip(&weights) {
                let (gate, up) = (f64::from(*gate), f64::from(*up));
                sums.covariance += gate * up * moment.variance;
                sums.gate_square += (gate * weight).powi(2);
                sums.up_square += (up * weight).powi(2);
            }
            sums
        };
        let tensors = gate_matrix.tensors().zip(up_matrix.tensors());
        let products: Vec<Products> = tensors
            .flat_map(|(gate, up)| by_row([&gate, &up].map(|name| &self.checkpoint.tensors[&**name]), together))
            .collect();
        if norm.is_some() && gate_matrix.experts.is_none() {
            let largest = |of: fn(&Products) -> f64| products.iter().map(of).fold(0.0, f64::max).sqrt();
            let bound = weights.len() as f64 * largest(|sums| sums.gate_square) * largest(|sums| sums.up_square);
            self.importance.product_bounds.insert(gate_matrix.tensor.clone(), bound);
        }
        let covariances = products.iter().map(|sums| sums.covariance);
        let channels = self.moments[&gate].iter().zip(&self.moments[&up]).zip(covariances);
        channels.map(|((gate, up), covariance)| activated(*gate, *up, covariance, activation)).collect()
    }

    /// The weights of the norm that made `value`, if one did.
    fn norm_of(&self, value: ValueId) -> Option<Vec<f64>> {
        match self.producer_of(value) {
            Op::Norm { weight, .. } => Some(self.vector(weight).collect()),
            _ => None,
        }
    }

    /// The matrix that made `value`, before a bias, and its input.
    fn matrix_of(&self, value: ValueId) -> (&MatrixRef, ValueId) {
        match self.producer_of(value) {
            Op::MatMul { input, matrix, .. } | Op::ExpertMatMul { input, matrix, .. } => (matrix, *input),
            Op::Bias { input, .. } => self.matrix_of(*input),
            other => panic!("gate and up come from matrices, found {other:?}"),
        }
    }

    fn producer_of(&self, value: ValueId) -> &Op {
        let producer = self.graph.nodes.iter().find(|node| node.op.out() == Some(value));
        &producer.expect("every value has a producer").op
    }

    fn tensor(&self, matrix: &MatrixRef) -> &Tensor {
        &self.checkpoint.tensors[&matrix.tensor]
    }

    fn vector(&self, vector: &VectorRef) -> impl Iterator<Item = f64> {
        let tensor = &self.checkpoint.tensors[&vector.tensor];
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        tensor.read_rows(0..tensor.rows, &mut values);
        let (offset, scale) = (vector.offset, vector.scale);
        values.into_iter().map(move |value| f64::from(scale * (value + offset)))
    }
}

/// Mean and variance of the dot product of a weight row and such an input.
fn product(row: &[f32], input: &[Moment]) -> Moment {
    let mut product = Moment::default();
    for (weight, moment) in row.iter().zip(input) {
        let weight = f64::from(*weight);
        product.mean += weight * moment.mean;
        product.variance += weight * weight * moment.variance;
    }
    product
}

fn column_importance(input: &[Moment]) -> Option<Vec<f32>> {
    let mean = input.iter().map(|moment| moment.mean_square()).sum::<f64>() / input.len() as f64;
    let share = |moment: &Moment| (moment.mean_square() / mean).max(MIN_SHARE).powf(IMPORTANCE_EXPONENT) as f32;
    (mean.is_finite() && mean > 0.0).then(|| input.iter().map(share).collect())
}

fn of_embedding(table: &Tensor, scale: f64) -> Moments {
    let cols = table.cols;
    let sums = by_block([table], |tokens, [values]| {
        let mut sums = vec![Moment::default(); cols];
        for (token, row) in tokens.zip(values.chunks_exact(cols)) {
            let probability = 1.0 / (token as f64 + ZIPF_OFFSET);
            for (sum, value) in sums.iter_mut().zip(row) {
                let value = f64::from(*value);
                sum.mean += probability * value;
                sum.variance += probability * value * value;
            }
        }
        sums
    });
    let total = (0..table.rows).map(|token| 1.0 / (token as f64 + ZIPF_OFFSET)).sum::<f64>();
    let channel = |column: usize| {
        let sum = |of: fn(&Moment) -> f64| sums.iter().map(|block| of(&block[column])).sum::<f64>() / total;
        let (mean, mean_square) = (scale * sum(|sum| sum.mean), scale * scale * sum(|sum| sum.variance));
        Moment { mean, variance: (mean_square - mean * mean).max(0.0) }
    };
    (0..cols).map(channel).collect()
}

/// Moments of activation(g) · u by integration over g: given g, u is normal with a mean that is linear in g.
fn activated(gate: Moment, up: Moment, covariance: f64, activation: Activation) -> Moment {
    // The trapezium rule out to five deviations: exact to f32 for functions as smooth as these.
    const STEPS_EACH_WAY: i32 = 20;
    const STEP: f64 = 0.25;
    let slope = if gate.variance > 0.0 { covariance / gate.variance } else { 0.0 };
    let rest = (up.variance - slope * covariance).max(0.0);
    let (mut mass, mut mean, mut mean_square) = (0.0, 0.0, 0.0);
    for step in -STEPS_EACH_WAY..=STEPS_EACH_WAY {
        let deviations = f64::from(step) * STEP;
        let density = (-0.5 * deviations * deviations).exp();
        let distance = deviations * gate.variance.sqrt();
        let active = f64::from(activation.apply((gate.mean + distance) as f32));
        let up_mean = f64::from(activation.factor((up.mean + slope * distance) as f32));
        mass += density;
        mean += density * active * up_mean;
        mean_square += density * active * active * (up_mean * up_mean + rest);
    }
    let mean = mean / mass;
    Moment { mean, variance: (mean_square / mass - mean * mean).max(0.0) }
}

/// Calls `of_row` for each row of tensors of one shape; results are in order.
fn by_row<const N: usize, T: Send>(tensors: [&Tensor; N], of_row: impl Fn([&[f32]; N]) -> T + Sync) -> Vec<T> {
    let cols = tensors[0].cols;
    let of_block = |rows: Range<usize>, values: [&[f32]; N]| {
        (0..rows.len()).map(|at| of_row(values.map(|values| &values[at * cols..][..cols]))).collect::<Vec<T>>()
    };
    by_block(tensors, of_block).into_iter().flatten().collect()
}

/// Calls `of_block` for every [`BLOCK_ROWS`] rows of tensors of one shape, on all cores; results are in order.
fn by_block<const N: usize, T: Send>(
    tensors: [&Tensor; N],
    of_block: impl Fn(Range<usize>, [&[f32]; N]) -> T + Sync,
) -> Vec<T> {
    let Tensor { rows, cols, .. } = *tensors[0];
    let starts: Vec<usize> = (0..rows).step_by(BLOCK_ROWS).collect();
    let mut blocks = Vec::with_capacity(starts.len());
    for some in starts.chunks(BLOCKS_AT_A_TIME) {
        blocks.par_extend(some.par_iter().map(|&start| {
            let range = start..rows.min(start + BLOCK_ROWS);
            let values = tensors.map(|tensor| {
                let mut values = vec![0.0; range.len() * cols];
                tensor.read_rows(range.clone(), &mut values);
                values
            });
            of_block(range, values.each_ref().map(Vec::as_slice))
        }));
        tensors.iter().for_each(|tensor| tensor.release());
    }
    blocks
}

#[cfg(test)]
mod tests {
    use crate::import;
    use safetensors::tensor::{Dtype, TensorView};
    use serde_json::{Value, json};

    use super::*;
    use crate::graph;
    use crate::import::ModelConfig;

    /// Uniform in -1 to 1.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        }
    }

    /// A two-layer model with what a family can have: post norms and offsets of norms, or biases.
    fn config(architecture: &str) -> Value {
        json!({
            "architectures": [architecture], "hidden_size": 48, "intermediate_size": 64, "vocab_size": 400,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "num_hidden_layers": 2,
            "query_pre_attn_scalar": 12, "sliding_window": 16, "layer_types": ["full_attention", "full_attention"],
            "tie_word_embeddings": true, "rope_theta": 10000.0, "rope_local_base_freq": 10000.0,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
            "hidden_act": if architecture.starts_with("Gemma") { "gelu_pytorch_tanh" } else { "silu" },
            "hidden_activation": "gelu_pytorch_tanh",
        })
    }

    /// Opens a model whose tensors hold `value(name, element)`.
    fn checkpoint(architecture: &str, mut value: impl FnMut(&str, usize) -> f32) -> Checkpoint {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config(architecture).to_string()).unwrap();
        let shapes = import::open(crate::Source::Synthetic(&path)).unwrap().config.tensor_shapes();
        let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
            .into_iter()
            .map(|(name, shape)| {
                let elements = 0..shape.iter().product::<usize>();
                let bytes = elements.flat_map(|element| value(&name, element).to_le_bytes()).collect();
                (format!("model.{name}"), shape, bytes)
            })
            .collect();
        let views = data
            .iter()
            .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        import::open_model(folder.path()).unwrap()
    }

    fn random_checkpoint(architecture: &str) -> Checkpoint {
        let mut random = Random(3);
        checkpoint(architecture, |name, element| {
            // Channels of the embedding, and so of all that follows, differ in power.
            let scale = if name == "embed_tokens.weight" { 0.1 * (1 + element % 48 % 7) as f64 } else { 0.3 };
            // A norm weight is around 1, whether that is stored or added.
            let centre = if name.contains("norm") && !architecture.starts_with("Gemma") { 1.0 } else { 0.0 };
            (centre + scale * random.next()) as f32
        })
    }

    fn estimate(checkpoint: &Checkpoint) -> Importance {
        Importance::estimate(&graph::build(&checkpoint.config), checkpoint, || Ok(())).unwrap()
    }

    /// Runs tokens through the graph, each attending to all of them equally, and adds up squares of the matrices' inputs.
    fn run(checkpoint: &Checkpoint, tokens: [usize; 4], squares: &mut BTreeMap<String, Vec<f64>>) {
        let config: &ModelConfig = &checkpoint.config;
        let read = |name: &str| {
            let tensor = &checkpoint.tensors[name];
            let mut values = vec![0.0; tensor.rows * tensor.cols];
            tensor.read_rows(0..tensor.rows, &mut values);
            values.into_iter().map(f64::from).collect::<Vec<f64>>()
        };
        let vector = |vector: &VectorRef| {
            read(&vector.tensor).into_iter().map(|value| value + f64::from(vector.offset)).collect::<Vec<f64>>()
        };
        let mut rows: BTreeMap<ValueId, [Vec<f64>; 4]> = BTreeMap::new();
        let mut values = ValueId(0);
        let pairs =
            |a: &[f64], b: &[f64], of: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| of(*a, *b)).collect();
        for node in graph::build(config).nodes.iter().filter(|node| node.layer.is_some() || node.op.inputs().is_empty())
        {
            let out = match &node.op {
                Op::Embed { table, scale, .. } => {
                    let table_rows = read(&table.tensor);
                    tokens.map(|token| {
                        table_rows[token * table.cols..][..table.cols].iter().map(|v| v * f64::from(*scale)).collect()
                    })
                }
                Op::Norm { input, weight, .. } => rows[input].each_ref().map(|row| {
                    let power = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
                    pairs(row, &vector(weight), &|v, weight| v * weight / power.sqrt())
                }),
                Op::MatMul { input, matrix, .. } => {
                    let weights = read(&matrix.tensor);
                    rows[input].each_ref().map(|row| {
                        let sums = squares.entry(matrix.tensor.clone()).or_insert(vec![0.0; row.len()]);
                        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v * v);
                        weights.chunks(row.len()).map(|w| w.iter().zip(row).map(|(w, v)| w * v).sum()).collect()
                    })
                }
                Op::Bias { input, bias, .. } => {
                    rows[input].each_ref().map(|row| pairs(row, &vector(bias), &|v, bias| v + bias))
                }
                Op::CacheWrite { input, part } => {
                    if *part == CachePart::Values {
                        values = *input;
                    }
                    continue;
                }
                Op::Attention { .. } => {
                    let per_head = config.n_heads / config.n_kv_heads;
                    let mean = |at: usize| rows[&values].iter().map(|row| row[at]).sum::<f64>() / 4.0;
                    let row: Vec<f64> = (0..config.n_heads * config.head_dim)
                        .map(|at| mean(at / config.head_dim / per_head * config.head_dim + at % config.head_dim))
                        .collect();
                    std::array::from_fn(|_| row.clone())
                }
                Op::Add { left, right, .. } => {
                    std::array::from_fn(|at| pairs(&rows[left][at], &rows[right][at], &|a, b| a + b))
                }
                Op::ActMul { gate, up, activation, .. } => std::array::from_fn(|at| {
                    pairs(&rows[gate][at], &rows[up][at], &|g, u| f64::from(activation.apply(g as f32)) * u)
                }),
                Op::HeadNorm { .. } | Op::Rope { .. } | Op::SoftCap { .. } => continue,
                Op::Scale { .. } => unreachable!("the families of this test have layers without a factor"),
                Op::Route { .. } | Op::ExpertMatMul { .. } | Op::ExpertSum { .. } | Op::Gate { .. } => {
                    unreachable!("the families of this test have no experts")
                }
                Op::ShortConv { .. } | Op::DeltaRule { .. } | Op::GatedNorm { .. } => {
                    unreachable!("the families of this test have attention in every layer")
                }
            };
            rows.insert(node.op.out().unwrap(), out);
        }
    }

    #[test]
    fn estimates_are_typically_within_half_of_a_run_of_random_tokens() {
        for architecture in ["Gemma3ForCausalLM", "Qwen2ForCausalLM"] {
            let checkpoint = random_checkpoint(architecture);
            let found = estimate(&checkpoint);
            let (mut squares, mut random) = (BTreeMap::new(), Random(5));
            let zipf: Vec<f64> = (0..400)
                .scan(0.0, |sum, token| {
                    *sum += 1.0 / (f64::from(token) + ZIPF_OFFSET);
                    Some(*sum)
                })
                .collect();
            for _ in 0..400 {
                let draw = |_| zipf.partition_point(|sum| *sum < (random.next() + 1.0) / 2.0 * zipf[399]);
                run(&checkpoint, [0; 4].map(draw), &mut squares);
            }
            assert_eq!(squares.len(), 14, "seven matrices a layer");
            // Squared logarithms: of estimated over measured, and of measured over the matrix's mean.
            let (mut error, mut spread, mut columns) = (0.0, 0.0, 0.0);
            for (tensor, sums) in squares {
                let mean = sums.iter().sum::<f64>() / sums.len() as f64;
                for (share, sum) in found.of(&tensor).unwrap().iter().zip(sums) {
                    error += (f64::from(*share).powf(1.0 / IMPORTANCE_EXPONENT) / (sum / mean)).ln().powi(2);
                    spread += (sum / mean).ln().powi(2);
                    columns += 1.0;
                }
            }
            let typical = |squares: f64| (squares / columns).sqrt().exp();
            let (error, spread) = (typical(error), typical(spread));
            assert!(error < 1.5 && spread > 1.8, "{architecture}: off by {error}; were all columns alike, by {spread}");
        }
    }

    #[test]
    fn no_product_is_greater_than_its_bound() {
        let mut random = Random(7);
        for architecture in ["Gemma3ForCausalLM", "Qwen2ForCausalLM"] {
            let checkpoint = random_checkpoint(architecture);
            let read = |name: &str| {
                let tensor = &checkpoint.tensors[name];
                let mut values = vec![0.0; tensor.rows * tensor.cols];
                tensor.read_rows(0..tensor.rows, &mut values);
                values
                    .chunks(tensor.cols)
                    .map(|row| row.iter().map(|v| f64::from(*v)).collect())
                    .collect::<Vec<Vec<f64>>>()
            };
            let [gate, up] = ["gate", "up"].map(|name| read(&format!("layers.1.mlp.{name}_proj.weight")));
            let (name, offset, activation) = match architecture {
                "Gemma3ForCausalLM" => ("pre_feedforward_layernorm", 1.0, Activation::GeluTanh),
                _ => ("post_attention_layernorm", 0.0, Activation::Silu),
            };
            let norm: Vec<f64> =
                read(&format!("layers.1.{name}.weight"))[0].iter().map(|weight| weight + offset).collect();
            let bound = estimate(&checkpoint).product_bound("layers.1.mlp.gate_proj.weight").unwrap();
            // Products are largest for rows parallel to one of gate's or up's.
            let followed = gate.iter().chain(&up).map(|row| row.iter().zip(&norm).map(|(v, norm)| v * norm).collect());
            let any = (0..100).map(|_| (0..norm.len()).map(|_| random.next()).collect());
            let mut largest = 0.0f64;
            for stream in followed.chain(any).collect::<Vec<Vec<f64>>>() {
                let rms = (stream.iter().map(|v| v * v).sum::<f64>() / stream.len() as f64).sqrt();
                let dot =
                    |row: &[f64]| stream.iter().zip(&norm).zip(row).map(|((v, norm), w)| v / rms * norm * w).sum();
                let products = gate.iter().zip(&up).map(|(gate, up)| {
                    let (gate, up): (f64, f64) = (dot(gate), dot(up));
                    f64::from(activation.apply(gate as f32)) * up
                });
                largest = products.map(f64::abs).fold(largest, f64::max);
            }
            assert!(largest <= bound && largest > 0.01 * bound, "{architecture}: {largest} of {bound}");
        }
    }

    #[test]
    fn the_number_of_threads_does_not_show() {
        let checkpoint = random_checkpoint("Gemma3ForCausalLM");
        let with_threads = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| estimate(&checkpoint))
        };
        assert_eq!(with_threads(1), with_threads(3));
    }

    #[test]
    fn degenerate_weights_have_finite_importance_or_none() {
        let hostile: [fn(&str, usize) -> f32; 6] = [
            |_, _| 0.0,
            |_, _| 1.0,
            |_, _| f32::MAX,
            |_, _| f32::NAN,
            |name, element| if name.contains("mlp") { 0.0 } else { element as f32 },
            |name, element| if name.contains("norm") { f32::INFINITY } else { element as f32 % 5.0 - 2.0 },
        ];
        for value in hostile {
            let checkpoint = checkpoint("Qwen2ForCausalLM", value);
            for columns in estimate(&checkpoint).columns.values() {
                assert!(columns.iter().all(|share| share.is_finite() && *share > 0.0), "{columns:?}");
            }
        }
    }
}
