//! Shapes of one core's work, and the layout of the objects that its streams carry.
//!
//! ```text
//! activation object   rows/4 × depth/16 blocks of 4×16 i8, row-major inside │ rows f32: row scales
//! weight object       cols/8 × depth/16 blocks of 16×8 i4, low nibble first │ cols/8 × 32 i8: multipliers │ cols f32: column scales
//! output object       4 rows × outputs bf16, row-major
//! ```
//!
//! An object holds one group of k, `depth`. The multipliers of 8 columns are stored four times, once for each row of a block, so
//! that one vector load gives the 32 lanes that they multiply. Scales travel with every object: a third stream would not fit into a
//! core's two channels.

use unicorn_artifact::{NpuProgram, NpuShape};

use crate::Activation;

/// Rows of activations that the matrix unit takes.
pub const BLOCK_ROWS: usize = 4;
/// Values of k that the matrix unit takes.
pub const BLOCK_DEPTH: usize = 16;
/// Columns of weights that the matrix unit takes.
pub const BLOCK_COLS: usize = 8;
/// Bytes of a block of activations, and of a block of weights.
pub const BLOCK_BYTES: usize = 64;
/// Values of a block of sums.
pub const BLOCK_SUMS: usize = BLOCK_ROWS * BLOCK_COLS;
/// Blocks of sums, downwards, that a core keeps in registers.
pub const REGISTER_ROWS: usize = 4;
/// Blocks of sums, across, that a core keeps in registers.
pub const REGISTER_COLS: usize = 2;
/// Rows of cores in the array, each with its own rows of the activations.
pub const CORE_ROWS: usize = 4;
/// Rows of a GEMV: a core's tile of this number of rows is one of a GEMV, and one of more rows one of a GEMM.
pub const GEMV_ROWS: usize = 8;
/// Largest magnitude of a quantised activation.
pub const ACTIVATION_MAX: i32 = 127;
/// Smallest weight code; the largest is 7.
pub const CODE_MIN: i32 = -8;

/// What follows the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Epilogue {
    /// Row scale times column scale.
    Scale,
    /// `f(gate) · up`, where blocks of 8 gate columns and 8 up columns alternate: half as many outputs as columns.
    ActMul(Activation),
}

impl Epilogue {
    /// Outputs of `cols` columns.
    pub fn outputs(self, cols: usize) -> usize {
        match self {
            Epilogue::Scale => cols,
            Epilogue::ActMul(_) => cols / 2,
        }
    }
}

/// One core's share of the output, and the piece of k that it takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoreTile {
    /// Rows of activations: [`GEMV_ROWS`], or a multiple of 16.
    pub rows: usize,
    /// Columns of weights; a multiple of 16.
    pub cols: usize,
    /// Values of k in one object, all of one group: a multiple of 16 from 32 to 128.
    pub depth: usize,
    /// What is done with the sums.
    pub epilogue: Epilogue,
}

impl CoreTile {
    /// Bytes of an activation object.
    pub fn activation_bytes(&self) -> usize {
        self.rows * self.depth + 4 * self.rows
    }

    /// Offset of the row scales in an activation object.
    pub fn row_scales_at(&self) -> usize {
        self.rows * self.depth
    }

    /// Bytes of a weight object.
    pub fn weight_bytes(&self) -> usize {
        self.column_scales_at() + 4 * self.cols
    }

    /// Offset of the multipliers in a weight object.
    pub fn multipliers_at(&self) -> usize {
        self.cols * self.depth / 2
    }

    /// Offset of the column scales in a weight object.
    pub fn column_scales_at(&self) -> usize {
        self.multipliers_at() + self.cols / BLOCK_COLS * BLOCK_SUMS
    }

    /// Bytes of the scales that a core keeps for its epilogue: rows first, then columns.
    pub fn scales_bytes(&self) -> usize {
        4 * (self.rows + self.cols)
    }

    /// Values of the sums, i32: rows/4 × cols/8 blocks of 4×8.
    pub fn sums(&self) -> usize {
        self.rows * self.cols
    }

    /// Blocks of sums, downwards, that it keeps in registers: [`REGISTER_ROWS`], or all that a GEMV has.
    pub fn register_rows(&self) -> usize {
        REGISTER_ROWS.min(self.rows / BLOCK_ROWS)
    }

    /// Output values of a row.
    pub fn outputs(&self) -> usize {
        self.epilogue.outputs(self.cols)
    }

    /// Values of an output object: one row of blocks.
    pub fn output_values(&self) -> usize {
        BLOCK_ROWS * self.outputs()
    }

