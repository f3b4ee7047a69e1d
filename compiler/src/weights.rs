//! Which packed weights a graph needs, in which format: the list that `place` gives addresses to and `pack` fills.

use std::borrow::Cow;
use std::collections::BTreeMap;
use unicorn_artifact::plan::MAX_BINDING_BYTES;

use unicorn_kernels::heads::{ROPE_FINE, rope_coarse};
use unicorn_kernels::layout::TILE_ROWS;
use unicorn_kernels::{WeightFormat, WeightLayout};

use crate::error::{CompileError, Remedy, Result};
use crate::format_policy::{FormatPolicy, WeightsOption};
use crate::fuse::{FusedGraph, Matrix, MatrixId, Vector, VectorId};
use crate::graph::MatrixRef;
use crate::import::{Codes, KeptCodes, ModelConfig, RopeConfig, VisionConfig};

impl FormatPolicy {
    /// The format of one matrix of a model.
    pub(crate) fn format(&self, matrix: &Matrix, config: &ModelConfig) -> WeightFormat {
        let kept = if self.weights == WeightsOption::F16 { None } else { kept_format(matrix, config) };
        // Codebooks lose no more than the rounding of scales to f16, although they are smaller than the requested format.
        let kept = kept.filter(|kept| self.weights == WeightsOption::Int4 || kept.codebook().is_some());
        let is_finer =
            matrix.is_of_images() || matrix.is_table || matrix.is_head || matrix.is_state_gate || matrix.is_of_latent();
        let is_finer = is_finer || matrix.is_of_streams();
        match (self.weights, kept) {
            // Small, and nothing after it compensates for a wrong choice.
            _ if matrix.is_router => WeightFormat::F16,
            (_, Some(kept)) => kept,
            (WeightsOption::Int4, None) if is_finer => WeightFormat::Int8,
            (WeightsOption::Int4, None) => WeightFormat::Int4 { group: self.group },
            (WeightsOption::Int8, None) if is_finer => WeightFormat::F16,
            (WeightsOption::Int8, None) => WeightFormat::Int8,
            (WeightsOption::F16, None) => WeightFormat::F16,
        }
    }
}

/// The format that holds, without quantising again, parts that the source has as codes of 4 bits; `None`: there are no such parts.
fn kept_format(matrix: &Matrix, config: &ModelConfig) -> Option<WeightFormat> {
    let tensors = matrix.tensors();
    let found: Vec<Option<&KeptCodes>> = tensors.map(|tensor| config.kept_codes.get(&*tensor)).collect();
    let kept: Vec<&KeptCodes> = found.iter().copied().flatten().collect();
    let group = kept.iter().map(|kept| kept.group).min()?;
    if let Some(codebook) = kept.iter().find_map(|kept| kept.codes.codebook()) {
        // Together with other parts, INT4 has a smaller error than their places in this table would have.
        let is_alike = |found: &Option<&KeptCodes>| found.is_some_and(|kept| kept.codes.codebook() == Some(codebook));
        return found.iter().all(is_alike).then(|| WeightFormat::of_codebook(codebook));
    }
    let wide = kept.iter().any(|kept| kept.codes == Codes::WideInt4);
    Some(if wide { WeightFormat::WideInt4 { group } } else { WeightFormat::Int4 { group } })
}

/// Index into [`PackedWeights::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackedId(pub usize);

/// One range of a weight section, bound as one buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedWeight {
    /// Name in the graph, followed by `[i/n]` where a matrix is cut into `n` ranges of rows.
    pub name: String,
    pub(crate) source: PackedSource,
    pub(crate) layer: Option<usize>,
    /// Bytes it takes, padding included.
    pub len_bytes: u64,
    /// Bytes that one decode step reads of it.
    pub(crate) bytes_read_per_token: u64,
    /// Position in the order in which fast memory is assigned.
    pub precedence: Precedence,
    pub(crate) reason: String,
}

