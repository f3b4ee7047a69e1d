//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activations::{ActivationFormat, Precision, group_words_at, groups};
use crate::gemm::Product;
use crate::kernel::Kernel;
use crate::layout::{TILE_ROWS, WORD_BYTES, WeightFormat};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::render;

/// Stages in workgroup memory: one is multiplied while the next is written.
const BUFFERS: usize = 2;

/// Parameters of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DotGemmSpec {
    /// What is multiplied, INT4 or INT8 weights, and where the result goes.
    pub product: Product,
    /// How a workgroup divides it.
    pub tile: DotGemmTile,
}

/// How a workgroup cuts the result; chosen per device and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DotGemmTile {
    /// Matrix rows of a workgroup.
    pub matrix_rows: usize,
    /// Rows of the step of a workgroup.
    pub step_rows: usize,
    /// Tiles of 8 matrix rows of a lane, which has one row of each; a multiple of 2.
    pub lane_tiles: usize,
    /// Rows of the step of a lane.
    pub lane_rows: usize,
}

impl DotGemmTile {
    /// Invocations of a workgroup.
    pub fn lanes(&self) -> usize {
        self.matrix_rows / self.lane_tiles * (self.step_rows / self.lane_rows)
    }

    /// Bytes of workgroup memory, for activations of this precision.
    pub fn shared_bytes(&self, input: Precision) -> usize {
        BUFFERS * WORD_BYTES * (self.matrix_rows * row_words(1) + self.step_rows * row_words(input.planes()))
    }

    /// Whether lanes own equal parts of it, and gate and up of a row belong to one.
    pub fn is_whole(&self) -> bool {
        let DotGemmTile { matrix_rows, step_rows, lane_tiles, lane_rows } = *self;
        lane_tiles > 0
            && lane_rows > 0
            && lane_tiles.is_multiple_of(2)
            && matrix_rows.is_multiple_of(TILE_ROWS * lane_tiles)
            && step_rows.is_multiple_of(lane_rows)
            && self.lanes() > 0
    }
}

/// Words of a row's codes of a group, and one more that begins with their scale: their odd number leaves eight rows in different banks.
fn row_words(planes: usize) -> usize {
    2 * planes + 1
}

impl Kernel for DotGemmSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Weights, Role::Output, Role::QuantizedInput];
        bindings(roles.into_iter().chain(self.product.bias.then_some(Role::Bias)))
    }

    /// Neighbouring workgroups take the same weights, so that these come from memory once.
    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows.div_ceil(self.tile.step_rows), self.product.layout.rows.div_ceil(self.tile.matrix_rows), 1]
    }

    fn wgsl(&self) -> String {
        let (product, tile) = (&self.product, &self.tile);
        let layout = &product.layout;
        assert!(tile.is_whole(), "lanes own equal parts, found {tile:?}");
        assert!(layout.format != WeightFormat::F16, "weights are integers");
        let planes = product.input.planes();
        let format = ActivationFormat::Quantized(product.input);
        let values = layout.format.values("MATRIX", product.values(format));
        let values = values
            .size("MATRIX_ROWS", tile.matrix_rows)
            .size("STEP_ROWS", tile.step_rows)
            .size("WEIGHT_ROW_WORDS", row_words(1))
            .size("ACTIVATION_ROW_WORDS", row_words(planes))
            .size("GROUP_WORDS_AT", group_words_at(layout.cols, product.input))
            .text("WORKGROUP_SIZE", tile.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .count("LANES", tile.lanes())
            .count("LANE_ROWS", tile.lane_rows)
            .count("LANE_TILES", tile.lane_tiles)
            .count("ACROSS", tile.matrix_rows / (TILE_ROWS * tile.lane_tiles))
            .count("BUFFERS", BUFFERS)
            .count("PLANES", planes)
            .count("WEIGHT_LOADS", tile.matrix_rows.div_ceil(tile.lanes()))
            .count("ACTIVATION_LOADS", (tile.step_rows * 2 * planes).div_ceil(tile.lanes()))
            .count("MATRIX_ROWS_WITHOUT_PADDING", layout.rows)
            .count("GROUPS", groups(layout.cols))
            .count("TILES", layout.tiles())
            .count("TILE_WORDS", layout.blocks_per_tile() * layout.format.block_words());
        render(include_str!("kernel.wgsl"), &values)
    }
}
