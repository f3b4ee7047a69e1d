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

mod streams;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use rayon::prelude::*;
use unicorn_kernels::Activation;
use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::heads::NormOf;
use unicorn_kernels::short_conv::ConvForm;

use crate::error::Result;
use crate::graph::{CachePart, ColumnsBlock, MatrixRef, ModelGraph, Node, Op, ValueId, VectorRef};
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
        let mut walk = Walk {
            graph,
            checkpoint,
            moments: BTreeMap::new(),
            values: BTreeMap::new(),
            importance: Importance::default(),
        };
        let behind = graph.nodes.iter().rposition(|node| node.layer.is_some()).map_or(0, |last| last + 1);
        for (index, node) in graph.nodes.iter().enumerate() {
            if index < behind {
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
    /// The values over which attention takes means, by the layer that has written them.
    values: BTreeMap<usize, ValueId>,
    importance: Importance,
}

impl Walk<'_> {
    fn step(&mut self, node: &Node) {
        let op = &node.op;
        if let Op::Streams(op) = op {
            return self.streams(op);
        }
        let layer = || node.layer.expect("heads are inside a layer");
        let head_dim = || self.graph.head_dims[layer()];
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
                if matches!(part, CachePart::Values | CachePart::Latent) {
                    self.values.insert(layer(), *input);
                }
                return;
            }
            Op::Attention { .. } => self.attention(layer(), head_dim()),
            Op::Add { left, right, .. } => {
                let both = self.moments[left].iter().zip(&self.moments[right]);
                let sum =
                    |(a, b): (&Moment, &Moment)| Moment { mean: a.mean + b.mean, variance: a.variance + b.variance };
                both.map(sum).collect()
            }
            Op::ActMul { gate, up, up_column, activation, .. }
                if self.graph.values[up.0].width > self.graph.values[gate.0].width =>
            {
                let pairs = self.moments[gate].iter().zip(&self.moments[up][*up_column..]);
                pairs.map(|(gate, up)| activated(*gate, *up, 0.0, *activation)).collect()
            }
            Op::ActMul { gate, up, activation, .. } => self.act_mul(*gate, *up, *activation),
            Op::SparseActMul { gate, up, activation, deviations, .. } => {
                self.sparse_act_mul(*gate, *up, *activation, *deviations)
            }
            Op::Streams(_) => unreachable!("handled above"),
            Op::HeadNorm { input, of: NormOf::Value, .. } => self.value_norm(*input, head_dim()),
            Op::Scale { input, factor, .. } => {
                let factor = self.vector(factor).next().expect("a factor is one number");
                let scaled = |moment: &Moment| Moment {
                    mean: moment.mean * factor,
                    variance: moment.variance * factor * factor,
                };
                self.moments[input].iter().map(scaled).collect()
            }
            // A few rows have them.
            Op::ImageFeatures { input, .. } => self.moments[input].clone(),
            // A latent vector's rotated elements are behind its value.
            Op::Rope { input, .. } if self.checkpoint.config.latent.is_some() => self.moments[input].clone(),
            Op::HeadColumns { blocks, .. } => self.head_columns(blocks),
            Op::EveryMatrix { .. } => return,
            // Behind all layers.
            Op::Patches { .. }
            | Op::LayerNorm { .. }
            | Op::RowBias { .. }
            | Op::Activate { .. }
            | Op::ImagePositions { .. }
            | Op::ImageRope { .. }
            | Op::ImageAttention { .. }
            | Op::ImagePool { .. } => return,
            // Queries and keys only choose among values; soft caps come after the last matrix.
            Op::HeadNorm { .. } | Op::Rope { .. } | Op::SoftCap { .. } | Op::Route { .. } => return,
            Op::ExpertMatMul { input, matrix, bias, .. } => self.expert_matmul(*input, matrix, bias.as_ref()),
            Op::ExpertSum { input, out, .. } => self.expert_sum(*input, *out),
            Op::ShortConv { input, taps, form, .. } => self.short_conv(*input, taps, *form),
            Op::PreviousRow { input, .. } => self.moments[input].clone(),
            Op::KeepRow { .. } => return,
            Op::DeltaRule { input, out, .. } => self.delta_rule(*input, *out),
            Op::GatedNorm { input, gate, weight, form, .. } => self.gated_norm(*input, *gate, weight, *form),
            // A gate is somewhere between 0 and 1, and for a row's channels the same, or independent of them.
            Op::Gate { input, .. } => {
                let halved = |moment: &Moment| Moment { mean: moment.mean / 2.0, variance: moment.variance / 4.0 };
                self.moments[input].iter().map(halved).collect()
            }
        };
        self.moments.insert(op.outs()[0], moments);
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
    fn gated_norm(&self, input: ValueId, gate: ValueId, weight: &VectorRef, form: GatedForm) -> Moments {
        let weights: Vec<f64> = self.vector(weight).collect();
        let heads =
            self.moments[&input].chunks_exact(weights.len()).zip(self.moments[&gate].chunks_exact(weights.len()));
        let normed = heads.flat_map(|(head, gates)| {
            let power = head.iter().map(|moment| moment.mean_square()).sum::<f64>() / head.len() as f64;
            let factor = 1.0 / (power + f64::from(self.checkpoint.config.rms_norm_eps)).sqrt();
            head.iter().zip(gates).zip(&weights).map(move |((moment, gate), weight)| {
                let scale = weight * factor;
                let normed = Moment { mean: moment.mean * scale, variance: moment.variance * scale * scale };
                match form {
                    GatedForm::Silu => activated(*gate, normed, 0.0, Activation::Silu),
                    GatedForm::Sum => {
                        Moment { mean: normed.mean + gate.mean, variance: normed.variance + gate.variance }
                    }
                }
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

    /// Of heads with a row each, either all have the same moments or each has its own.
    fn head_columns(&self, blocks: &[ColumnsBlock]) -> Moments {
        let mut columns = Vec::new();
        for block in blocks {
            for head in 0..block.n_heads {
                for part in &block.parts {
                    let (all, source) = (&self.moments[&part.value], &self.graph.values[part.value.0]);
                    let of_head = match source.rows_per_token {
                        1 => source.width / block.n_heads,
                        _ if all.len() == source.width => 0,
                        _ => source.width,
                    };
                    columns.extend_from_slice(&all[head * of_head + part.first..][..part.width]);
                }
            }
        }
        columns
    }

    /// For each query head, a mean over the values of its KV head, which are independent and have one distribution.
    fn attention(&self, layer: usize, head_dim: usize) -> Moments {
        let config = &self.checkpoint.config;
        let (n_heads, values) = (config.n_heads, &self.moments[&self.values[&config.cache_owner(layer)]]);
        if let Some(latent) = &config.latent {
            // The same for all heads.
            let mean = |value: &Moment| Moment { variance: value.variance / ATTENDED_TOKENS, ..*value };
            return values[..latent.rank].iter().map(mean).collect();
        }
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
        let producer = self.graph.nodes.iter().find(|node| node.op.outs().contains(&value));
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