/// Which weights are given fast memory first. A decode step reads every byte of the first three once, and of experts a part, so the order follows
/// from the rest of a conversation: steps of many rows read the head for none of them or for one, and rows of a table
/// are a few bytes of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// Matrices of attention, and norms, biases and rotary tables, which are small.
    Attention,
    /// Matrices of the MLPs that every token passes.
    FeedForward,
    /// The output head, which may also be the embedding.
    Head,
    /// Matrices of experts among which there is one that every token passes.
    SharedExperts,
    /// Matrices of experts, of which a token reads a few.
    Experts,
    /// An embedding that is not also the head.
    Rows,
    /// What makes rows of images.
    Images,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PackedSource {
    /// Rows from `first_row` on of a matrix, `layout.rows` of them.
    Matrix {
        id: MatrixId,
        first_row: usize,
        layout: WeightLayout,
    },
    Vector(VectorId),
    /// Divisor of this gate's and up's products as f16, four times.
    ProductFactor(MatrixId),
    Rope(usize),
    /// Cosines and sines of the places of an image's patches.
    ImageRope,
}

/// Everything that is packed, in the order in which a step reads it.
pub struct PackedWeights {
    /// By [`PackedId`].
    pub list: Vec<PackedWeight>,
    /// Matmuls may read their activations as integers, whose error is small compared with INT4's.
    pub(crate) integer_activations: bool,
    matrices: Vec<Vec<PackedId>>,
    vectors: Vec<PackedId>,
    product_factors: BTreeMap<usize, PackedId>,
    ropes: Vec<PackedId>,
    image_rope: Option<PackedId>,
}

impl PackedWeights {
    /// Lists the weights of `graph`: a matrix larger than a binding may be is cut by rows.
    pub fn of(graph: &FusedGraph, config: &ModelConfig, policy: FormatPolicy) -> PackedWeights {
        let mut weights = PackedWeights {
            list: Vec::new(),
            integer_activations: policy.weights == WeightsOption::Int4,
            matrices: Vec::new(),
            vectors: Vec::new(),
            product_factors: BTreeMap::new(),
            ropes: Vec::new(),
            image_rope: None,
        };
        for (index, rope) in config.ropes.iter().enumerate() {
            let len_bytes = rope_table_entries(rope, config.max_positions) * 8;
            let id = weights.push(PackedWeight {
                name: format!("rope.{index}"),
                source: PackedSource::Rope(index),
                layer: None,
                len_bytes: len_bytes as u64,
                bytes_read_per_token: rope.inv_freq.len() as u64 * 16,
                precedence: Precedence::Attention,
                reason: "cos and sin by position, a few rows a token".into(),
            });
            weights.ropes.push(id);
        }
        if let Some(vision) = config.vision.as_ref().filter(|vision| vision.grid.is_some()) {
            weights.image_rope = Some(weights.push(PackedWeight {
                name: "vision.rope".into(),
                source: PackedSource::ImageRope,
                layer: None,
                len_bytes: 8 * (vision.grid_places() * vision.grid_frequencies().len()) as u64,
                bytes_read_per_token: 0,
                precedence: Precedence::Images,
                reason: IMAGES.into(),
            }));
        }
        let shapes = config.tensor_shapes();
        for (index, vector) in graph.vectors.iter().enumerate() {
            // A graph names only tensors that the config lists.
            let elements: usize = match vector.stack {
                Some(stack) => graph.matrices[stack.0].biases(),
                None => vector.parts.iter().map(|part| shapes[&part.tensor].iter().product::<usize>()).sum(),
            };
            let is_of_images = vector.is_of_images();
            let name = vector.parts.iter().map(|part| part.tensor.as_str()).collect::<Vec<_>>().join("+");
            let id = weights.push(PackedWeight {
                name,
                source: PackedSource::Vector(VectorId(index)),
                layer: vector.layer,
                // Kernels read four elements at a time.
                len_bytes: 4 * elements.next_multiple_of(4) as u64,
                bytes_read_per_token: if is_of_images { 0 } else { 4 * elements as u64 },
                precedence: if is_of_images { Precedence::Images } else { Precedence::Attention },
                reason: if is_of_images { IMAGES } else { "f32 vector, read whole" }.into(),
            });
            weights.vectors.push(id);
        }
        // Where matmuls read integers, what makes them may make f16.
        let products = graph.products_of_normed_rows().filter(|_| weights.integer_activations).collect::<Vec<_>>();
        for id in products {
            let layer = graph.matrices[id.0].layer.expect("gate and up are inside a layer");
            let packed = weights.push(PackedWeight {
                name: format!("layers.{layer}.product_factor"),
                source: PackedSource::ProductFactor(id),
                layer: Some(layer),
                len_bytes: 16,
                bytes_read_per_token: 0,
                precedence: Precedence::Attention,
                reason: "a number that steps of many rows read".into(),
            });
            weights.product_factors.insert(id.0, packed);
        }
        for (index, matrix) in graph.matrices.iter().enumerate() {
            let format = policy.format(matrix, config);
            let cuts = cut_rows(matrix, format);
            let n_cuts = cuts.len();
            let ids = cuts.into_iter().enumerate().map(|(cut, (first_row, rows))| {
                let layout = WeightLayout { format, rows, cols: matrix.cols() };
                let part = if n_cuts > 1 { format!("[{}/{n_cuts}]", cut + 1) } else { String::new() };
                weights.push(PackedWeight {
                    name: matrix.name.clone() + &part,
                    source: PackedSource::Matrix { id: MatrixId(index), first_row, layout },
                    layer: matrix.layer,
                    len_bytes: layout.bytes() as u64,
                    bytes_read_per_token: bytes_read(matrix, &layout, cut, first_row, config),
                    precedence: precedence(matrix, shared_experts(matrix, &layout, first_row)),
                    reason: reason(matrix, config).into(),
                })
            });
            let ids = ids.collect();
            weights.matrices.push(ids);
        }
        weights
    }

