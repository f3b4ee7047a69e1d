//! Finds the tile sizes of a GEMM, or of a GEMV with few rows: every size that fits is estimated, and the fastest is used.
//!
//! The estimate counts cycles of each part of a core and of each stream; the largest count is used, since all of them run at once:
//!
//! * matrix unit: a 4×16 by 16×8 product a cycle, one more for each block and group, which multiplies the 32 sums of a group, and one for the blocks below
//!   each other in registers, which multiplies the group's multipliers of rows and of columns;
//! * loads and stores of a core, with 4×2 blocks of sums in registers;
//! * the streams of activations and of weights into a core, 4 bytes a cycle each, and those out of the shim tiles, which are as wide.
//!
//! At the end of a tile, the sums are scaled and sent, while nothing is multiplied: this time is added. Time in DRAM, bank
//! conflicts and the compiled code of loops are not included. It is an estimate: no design was run on hardware here.

use std::fmt::{self, Display};

use unicorn_kernels::npu::tile::{
    BLOCK_BYTES, BLOCK_COLS, BLOCK_DEPTH, BLOCK_ROWS, BLOCK_SUMS, CoreTile, Epilogue, GEMV_ROWS, GemmShape,
    REGISTER_COLS, REGISTER_ROWS,
};

use crate::addresses::product_reserved_bytes;
use crate::design::Design;
use crate::device::{
    CLOCK_HZ, LOAD_BYTES_PER_CYCLE, MACS_PER_CYCLE, STORE_BYTES_PER_CYCLE, STREAM_BYTES_PER_CYCLE, TileKind, limits,
};
use crate::excluded::{Excluded, Exclusions};
use crate::gemm;
use crate::legal::{self, Fault, Usage};
use crate::lower::{Lowered, lower};
use crate::rule::Rule;

/// Cycles in which a core scales 16 sums to bf16. An assumption: the function is external, and no compiler for it is available here.
const CYCLES_PER_16_SCALED: usize = 10;
/// Fewest and most values of k of an object; the fewest are a group of weights that share a multiplier.
const DEPTHS: std::ops::RangeInclusive<usize> = 32..=128;
/// Largest number of rows of a core's tile that is tried.
const ROWS_MAX: usize = 128;
/// Largest number of columns that is tried.
const COLS_MAX: usize = 256;

/// A GEMM of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Rows of activations: tokens of a prefill step.
    pub rows: usize,
    /// Columns of weights; gate and up together.
    pub cols: usize,
    /// Values of k.
    pub depth: usize,
    /// Computation after the sums.
    pub epilogue: Epilogue,
    /// Columns of the array.
    pub columns: usize,
}

/// Cycles of one object of k, by unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkCycles {
    /// Products.
    pub products: usize,
    /// Products and multiplications of and by multipliers, in the same unit.
    pub multiplications: usize,
    /// Loads.
    pub loads: usize,
    /// Stores.
    pub stores: usize,
    /// Stream of activations into a core.
    pub activations: usize,
    /// Stream of weights into a core.
    pub weights: usize,
    /// Stream of activations out of the fullest shim tile.
    pub shim: usize,
}

impl ChunkCycles {
    fn of(shape: &GemmShape) -> ChunkCycles {
        let core = shape.core;
        let blocks = core.rows / BLOCK_ROWS * (core.cols / BLOCK_COLS);
        let steps = core.depth / BLOCK_DEPTH;
        let products = core.rows * core.cols * core.depth / MACS_PER_CYCLE;
        // In a GEMM, eight blocks of sums share four blocks of activations and two of weights.
        let register_rows = core.register_rows();
        let shared = register_rows * REGISTER_COLS;
        let operands = blocks / shared * (register_rows + REGISTER_COLS) * steps * BLOCK_BYTES;
        let sums = 4 * core.sums();
        let multipliers = blocks * BLOCK_SUMS + core.row_multipliers() * BLOCK_COLS;
        let [columns, _] = shape.activation_spread();
        let fed = (0..columns).map(|column| shape.array_rows_of(column).len()).max().unwrap_or(1);
        ChunkCycles {
            products,
            multiplications: products + blocks + blocks / register_rows,
            loads: (operands + sums + multipliers + core.scales_bytes()).div_ceil(LOAD_BYTES_PER_CYCLE),
            stores: (sums + core.scales_bytes()).div_ceil(STORE_BYTES_PER_CYCLE),
            activations: core.activation_bytes().div_ceil(STREAM_BYTES_PER_CYCLE),
            weights: core.weight_bytes().div_ceil(STREAM_BYTES_PER_CYCLE),
            shim: (fed * core.activation_bytes()).div_ceil(STREAM_BYTES_PER_CYCLE),
        }
    }

