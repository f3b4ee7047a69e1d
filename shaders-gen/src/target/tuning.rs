//! How kernels are cut on a kind of device: `unicorn_compiler` fits these numbers to each shape.

use unicorn_kernels::flash::FlashTile;
use unicorn_kernels::fragment_shape::FragmentShape;
use unicorn_kernels::gemm::GemmTile;
use unicorn_kernels::lane_tile::LaneTile;
use unicorn_kernels::matmul::Sharing;
use unicorn_kernels::register_gemm::RegisterTile;

/// How matmuls are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMulTuning {
    /// Rows of the step that share one pass over the weights, in programs of many rows.
    pub tokens_per_lane: usize,
    /// Tiles of 8 matrix rows a lane, for one row of the step.
    pub tiles_per_lane_one: usize,
    /// The same for several rows of the step.
    pub tiles_per_lane_many: usize,
    /// Maximum number of lanes that share a matrix row. 1 gives all lanes of a subgroup the same address, which is faster on a CPU.
    pub split_k: usize,
    /// Invocations of a workgroup.
    pub workgroup: usize,
    /// The same for kernels that normalise and quantise their input first, or that have four or more rows of the step.
    pub prologue_workgroup: usize,
    /// Tiles that share such a prologue if there is more than one for each of the device's `compute_units`.
    pub prologue_tiles: usize,
    /// Workgroups with a prologue for each of the `compute_units`; further matrix rows are made in passes of these workgroups. 0: each
    /// has a workgroup of its own.
    pub prologue_groups_per_unit: usize,
    /// Maximum number of groups of 32 columns whose weights a lane loads ahead, for one row of the step (integer activations only).
    pub unroll_one: usize,
    /// The same for several rows of the step.
    pub unroll_many: usize,
    /// Maximum number of groups loaded ahead in one of the `compute_units`, for one row of the step and no prologue: more take registers
    /// that other workgroups need.
    pub loads_per_unit: usize,
    /// The same as `unroll_one` with a prologue, whose workgroups have many lanes and so few registers each.
    pub unroll_prologue: usize,
    /// The same where these are all groups of a lane, in workgroups of one pass: they are then loaded before the prologue, and no lane waits
    /// for weights behind it.
    pub unroll_prologue_once: usize,
    /// For one row of the step: a kernel that waits for the dispatch before it loads its first weights before it waits, if one of the
    /// `compute_units` has at most this number of its lanes and they make their matrix rows in one pass. More lanes lack the registers.
    pub early_lanes_per_unit: usize,
    /// How lanes share weights, for one row of the step.
    pub sharing_one: Sharing,
    /// The same for several rows of the step.
    pub sharing_many: Sharing,
}

/// How matmuls of many rows are cut without matrix units: by packed dot products (`unicorn_kernels::dot_gemm`) where activations are
/// integers, else in f32 (`unicorn_kernels::float_gemm`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneGemmTuning {
    /// Tile for products with at least two such workgroups for each of the device's `compute_units`.
    pub many: LaneTile,
    /// Tile for smaller products: more workgroups, each with less work.
    pub few: LaneTile,
    /// Number of rows of the step from which on they are used.
    pub min_rows: usize,
}

impl LaneGemmTuning {
    /// On an H100 with its 132 units, 256 workgroups of 128 × 64 take 0.9 of the time of twice as many of 64 × 64; 192 of them take 1.2.
    const WORKGROUPS_PER_UNIT: usize = 2;

    /// The tile for a product of `rows` rows of the step and `matrix_rows` of the matrix; `None`: another kernel is better.
    pub fn tile(&self, rows: usize, matrix_rows: usize, compute_units: usize) -> Option<LaneTile> {
        let workgroups = rows.div_ceil(self.many.step_rows) * matrix_rows.div_ceil(self.many.matrix_rows);
        let fills_device = workgroups >= Self::WORKGROUPS_PER_UNIT * compute_units;
        (rows >= self.min_rows).then_some(if fills_device { self.many } else { self.few })
    }
}

/// How norms are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormTuning {
    /// In steps of one row each workgroup of the next matmul normalises its input itself, which saves a dispatch.
    pub fold: bool,
    /// Invocations of a norm that is a dispatch of its own. On a CPU each barrier between subgroups costs time.
    pub lanes: usize,
}

/// Which kernels of decode also compute the matmul behind them (`unicorn_kernels::fused_tail`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedTailTuning {
    /// Maximum number of partial sums that its workgroups add atomically, all together.
    pub max_added: usize,
    /// Maximum number of groups of 32 weights that a lane holds for it.
    pub max_groups: usize,
    /// Words of K, and of V, that a lane of such an attention loads ahead: the weights that it holds leave few registers.
    pub words_ahead: usize,
}