    /// Checks that every expert, packed by `policy`, fits in one binding, since no kernel reads an expert in parts.
    ///
    /// # Errors
    /// [`CompileError::DoesNotFit`] when one does not.
    pub(crate) fn check(&self, policy: FormatPolicy) -> Result<()> {
        let is_of_experts = |precedence| matches!(precedence, Precedence::SharedExperts | Precedence::Experts);
        let is_too_large =
            |weight: &&PackedWeight| is_of_experts(weight.precedence) && weight.len_bytes > MAX_BINDING_BYTES;
        let Some(weight) = self.list.iter().find(is_too_large) else { return Ok(()) };
        let FormatPolicy { weights, group } = policy;
        let smaller = Remedy::Weights(FormatPolicy { weights: WeightsOption::Int4, group });
        Err(CompileError::DoesNotFit {
            what: format!(
                "{} does not fit a binding: {} MiB for each expert, expected at most {} MiB",
                weight.name,
                weight.len_bytes >> 20,
                MAX_BINDING_BYTES >> 20
            ),
            remedies: (weights != WeightsOption::Int4).then_some(smaller).into_iter().collect(),
        })
    }

    fn push(&mut self, weight: PackedWeight) -> PackedId {
        self.list.push(weight);
        PackedId(self.list.len() - 1)
    }

    /// The row ranges of a matrix, in order.
    pub(crate) fn matrix(&self, id: MatrixId) -> &[PackedId] {
        &self.matrices[id.0]
    }

    pub(crate) fn vector(&self, id: VectorId) -> PackedId {
        self.vectors[id.0]
    }

    /// Divisor of this gate's and up's products as f16.
    pub(crate) fn product_factor(&self, id: MatrixId) -> Option<PackedId> {
        self.product_factors.get(&id.0).copied()
    }

    pub(crate) fn rope(&self, index: usize) -> PackedId {
        self.ropes[index]
    }

    /// The table of places of an image's patches.
    ///
    /// # Panics
    /// If the model takes no images of any size.
    pub(crate) fn image_rope(&self) -> PackedId {
        self.image_rope.expect("a tower that rotates has a table")
    }

    /// The weight at `id`, an index that this list gave.
    pub fn get(&self, id: PackedId) -> &PackedWeight {
        &self.list[id.0]
    }

    pub(crate) fn bytes_read_per_token(&self) -> u64 {
        self.list.iter().map(|weight| weight.bytes_read_per_token).sum()
    }
}

/// What a packed row holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceRow<'a> {
    pub(crate) part: &'a MatrixRef,
    /// Index of the expert; 0 if the matrix is not a stack.
    pub(crate) expert: usize,
    pub(crate) row: usize,
    /// The first of the tensor's columns that it holds.
    pub(crate) first_col: usize,
}

impl Matrix {
    /// Packed rows of one expert: whole tiles.
    pub(crate) fn expert_rows(&self) -> usize {
        self.rows().next_multiple_of(TILE_ROWS)
    }

    /// Whether a token is given to some of its matrices; those of attention's heads and of streams are stacks, too.
    pub(crate) fn is_of_experts(&self) -> bool {
        self.experts.is_some() && !self.parts[0].tensor.contains("_attn.") && !self.is_of_streams()
    }

