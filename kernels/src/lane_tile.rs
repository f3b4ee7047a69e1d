//! How a GEMM without matrix units is divided: a workgroup computes a tile of the result, a lane a part of it in its registers.

use serde::{Deserialize, Serialize};

use crate::layout::{TILE_ROWS, WeightLayout};
use crate::template::Values;

/// A workgroup's part of the result, and a lane's part of that; chosen per device and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneTile {
    /// Matrix rows of a workgroup.
    pub matrix_rows: usize,
    /// Rows of the step of a workgroup.
    pub step_rows: usize,
    /// Tiles of 8 matrix rows of which a lane has one row each; a multiple of 2.
    pub lane_tiles: usize,
    /// Rows of the step of a lane.
    pub lane_rows: usize,
}

impl LaneTile {
    /// Invocations of a workgroup.
    pub fn lanes(&self) -> usize {
        self.across() * TILE_ROWS * (self.step_rows / self.lane_rows)
    }

    /// Lanes side by side along the matrix rows, eight of them counted as one.
    pub(crate) fn across(&self) -> usize {
        self.matrix_rows / (TILE_ROWS * self.lane_tiles)
    }

    /// Whether lanes own equal parts of it, and gate and up of a row belong to one.
    pub fn is_whole(&self) -> bool {
        let LaneTile { matrix_rows, step_rows, lane_tiles, lane_rows } = *self;
        lane_tiles > 0
            && lane_rows > 0
            && lane_tiles.is_multiple_of(2)
            && matrix_rows.is_multiple_of(TILE_ROWS * lane_tiles)
            && step_rows.is_multiple_of(lane_rows)
            && self.lanes() > 0
    }

    /// Workgroups for `rows` rows of the step. Neighbours take the same weights, so that these come from memory once.
    pub(crate) fn workgroups(&self, layout: &WeightLayout, rows: usize) -> [usize; 3] {
        [rows.div_ceil(self.step_rows), layout.rows.div_ceil(self.matrix_rows), 1]
    }

    /// Values for `lane_results`, and for what lanes load.
    pub(crate) fn values(&self, layout: &WeightLayout, values: Values) -> Values {
        values
            .size("MATRIX_ROWS", self.matrix_rows)
            .size("STEP_ROWS", self.step_rows)
            .text("WORKGROUP_SIZE", self.lanes())
            .count("LANES", self.lanes())
            .count("LANE_ROWS", self.lane_rows)
            .count("LANE_TILES", self.lane_tiles)
            .count("ACROSS", self.across())
            .count("WEIGHT_LOADS", self.matrix_rows.div_ceil(self.lanes()))
            .count("MATRIX_ROWS_WITHOUT_PADDING", layout.rows)
            .count("TILES", layout.tiles())
            .count("TILE_WORDS", layout.blocks_per_tile() * layout.format.block_words())
    }
}
