//! Shapes of one core's work, and the layout of the objects that its streams carry.
//!
//! ```text
//! activation object   rows/4 × depth/16 blocks of 4×16 i8, row-major inside │ rows/16 × 32 i8: multipliers │ rows f32: row scales
//! weight object       cols/8 × depth/16 blocks of 16×8 i4, low nibble first │ cols/8 × 32 i8: multipliers │ cols f32: column scales
//! output object       4 rows × outputs bf16, row-major
//! ```
//!
//! An object holds one group of k, `depth`. The multipliers of 8 columns are stored four times, once for each row of a block, so
//! that one vector load gives the 32 lanes that they multiply; for the same reason, the multipliers of the four rows of a block of activations are stored
//! eight times, once for each column. Blocks of activations that a core has in registers at a time (four, in a GEMV two) have the same multipliers. Scales
//! travel with every object: a third stream would not fit into a core's two channels.

use unicorn_artifact::{NpuProgram, NpuShape};

use crate::Activation;

/// Version of these layouts and of the numbers in them, by which an artifact's programs and weights are recognised: 3. Artifacts of the versions before
/// did not record it: weights of 1 are not rotated ([`super::rotation`]), and activations of 1 and 2 have no multipliers.
pub const LAYOUT: u32 = 3;
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
/// Most groups of k in a sum: with more, none of them would have a bit in an i32.
pub const GROUPS_MAX: usize = 1 << 16;
/// Largest multiplier of a group, of weights and of activations; the smallest is 1.
pub const MULTIPLIER_MAX: i32 = 127;
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
    /// Groups of k in a sum, which with more of them has fewer bits for each.
    pub groups: usize,
    /// What is done with the sums.
    pub epilogue: Epilogue,
}

impl CoreTile {
    /// A core's share of a sum of one group: [`GemmShape::padded`] sets how many there are.
    pub fn new(rows: usize, cols: usize, depth: usize, epilogue: Epilogue) -> CoreTile {
        CoreTile { rows, cols, depth, groups: 1, epilogue }
    }

    /// Bytes of an activation object.
    pub fn activation_bytes(&self) -> usize {
        self.row_scales_at() + 4 * self.rows
    }

    /// Offset of the multipliers in an activation object.
    pub fn row_multipliers_at(&self) -> usize {
        self.rows * self.depth
    }

    /// Rows of a tile whose activations have the same multiplier in a group, [`BLOCK_ROWS`] apart: one of each block in registers.
    pub fn sharing_rows(&self) -> usize {
        self.register_rows()
    }

    /// Multipliers of a group: one for each row of a block, for all blocks in registers.
    pub fn row_multipliers(&self) -> usize {
        self.rows / self.sharing_rows()
    }

    /// The multiplier of a row of the tile, as its place among those of a group.
    pub fn row_multiplier_of(&self, row: usize) -> usize {
        row / (BLOCK_ROWS * self.sharing_rows()) * BLOCK_ROWS + row % BLOCK_ROWS
    }

