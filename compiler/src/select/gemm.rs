//! Matmuls of many rows, on matrix units or, on devices without them, by packed dot products or in f32: which tile, and among how
//! many workgroups its columns are divided.

use unicorn_kernels::completion::COMPLETION_COUNTERS;
use unicorn_kernels::dot_gemm::DotGemmSpec;
use unicorn_kernels::float_gemm::FloatGemmSpec;
use unicorn_kernels::gemm::{GemmSpec, GemmTile, Product};
use unicorn_kernels::lane_tile::LaneTile;
use unicorn_kernels::register_gemm::RegisterGemmSpec;
use unicorn_kernels::{ActivationFormat, KernelSpec, Precision, Role};
use unicorn_spirv::target::{GemmTuning, MIN_LARGE_TILES, RegisterTuning, TimedTile};

use super::{Operand, Selector};
use crate::fuse::{FusedNode, FusedOp};
use crate::graph::ValueId;
use crate::weights::PackedId;

impl Selector<'_> {
    /// The precision of a value that a matmul reads on matrix units; `None`: it does not.
    pub(super) fn on_matrices(&self, node: &FusedNode, input: ValueId) -> Option<Precision> {
        match self.input_format(node, input) {
            ActivationFormat::RowScaled(precision) | ActivationFormat::Halves(precision) => Some(precision),
            ActivationFormat::F32 | ActivationFormat::Quantized(_) => None,
        }
    }

    /// One part of a node's matrix.
    pub(super) fn gemm(&mut self, node: &FusedNode, id: PackedId, precision: Precision, rows: usize, bytes: u64) {
        let FusedOp::MatMul { input, matrix, bias, out, .. } = node.op else { unreachable!("called for matmuls") };
        let product = self.product(node, id, precision);
        let factor = self.product_factor(node).map(Operand::Weight);
        let tuning = self.target.matrix.expect("called for targets with matrices only");
        let subgroup_size = self.target.subgroup_size;
        let whole = self.weights.matrix(matrix).len() == 1;
        let (spec, partials) = match tuning.gemm {
            GemmTuning::Workgroup { large, many, few } => {
                let tiles =
                    |tile: &GemmTile| product.layout.rows.div_ceil(tile.matrix_rows) * rows.div_ceil(tile.step_rows);
                let large = large.filter(|tile| rows >= tile.step_rows && tiles(tile) >= MIN_LARGE_TILES);
                let tile = large.unwrap_or(if rows > few.step_rows { many } else { few });
                (KernelSpec::Gemm(GemmSpec { product, tile, subgroup_size }), 0)
            }
            GemmTuning::Registers(tuning) => {
                let spec = self.register_gemm(tuning, product, factor.is_some(), rows, whole);
                let partials = spec.partials_len();
                (KernelSpec::RegisterGemm(spec), partials)
            }
        };
        let bias = bias.map(|bias| Operand::Weight(self.weights.vector(bias)));
        let result = self.value(out);
        self.push(node, spec, rows, bytes, |role| match role {
            Role::Weights => Operand::Weight(id),
            Role::QuantizedInput => Operand::Encoded(input),
            Role::Bias => bias.expect("biased"),
            Role::ProductFactor => factor.expect("halves have one"),
            Role::Encoded => Operand::Encoded(out),
            Role::ExchangedSums => Operand::Partials { of: out, len: partials },
            Role::CompletionCounters => Operand::CompletionCounters,
            _ => result,
        });
    }

    /// How a matmul of many rows is cut without matrix units; `None`: another kernel computes it.
    pub(super) fn lane_tile(&self, node: &FusedNode) -> Option<LaneTile> {
        let FusedOp::MatMul { input, matrix, softcap: None, out, .. } = node.op else { return None };
        let takes = match self.input_format(node, input) {
            ActivationFormat::Quantized(_) => true,
            ActivationFormat::F32 => {
                self.weights.matrix(matrix).iter().all(|&id| FloatGemmSpec::takes(&self.matrix(id).0))
            }
            ActivationFormat::RowScaled(_) | ActivationFormat::Halves(_) => false,
        };
        let matrix_rows = self.weights.matrix(matrix).iter().map(|&id| self.matrix(id).0.rows).sum();
        let tuning = self.target.lane_gemm.filter(|_| takes)?;
        tuning.tile(self.product_rows(matrix, out), matrix_rows, self.target.compute_units)
    }

    /// One part of a node's matrix.
    pub(super) fn lane_gemm(&mut self, node: &FusedNode, id: PackedId, tile: LaneTile, bytes: u64) {
        let FusedOp::MatMul { input, matrix, bias, out, .. } = node.op else { unreachable!("called for matmuls") };
        let rows = self.product_rows(matrix, out);
        let spec = match self.input_format(node, input).precision() {
            Some(precision) => KernelSpec::DotGemm(DotGemmSpec { product: self.product(node, id, precision), tile }),
            None => KernelSpec::FloatGemm(FloatGemmSpec { product: self.product(node, id, Precision::Int8), tile }),
        };
        let bias = bias.map(|bias| Operand::Weight(self.weights.vector(bias)));
        let result = self.value(out);
        self.push(node, spec, rows, bytes, |role| match role {
            Role::Weights => Operand::Weight(id),
            Role::QuantizedInput => Operand::Encoded(input),
            Role::InputQuads => Operand::Value(input),
            Role::Bias => bias.expect("biased"),
            _ => result,
        });
    }

    /// Divisor of the products of gate and up, where a GEMM converts them to the f16 that the next one reads.
    pub(super) fn product_factor(&self, node: &FusedNode) -> Option<PackedId> {
        let FusedOp::MatMul { input, matrix, out, .. } = node.op else { return None };
        let [whole] = self.weights.matrix(matrix) else { return None };
        let ActivationFormat::Halves(precision) = self.input_format(node, input) else { return None };
        let wanted = matches!(self.stored_format(out), ActivationFormat::Halves(_));
        let makes = RegisterGemmSpec::makes_halves(&self.product(node, *whole, precision));
        self.weights.product_factor(matrix).filter(|_| wanted && makes)
    }

    fn product(&self, node: &FusedNode, id: PackedId, precision: Precision) -> Product {
        let FusedOp::MatMul { input, bias, act_mul, out, .. } = node.op else { unreachable!("called for matmuls") };
        let (layout, first_row) = self.matrix(id);
        Product {
            layout,
            input: precision,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            output_first: if act_mul.is_some() { first_row / 2 } else { first_row },
            bias: bias.is_some(),
            act_mul,
            rows_per_token: self.graph.values[out.0].rows_per_token,
            experts: None,
        }
    }

    /// The tile and the number of splits with the shortest time. `whole`: no other part of the matrix runs at the same time, on the
    /// same counters.
    fn register_gemm(
        &self,
        tuning: RegisterTuning,
        product: Product,
        halves_out: bool,
        rows: usize,
        whole: bool,
    ) -> RegisterGemmSpec {
        let with = |timed: TimedTile, splits| RegisterGemmSpec {
            product: product.clone(),
            halves_out,
            tile: timed.tile,
            rows,
            splits,
            subgroup_size: self.target.subgroup_size,
            lanes_hold_fragments: tuning.lanes_hold_fragments,
        };
        let candidates = tuning.tiles.iter().flat_map(|&timed| {
            let splits = if whole { with(timed, 1).stages().min(MAX_SPLITS) } else { 1 };
            (1..=splits).map(move |splits| (timed, splits))
        });
        let candidates = candidates.map(|(timed, splits)| (timed, with(timed, splits)));
        let fits = candidates.filter(|(_, spec)| spec.completion_counters() <= COMPLETION_COUNTERS);
        let first = fits.min_by_key(|(timed, spec)| estimate_ns(*timed, spec, self.target.compute_units));
        first.expect("a tile without splits").1
    }
}

/// Most parts of a sum, which are all in flight at once.
const MAX_SPLITS: usize = 16;

/// Nanoseconds until the last of a GEMM's workgroups ends.
fn estimate_ns(timed: TimedTile, spec: &RegisterGemmSpec, compute_units: usize) -> usize {
    /// Time in which a workgroup begins and ends, in stages.
    const BEGIN_AND_END: usize = 3;
    /// Time in which a workgroup determines whether it is the last.
    const LAST_NS: usize = 1000;
    /// Time for each row of a part that it adds.
    const ROW_NS: usize = 3;
    let of_unit = spec.workgroups().into_iter().product::<usize>().div_ceil(compute_units);
    let stage = timed.alone_ns.max(of_unit * timed.shared_ns);
    let exchange = if spec.splits > 1 { LAST_NS + ROW_NS * timed.tile.step_rows * spec.splits } else { 0 };
    (spec.stages().div_ceil(spec.splits) + BEGIN_AND_END) * stage + exchange
}