    /// Output objects of a tile.
    pub fn pieces(&self) -> usize {
        self.rows / BLOCK_ROWS
    }

    /// Bits by which a group's sum is shifted to fit into 16 bits: 32 · 127 · 8 just fits.
    pub fn shift(&self) -> u32 {
        self.depth.div_ceil(32).next_power_of_two().ilog2()
    }

    /// Half of what the shift removes: added first, it rounds to nearest.
    pub fn half(&self) -> i32 {
        (1 << self.shift()) >> 1
    }

    /// Largest multiplier for which the sum over `groups` groups stays within an i32.
    pub fn multiplier_max(&self, groups: usize) -> i32 {
        let most = self.depth as i64 * i64::from(ACTIVATION_MAX * -CODE_MIN);
        let group_max = (most + i64::from(self.half())) >> self.shift();
        let bound = i64::from(i32::MAX) / (group_max * groups.max(1) as i64);
        bound.min(127) as i32
    }
}

/// A whole product on an array of `columns` × 4 cores.
///
/// A GEMM: cores of an array column take the same weights, cores of an array row the same activations. Row blocks of four alternate between the
/// array's rows (block b belongs to array row b % 4), so that the output rows of the four cores of a column interleave to consecutive rows.
///
/// A GEMV, of at most [`GEMV_ROWS`] rows: every core takes other weights, by a stream of its own from DRAM, and all take the same activations. A shim
/// tile has two streams in, of which one of the first carries the activations: 2 × `columns` - 1 cores compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GemmShape {
    /// Rows of activations, padded to [`GemmShape::tile_rows`].
    pub rows: usize,
    /// Columns of weights (gate and up together), padded to [`GemmShape::tile_cols`].
    pub cols: usize,
    /// Values of k, padded to an even number of objects.
    pub depth: usize,
    /// Array columns, 1 to 4.
    pub columns: usize,
    /// Each core's share.
    pub core: CoreTile,
}

impl GemmShape {
    /// The shape that `rows` × `cols` × `depth` are padded to.
    pub fn padded(rows: usize, cols: usize, depth: usize, columns: usize, core: CoreTile) -> GemmShape {
        let mut shape = GemmShape { rows, cols, depth, columns, core };
        shape.rows = rows.next_multiple_of(shape.tile_rows());
        shape.cols = cols.next_multiple_of(shape.tile_cols());
        // An even number of objects, so that every tile begins with the same one of a stream's two buffers.
        shape.depth = depth.next_multiple_of(2 * core.depth);
        shape
    }

    /// The shape of an artifact's program, by its record; `None`: its activation is unknown.
    pub fn of_program(program: &NpuProgram) -> Option<GemmShape> {
        let epilogue = match program.activation.as_deref() {
            None => Epilogue::Scale,
            Some(name) => {
                let all = [Activation::Silu, Activation::GeluTanh];
                Epilogue::ActMul(all.into_iter().find(|one| format!("{one:?}").to_lowercase() == name)?)
            }
        };
        let NpuShape { rows, cols, depth, columns, core_rows, core_cols, core_depth } = program.shape;
        let [rows, cols, depth, columns] = [rows, cols, depth, columns].map(|size| size as usize);
        let core =
            CoreTile { rows: core_rows as usize, cols: core_cols as usize, depth: core_depth as usize, epilogue };
        Some(GemmShape { rows, cols, depth, columns, core })
    }

    /// Whether it is a GEMV.
    pub fn is_gemv(&self) -> bool {
        self.core.rows == GEMV_ROWS
    }

    /// Streams of weights from DRAM: one an array column, in a GEMV one a core.
    pub fn weight_streams(&self) -> usize {
        if self.is_gemv() { 2 * self.columns - 1 } else { self.columns }
    }

    /// Array columns through which activations enter, and array rows with different activations: a GEMV has one of each.
    pub fn activation_spread(&self) -> [usize; 2] {
        if self.is_gemv() { [1, 1] } else { [self.columns, CORE_ROWS] }
    }

    /// Rows that the whole array computes at a time.
    pub fn tile_rows(&self) -> usize {
        let [_, array_rows] = self.activation_spread();
        array_rows * self.core.rows
    }

    /// Columns that the whole array computes at a time.
    pub fn tile_cols(&self) -> usize {
        self.weight_streams() * self.core.cols
    }

    /// Objects of one stream for one tile.
    pub fn chunks(&self) -> usize {
        self.depth / self.core.depth
    }