    /// Whether it makes streams of the residual of the embedding, or the head's input of streams.
    fn is_of_streams(&self) -> bool {
        self.parts[0].tensor.starts_with("altup_")
    }

    /// Whether it belongs to what makes rows of images.
    pub(crate) fn is_of_images(&self) -> bool {
        VisionConfig::has(&self.parts[0].tensor)
    }

    /// Whether it makes what latent attention keeps of a token, or reads it for a head.
    fn is_of_latent(&self) -> bool {
        const NAMES: [&str; 4] = [".kv_a_proj.", ".k_rope_proj.", ".k_b_proj.", ".v_b_proj."];
        self.parts.iter().any(|part| NAMES.iter().any(|name| part.tensor.contains(name)))
    }

    /// Packed rows of the whole.
    pub(crate) fn packed_rows(&self) -> usize {
        self.experts.map_or(self.rows(), |experts| experts * self.expert_rows())
    }

    /// Biases of all experts' rows, without padding.
    pub(crate) fn biases(&self) -> usize {
        self.experts.unwrap_or(1) * self.rows()
    }

    /// What packed row `row` holds; `None`: it is padding behind an expert's rows.
    pub(crate) fn source_row(&self, row: usize) -> Option<SourceRow<'_>> {
        let (expert, row) = match self.experts {
            Some(_) => (row / self.expert_rows(), row % self.expert_rows()),
            None => (0, row),
        };
        (row < self.rows()).then(|| {
            let (part, row) = self.part_row(row);
            let own = &self.parts[part];
            let Some(cut) = expert.checked_sub(self.routed_experts()).filter(|_| !self.shared.is_empty()) else {
                return SourceRow { part: own, expert, row, first_col: 0 };
            };
            let shared = &self.shared[part];
            let first_row = if shared.rows > own.rows { cut * own.rows } else { 0 };
            let first_col = if shared.cols > own.cols { cut * own.cols } else { 0 };
            SourceRow { part: shared, expert, row: first_row + row, first_col }
        })
    }

    /// The source of an expert's first row; of the only matrix if it is not a stack.
    pub(crate) fn source_of_expert(&self, expert: usize) -> SourceRow<'_> {
        self.source_row(expert * self.expert_rows()).expect("an expert has rows")
    }

    /// Experts of which a token is given to some; those behind them are shared by all.
    pub(crate) fn routed_experts(&self) -> usize {
        self.parts[0].experts.unwrap_or(1)
    }

    /// The names of all its tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.sources().flat_map(MatrixRef::tensors)
    }

    /// Which part holds row `row` of one expert, and which of the part's rows it is.
    pub(crate) fn part_row(&self, row: usize) -> (usize, usize) {
        if self.interleaved {
            let (tile, row_in_tile) = (row / TILE_ROWS, row % TILE_ROWS);
            return (tile % 2, tile / 2 * TILE_ROWS + row_in_tile);
        }
        let mut first_row = 0;
        for (index, part) in self.parts.iter().enumerate() {
            if row < first_row + part.rows {
                return (index, row - first_row);
            }
            first_row += part.rows;
        }
        panic!("row {row} is inside {}", self.name);
    }
}

impl Vector {
    /// Whether it belongs to what makes rows of images.
    pub(crate) fn is_of_images(&self) -> bool {
        VisionConfig::has(&self.parts[0].tensor)
    }
}

/// The power of two by which products of gate and up are divided before they become f16: none is greater than `bound`, which is of
/// weights and inputs before they are quantised; no group of weights grows by half, and no row of inputs by a sixth.
pub(crate) fn product_factor(bound: f64) -> f32 {
    const QUANTISED: f64 = 1.5 * 1.5 * (7.0 / 6.0) * (7.0 / 6.0);
    // 2^16 is beyond f16.
    const GREATEST: f64 = 32768.0;
    let exponent = (bound * QUANTISED / GREATEST).log2().ceil();
    // Values beyond those of all models do not fit f32 either.
    exponent.clamp(-60.0, 60.0).exp2() as f32
}

/// Entries of a RoPE table: one variant, or two with LongRoPE.
pub(crate) fn rope_table_entries(rope: &RopeConfig, max_positions: usize) -> usize {
    let variants = if rope.long.is_some() { 2 } else { 1 };
    variants * (rope_coarse(max_positions) + ROPE_FINE) * rope.inv_freq.len()
}