    /// The unit that takes longest: cycles and name.
    pub fn limit(&self) -> (usize, &'static str) {
        let all = [
            (self.multiplications, "matrix unit"),
            (self.loads, "loads"),
            (self.stores, "stores"),
            (self.activations, "stream of activations"),
            (self.weights, "stream of weights"),
            (self.shim, "stream of activations from DRAM"),
        ];
        // The first of equals.
        all.into_iter().rev().max_by_key(|(cycles, _)| *cycles).expect("there are some")
    }
}

/// A tile and its estimated cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The GEMM with its padding.
    pub shape: GemmShape,
    /// Cycles of one object.
    pub chunk: ChunkCycles,
    /// Cycles at the end of a tile in which nothing is multiplied.
    pub drain: usize,
    /// Cycles of the whole product.
    pub cycles: usize,
    /// Share of the matrix unit's slots that do a product of the problem: padding and everything else count against it.
    pub busy: f64,
    /// Bytes through all shim tiles, in and out.
    pub shim_bytes: usize,
}

impl Estimate {
    fn of(problem: &Problem, shape: GemmShape) -> Estimate {
        let core = shape.core;
        let chunk = ChunkCycles::of(&shape);
        let scaled = core.sums().div_ceil(16) * CYCLES_PER_16_SCALED;
        let output_bytes = 2 * core.rows * core.outputs();
        // Four cores share the shim tile's stream, but memory tiles buffer its objects.
        let sent = output_bytes.div_ceil(STREAM_BYTES_PER_CYCLE);
        let drain = scaled.max(sent);
        let tile = shape.chunks() * chunk.limit().0 + drain;
        // The shim tile's stream out, which the next tile's products overlap; a core of a GEMV has one of its own.
        let [_, array_rows] = shape.activation_spread();
        let tile = tile.max(array_rows * sent);
        let tiles = shape.row_tiles() * shape.col_tiles();
        let cycles = tiles * tile;
        let useful = (problem.rows * problem.cols * problem.depth) as f64;
        let slots = (cycles * MACS_PER_CYCLE * 4 * shape.columns) as f64;
        let per_tile = |bytes: usize| bytes * tiles * shape.chunks();
        Estimate {
            shape,
            chunk,
            drain,
            cycles,
            busy: useful / slots,
            shim_bytes: per_tile(array_rows * core.activation_bytes())
                + per_tile(shape.weight_streams() * core.weight_bytes())
                + 2 * shape.rows * shape.outputs(),
        }
    }

    /// Seconds at the highest and at the lower clock.
    pub fn seconds(&self) -> [f64; 2] {
        CLOCK_HZ.map(|hz| self.cycles as f64 / hz)
    }
}

/// A design that fits the device, and why it has these sizes.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The requested product.
    pub problem: Problem,
    /// The design.
    pub design: Design,
    /// Its lowering.
    pub lowered: Lowered,
    /// Resources that it uses.
    pub usage: Usage,
    /// Estimated cost.
    pub estimate: Estimate,
    /// Number of sizes that were tried.
    pub tried: usize,
    /// Number of sizes that do not fit a core's memory.
    pub too_large: usize,
    /// Sizes that would be faster, and the limits that exclude them.
    pub excluded: Exclusions,
}