/// How decode's attention is cut where it is one dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeAttentionTuning {
    /// Invocations of a workgroup, and cached tokens that they process together.
    pub lanes: usize,
    /// Workgroups into which it is split, where a context is long enough.
    pub workgroups: usize,
    /// Maximum number of query heads of a KV head in a workgroup, in steps of up to eight rows. With more, more of them share each
    /// read of K and V; with fewer, each workgroup has less sequential work.
    pub few_heads: usize,
    /// The same for steps of more rows.
    pub many_heads: usize,
    /// Words of K, and of V, that a lane loads ahead: with more, it waits less often, but fewer lanes fit the registers.
    pub words_ahead: usize,
    /// Tuning for steps of one row after many cached tokens.
    pub long_context: LongContextAttention,
}

/// How attention is cut in a program for long contexts, in which reading K and V takes most of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongContextAttention {
    /// Cached tokens from which on this program is faster.
    pub from_tokens: usize,
    /// Query heads of a KV head in a workgroup.
    pub heads: usize,
    /// Workgroups into which it is split.
    pub workgroups: usize,
}

impl DecodeAttentionTuning {
    /// Maximum number of query heads of a workgroup, in a program of `rows` rows.
    pub fn heads(&self, rows: usize) -> usize {
        if rows > 8 { self.many_heads } else { self.few_heads }
    }
}

/// How GEMMs, and attention of many rows, are cut on cooperative matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixTuning {
    /// Sides of the device's cooperative matrices of f16; GEMMs with weights from registers take square ones.
    pub fragment: FragmentShape,
    /// How GEMMs are cut.
    pub gemm: GemmTuning,
    /// Number of rows of the step from which on they are used.
    pub min_rows: MinRows,
    /// How attention of many rows is cut.
    pub flash: FlashTile,
}

/// The smallest number of rows of the step for which a matmul runs on matrix units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinRows {
    /// For matrices of at least `small_weights` weights.
    pub large: usize,
    /// For smaller matrices, which do not fill the device either way.
    pub small: usize,
    /// Weights of a matrix.
    pub small_weights: usize,
}

impl MinRows {
    /// The same number for all matrices.
    pub const fn of_all(rows: usize) -> MinRows {
        MinRows { large: rows, small: rows, small_weights: 0 }
    }

    /// The number for a matrix of `weights` weights.
    pub fn of(&self, weights: usize) -> usize {
        if weights < self.small_weights { self.small } else { self.large }
    }
}

/// How the operands of a GEMM reach the matrix units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GemmTuning {
    /// Both operands through workgroup memory (`unicorn_kernels::gemm`).
    Workgroup {
        /// Tiles for results that are cut into [`MIN_LARGE_TILES`] of them or more; `None`: such results are cut as others are.
        large: Option<GemmTile>,
        /// Tiles for other programs of more than `few.step_rows` rows.
        many: GemmTile,
        /// Tiles for programs of at most `few.step_rows` rows.
        few: GemmTile,
    },
    /// Weights from registers (`unicorn_kernels::register_gemm`).
    Registers(RegisterTuning),
}

/// Fewest tiles for which [`GemmTuning::Workgroup`] takes `large`: five for each compute unit of the largest GPU of a target, RX 7900 XTX
/// with 96. On an H200 with 132, the product of 512 rows with gate and up of 8B, 896 tiles of 128 x 128, takes 0.84 of the time that it takes
/// in tiles of 128 x 64; that with q, k and v, 192 tiles, does not.
pub const MIN_LARGE_TILES: usize = 480;

/// How GEMMs with weights from registers are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegisterTuning {
    /// The compiler takes the one with the lowest estimated time for a shape.
    pub tiles: &'static [TimedTile],
    /// See `RegisterGemmSpec`.
    pub lanes_hold_fragments: bool,
}

/// A tile, and the time of a workgroup for a stage of 128 columns of INT4, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedTile {
    /// The tile.
    pub tile: RegisterTile,
    /// Time if the workgroup is alone on one of the `compute_units`.
    pub alone_ns: usize,
    /// Time of several workgroups on a compute unit, divided by their number.
    pub shared_ns: usize,
}

impl MatrixTuning {
    /// The tiles of GEMMs through workgroup memory.
    pub fn gemm_tiles(&self) -> Vec<GemmTile> {
        match self.gemm {
            GemmTuning::Workgroup { large, many, few } => large.into_iter().chain([many, few]).collect(),
            GemmTuning::Registers(_) => Vec::new(),
        }
    }
}