/// (first row, rows) of each part that fits one binding; whole pairs of tiles, so that gate and up stay together, or whole experts.
fn cut_rows(matrix: &Matrix, format: WeightFormat) -> Vec<(usize, usize)> {
    let layout = WeightLayout { format, rows: matrix.packed_rows(), cols: matrix.cols() };
    let step = match matrix.experts {
        Some(_) => {
            let expert_bytes = matrix.expert_rows() / TILE_ROWS * layout.tile_bytes();
            (MAX_BINDING_BYTES as usize / expert_bytes).max(1) * matrix.expert_rows()
        }
        None => (MAX_BINDING_BYTES as usize / layout.tile_bytes() / 2).max(1) * 2 * TILE_ROWS,
    };
    (0..layout.rows).step_by(step).map(|first| (first, step.min(layout.rows - first))).collect()
}

fn bytes_read(matrix: &Matrix, layout: &WeightLayout, cut: usize, first_row: usize, config: &ModelConfig) -> u64 {
    if matrix.is_of_images() || matrix.parts.iter().all(|part| config.is_of_drafts_alone(&part.tensor)) {
        return 0;
    }
    if let (true, Some(experts)) = (matrix.is_of_experts(), &config.experts) {
        // Each cut has its share of the experts that a token is given to, and of those that every token is.
        let count = layout.rows / matrix.expert_rows();
        let shared = shared_experts(matrix, layout, first_row);
        let bytes = (layout.bytes() / count) as u64;
        return bytes * ((count - shared) * experts.chosen) as u64 / experts.count as u64 + bytes * shared as u64;
    }
    match (matrix.is_head || !matrix.is_table, cut) {
        (true, _) => layout.bytes() as u64,
        // One row of the whole table, counted with its first part.
        (false, 0) => (layout.tile_bytes() / TILE_ROWS) as u64,
        (false, _) => 0,
    }
}

/// Experts in a cut that every token is given to: the last of the stack.
fn shared_experts(matrix: &Matrix, layout: &WeightLayout, first_row: usize) -> usize {
    let routed_rows = matrix.routed_experts() * matrix.expert_rows();
    let of_stack = if matrix.shared.is_empty() { 0 } else { (first_row + layout.rows).saturating_sub(routed_rows) };
    of_stack.min(layout.rows) / matrix.expert_rows()
}

fn precedence(matrix: &Matrix, shared_experts: usize) -> Precedence {
    match (matrix.is_table, matrix.is_head) {
        _ if matrix.is_of_images() => Precedence::Images,
        _ if shared_experts > 0 => Precedence::SharedExperts,
        _ if matrix.is_of_experts() => Precedence::Experts,
        (_, true) => Precedence::Head,
        (true, false) => Precedence::Rows,
        _ if matrix.parts.iter().all(|part| part.tensor.contains("_attn.")) => Precedence::Attention,
        _ => Precedence::FeedForward,
    }
}

/// Why what only drafts read is placed where it is.
const DRAFTS: &str = "read for a draft, not for a token";
/// Why what makes rows of images is placed where it is.
const IMAGES: &str = "read for an image, not for a token";

fn reason(matrix: &Matrix, config: &ModelConfig) -> &'static str {
    match (matrix.is_table, matrix.is_head) {
        _ if matrix.parts.iter().all(|part| config.is_of_drafts_alone(&part.tensor)) => DRAFTS,
        (true, false) => "one row read per token: slow memory costs little",
        _ if matrix.is_of_images() => IMAGES,
        _ if matrix.is_of_experts() => "the experts that a token is given to are read",
        (true, true) => "output head: read whole for each token (and one row as embedding)",
        _ => "read whole for each token",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_factor_leaves_room_for_what_quantisation_adds() {
        for bound in [1e-12, 0.3, 1.0, 4096.0, 5e7, 3e21] {
            let factor = f64::from(product_factor(bound));
            assert_eq!(factor.log2().fract(), 0.0);
            let largest = bound / factor;
            assert!(3.0 * largest < 32768.0 * 1.05 && 8.0 * largest > 32768.0, "{bound}: {largest}");
        }
        for bound in [0.0, f64::INFINITY] {
            let factor = product_factor(bound);
            assert!(factor.is_normal() && (1.0 / factor).is_normal(), "{bound}: {factor}");
        }
    }
}