/// The fastest design for `problem`; none if no size fits.
pub fn solve(problem: &Problem) -> Option<Solution> {
    let (mut tried, mut too_large, mut estimates) = (0, 0, Vec::new());
    for depth in DEPTHS.step_by(BLOCK_DEPTH) {
        let gemv = (problem.rows <= GEMV_ROWS).then_some(GEMV_ROWS);
        let gemm = (BLOCK_ROWS * REGISTER_ROWS..=ROWS_MAX).step_by(BLOCK_ROWS * REGISTER_ROWS);
        for rows in gemv.into_iter().chain(gemm) {
            for cols in (BLOCK_COLS * REGISTER_COLS..=COLS_MAX).step_by(BLOCK_COLS * REGISTER_COLS) {
                let core = CoreTile::new(rows, cols, depth, problem.epilogue);
                tried += 1;
                too_large += usize::from(core_bytes(&core) > limits(TileKind::Core).memory_bytes);
                let shape = GemmShape::padded(problem.rows, problem.cols, problem.depth, problem.columns, core);
                estimates.push(Estimate::of(problem, shape));
            }
        }
    }
    // Equally fast ones by moved bytes; the rest of the order makes the choice a function of the problem.
    estimates.sort_by_key(|one| (one.cycles, one.shim_bytes, one.shape.core));
    let mut excluded = Exclusions::default();
    for estimate in estimates {
        let core = estimate.shape.core;
        let mut exclude = |fault| {
            let size = format!("{} × {} × {}", core.rows, core.cols, core.depth);
            excluded.add(Excluded { size, cycles: estimate.cycles, fault });
        };
        // Designs are made only of what fits a core, which most sizes do not.
        let (bytes, most) = (core_bytes(&core), limits(TileKind::Core).memory_bytes);
        if bytes > most {
            let what = format!("{bytes} bytes of memory, expected at most {most}");
            exclude(Fault { rule: Rule::Memory, place: "core".into(), what });
            continue;
        }
        let design = gemm::design(&estimate.shape);
        let lowered = lower(&design);
        match legal::check(&design, &lowered) {
            Ok(usage) => {
                let problem = *problem;
                return Some(Solution { problem, design, lowered, usage, estimate, tried, too_large, excluded });
            }
            Err(faults) => faults.into_iter().take(1).for_each(exclude),
        }
    }
    None
}

/// Memory of a core: two objects of each stream, sums, scales, stack and tables.
fn core_bytes(core: &CoreTile) -> usize {
    let streams = core.activation_bytes() + core.weight_bytes() + 2 * core.output_values();
    2 * streams + 4 * core.sums() + core.scales_bytes() + product_reserved_bytes(core)
}

impl Display for Solution {
    /// Why the sizes are what they are, for `--explain`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Solution { problem, estimate, usage, .. } = self;
        let (shape, core) = (&estimate.shape, &estimate.shape.core);
        let Problem { rows, cols, depth, columns, .. } = problem;
        writeln!(f, "{rows} × {cols} × {depth} on {columns} × 4 cores, {:?}", problem.epilogue)?;
        writeln!(
            f,
            "  tile of a core     {} rows × {} columns, {} of k at a time: fastest of {} sizes, of which {} exceed a core's memory",
            core.rows, core.cols, core.depth, self.tried, self.too_large
        )?;
        writeln!(f, "{}", self.excluded.explained(estimate.cycles, estimate.chunk.limit().1))?;
        writeln!(
            f,
            "  padding            {} × {} × {}, {} × {} tiles of {} objects",
            shape.rows,
            shape.cols,
            shape.depth,
            shape.row_tiles(),
            shape.col_tiles(),
            shape.chunks()
        )?;
        let chunk = &estimate.chunk;
        writeln!(
            f,
            "  cycles an object   {} products, {} with multipliers, {} loads, {} stores, {} activations in, {} weights in: limited by the {}",
            chunk.products,
            chunk.multiplications,
            chunk.loads,
            chunk.stores,
            chunk.activations,
            chunk.weights,
            chunk.limit().1
        )?;
        writeln!(f, "  cycles at the end  {} a tile, for scaling and sending", estimate.drain)?;
        writeln!(f, "{usage}")?;
        let [fast, slow] = estimate.seconds().map(|seconds| seconds * 1e3);
        write!(
            f,
            "  estimate           {:.2} ms at 1.6 GHz, {:.2} ms at 0.8 GHz, {:.0} % of the matrix units' slots busy, {} MB through the shim tiles",
            fast,
            slow,
            estimate.busy * 100.0,
            estimate.shim_bytes / 1_000_000
        )
    }
}