    /// Tiles over the rows.
    pub fn row_tiles(&self) -> usize {
        self.rows / self.tile_rows()
    }

    /// Tiles over the columns.
    pub fn col_tiles(&self) -> usize {
        self.cols / self.tile_cols()
    }

    /// Output values of a row.
    pub fn outputs(&self) -> usize {
        self.core.epilogue.outputs(self.cols)
    }

    /// The array rows whose activations enter through array column `column`.
    pub fn array_rows_of(&self, column: usize) -> std::ops::Range<usize> {
        let [columns, array_rows] = self.activation_spread();
        let first = |column: usize| (column * array_rows).div_ceil(columns);
        first(column)..first(column + 1)
    }

    /// Row of the matrix that is row `row` of array row `array_row` in row tile `tile`.
    pub fn matrix_row(&self, tile: usize, array_row: usize, row: usize) -> usize {
        let (block, within) = (row / BLOCK_ROWS, row % BLOCK_ROWS);
        let [_, array_rows] = self.activation_spread();
        tile * self.tile_rows() + (block * array_rows + array_row) * BLOCK_ROWS + within
    }

    /// First weight column of weight stream `stream` in column tile `tile`.
    pub fn first_col(&self, tile: usize, stream: usize) -> usize {
        (tile * self.weight_streams() + stream) * self.core.cols
    }

    /// Bytes of all activation objects: row tiles, then array columns, chunks and the array rows that each array column feeds.
    pub fn activation_bytes(&self) -> usize {
        let [_, array_rows] = self.activation_spread();
        self.row_tiles() * array_rows * self.chunks() * self.core.activation_bytes()
    }

    /// Offset of the activations that array column `column` reads for row tile `tile`.
    pub fn activations_at(&self, tile: usize, column: usize) -> usize {
        let [_, array_rows] = self.activation_spread();
        let rows = tile * array_rows + self.array_rows_of(column).start;
        rows * self.chunks() * self.core.activation_bytes()
    }

    /// Bytes of all weight objects: weight streams, then column tiles and chunks.
    pub fn weight_bytes(&self) -> usize {
        self.weight_streams() * self.col_tiles() * self.chunks() * self.core.weight_bytes()
    }

    /// Offset of the weights of weight stream `stream` from column tile `tile` on.
    pub fn weights_at(&self, stream: usize, tile: usize) -> usize {
        (stream * self.col_tiles() + tile) * self.chunks() * self.core.weight_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_sum_fits_into_sixteen_bits_and_all_groups_into_thirty_two() {
        for depth in (32..=128).step_by(16) {
            let core = CoreTile { rows: 64, cols: 96, depth, epilogue: Epilogue::Scale };
            let most = depth as i32 * ACTIVATION_MAX * -CODE_MIN;
            assert!(i16::try_from((most + core.half()) >> core.shift()).is_ok(), "depth {depth}");
            assert!(i16::try_from((-most + core.half()) >> core.shift()).is_ok(), "depth {depth}");
            if core.shift() > 0 {
                assert!(i16::try_from((most + core.half()) >> (core.shift() - 1)).is_err(), "depth {depth}");
            }
            for groups in [1, 32, 672, 5000] {
                let multiplier = i64::from(core.multiplier_max(groups));
                assert!(multiplier >= 1);
                let largest = i64::from((most + core.half()) >> core.shift()) * groups as i64 * multiplier;
                assert!(largest <= i64::from(i32::MAX), "depth {depth}, {groups} groups");
            }
        }
    }

    #[test]
    fn every_row_belongs_to_one_core_and_every_array_row_to_one_column() {
        for columns in 1..=4 {
            let core = CoreTile { rows: 16, cols: 16, depth: 32, epilogue: Epilogue::Scale };
            let shape = GemmShape::padded(80, 20, 65, columns, core);
            assert_eq!((shape.rows, shape.depth), (128, 128));
            let mut rows: Vec<usize> = (0..shape.row_tiles())
                .flat_map(|tile| (0..4).flat_map(move |array_row| (0..16).map(move |row| (tile, array_row, row))))
                .map(|(tile, array_row, row)| shape.matrix_row(tile, array_row, row))
                .collect();
            rows.sort_unstable();
            assert_eq!(rows, (0..shape.rows).collect::<Vec<_>>());
            let fed: Vec<usize> = (0..columns).flat_map(|column| shape.array_rows_of(column)).collect();
            assert_eq!(fed, [0, 1, 2, 3]);
        }
    }
}