    /// Offset of the row scales in an activation object.
    pub fn row_scales_at(&self) -> usize {
        self.row_multipliers_at() + self.row_multipliers() * BLOCK_COLS
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

    /// Bits by which the product of a column's and a row's multiplier is shifted, at least 1, so that the sum over all groups stays within an i32.
    pub fn multiplier_shift(&self) -> u32 {
        let most = i64::from(self.group_max()) * self.groups.max(1) as i64;
        let fits =
            |shift: &u32| most * i64::from(self.multiplier(MULTIPLIER_MAX, MULTIPLIER_MAX, *shift)) <= i32::MAX.into();
        (1..=14).find(fits).expect("a sum has at most GROUPS_MAX groups")
    }

    /// Half of what that shift removes: added first, it rounds to nearest.
    pub fn multiplier_half(&self) -> i32 {
        (1 << self.multiplier_shift()) >> 1
    }

    /// What a group's sum is multiplied by: the column's multiplier times the row's, in at most 15 bits.
    pub fn multiplier_of(&self, column: i32, row: i32) -> i32 {
        self.multiplier(column, row, self.multiplier_shift())
    }

    fn multiplier(&self, column: i32, row: i32, shift: u32) -> i32 {
        (column * row + ((1 << shift) >> 1)) >> shift
    }

    /// Largest magnitude of a group's sum, shifted.
    fn group_max(&self) -> i32 {
        (self.depth as i32 * ACTIVATION_MAX * -CODE_MIN + self.half()) >> self.shift()
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
        shape.core.groups = shape.chunks();
        shape
    }

    /// The shape of an artifact's program, by its record; `None`: its activation is unknown, or its cores compute no sums, or sums of too many groups.
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
        let [core_rows, core_cols, core_depth] = [core_rows, core_cols, core_depth].map(|size| size as usize);
        let groups = depth.checked_div(core_depth).filter(|groups| *groups <= GROUPS_MAX)?;
        let core = CoreTile { rows: core_rows, cols: core_cols, depth: core_depth, groups, epilogue };
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

    /// All sets of rows that have the same multipliers of activations.
    pub fn sharing_rows(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        let [_, array_rows] = self.activation_spread();
        let apart = array_rows * BLOCK_ROWS;
        let window = self.sharing_window();
        (0..self.rows)
            .filter(move |row| row % window < apart)
            .map(move |first| (first..first + window).step_by(apart).collect())
    }

    /// Consecutive rows of which none shares a multiplier with another row.
    pub fn sharing_window(&self) -> usize {
        let [_, array_rows] = self.activation_spread();
        array_rows * BLOCK_ROWS * self.core.sharing_rows()
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
            let core = CoreTile::new(64, 96, depth, Epilogue::Scale);
            let most = depth as i32 * ACTIVATION_MAX * -CODE_MIN;
            assert!(i16::try_from((most + core.half()) >> core.shift()).is_ok(), "depth {depth}");
            assert!(i16::try_from((-most + core.half()) >> core.shift()).is_ok(), "depth {depth}");
            if core.shift() > 0 {
                assert!(i16::try_from((most + core.half()) >> (core.shift() - 1)).is_err(), "depth {depth}");
            }
            for groups in [1, 32, 672, 5000] {
                let core = CoreTile { groups, ..core };
                let multiplier = i64::from(core.multiplier_of(MULTIPLIER_MAX, MULTIPLIER_MAX));
                assert!(multiplier >= 1 && i16::try_from(multiplier).is_ok());
                let largest = i64::from((most + core.half()) >> core.shift()) * groups as i64 * multiplier;
                assert!(largest <= i64::from(i32::MAX), "depth {depth}, {groups} groups");
                // No bit is given away: with one more, it would not fit.
                assert!(
                    core.multiplier_shift() == 1 || largest > i64::from(i32::MAX / 3),
                    "depth {depth}, {groups} groups"
                );
            }
        }
    }

    #[test]
    fn each_row_is_in_one_set_of_rows_that_share_multipliers() {
        for core in [CoreTile::new(32, 16, 32, Epilogue::Scale), CoreTile::new(GEMV_ROWS, 16, 32, Epilogue::Scale)] {
            let shape = GemmShape::padded(4 * core.rows, 16, 64, 2, core);
            let [_, array_rows] = shape.activation_spread();
            let places =
                (0..shape.row_tiles()).flat_map(|tile| (0..array_rows).map(move |array_row| (tile, array_row)));
            let mut expected: Vec<Vec<usize>> = places
                .flat_map(|(tile, array_row)| {
                    let of = |one: usize| (0..core.rows).filter(move |row| core.row_multiplier_of(*row) == one);
                    let rows = move |one: usize| of(one).map(|row| shape.matrix_row(tile, array_row, row)).collect();
                    (0..core.row_multipliers()).map(rows).collect::<Vec<Vec<usize>>>()
                })
                .collect();
            expected.sort_unstable();
            assert_eq!(shape.sharing_rows().collect::<Vec<_>>(), expected);
        }
    }

    /// A core has the blocks of four rows, one below the other, in registers: its rows of the same place in those have one multiplier.
    #[test]
    fn rows_of_the_same_place_in_the_blocks_in_registers_share_a_multiplier() {
        let core = CoreTile::new(32, 16, 32, Epilogue::Scale);
        assert_eq!((core.sharing_rows(), core.row_multipliers()), (4, 8));
        let of_rows = |rows: &[usize]| rows.iter().map(|row| core.row_multiplier_of(*row)).collect::<Vec<_>>();
        assert_eq!(of_rows(&[0, 4, 8, 12, 1, 5, 15, 16, 17, 31]), [0, 0, 0, 0, 1, 1, 3, 4, 5, 7]);
        let gemv = CoreTile::new(GEMV_ROWS, 16, 32, Epilogue::Scale);
        assert_eq!((gemv.sharing_rows(), gemv.row_multipliers()), (2, 4));
        assert_eq!((0..8).map(|row| gemv.row_multiplier_of(row)).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn every_row_belongs_to_one_core_and_every_array_row_to_one_column() {
        for columns in 1..=4 {
            let core = CoreTile::new(16, 16, 32, Epilogue::Scale);
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
