//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::ActivationFormat;
use crate::gemm::Product;
use crate::kernel::{Kernel, RowAxis};
use crate::lane_tile::LaneTile;
use crate::layout::{WeightFormat, WeightLayout};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::render;

/// Columns of a group of weights.
const GROUP_COLS: usize = 32;
/// Columns that are multiplied between two barriers: those of a word of INT4.
const QUARTER_COLS: usize = 8;
/// Quarters of a group in workgroup memory: one is multiplied while the next is written. Few of them leave memory for more workgroups.
const BUFFERS: usize = 2;

/// Parameters of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FloatGemmSpec {
    /// What is multiplied, and where the result goes. Its input is f32, whatever `Product::input` is.
    pub product: Product,
    /// How a workgroup divides it; [`FloatGemmSpec::fits`] checks which tiles are possible.
    pub tile: LaneTile,
}

impl FloatGemmSpec {
    /// Whether the kernel supports such a matrix: INT4 or INT8 weights in whole groups of 32 columns.
    pub fn takes(layout: &WeightLayout) -> bool {
        (layout.format.has_nibbles() || layout.format == WeightFormat::Int8) && layout.cols.is_multiple_of(GROUP_COLS)
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(tile: &LaneTile) -> usize {
        BUFFERS * QUARTER_COLS * (tile.matrix_rows + tile.step_rows) * size_of::<f32>()
    }

    /// Whether a lane's part of the tile is whole vectors of four in both directions, and lanes are pairs with the same matrix rows.
    pub fn fits(tile: &LaneTile) -> bool {
        tile.is_whole()
            && tile.lane_tiles.is_multiple_of(4)
            && tile.lane_rows.is_multiple_of(4)
            && tile.step_rows.is_multiple_of(2 * tile.lane_rows)
    }
}

impl Kernel for FloatGemmSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Weights, Role::Output, Role::InputQuads];
        bindings(roles.into_iter().chain(self.product.bias.then_some(Role::Bias)))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        self.tile.workgroups(&self.product.layout, rows)
    }

    fn row_axis(&self) -> Option<RowAxis> {
        Some(RowAxis { axis: 0, rows: self.tile.step_rows })
    }

    fn wgsl(&self) -> String {
        let (product, tile) = (&self.product, &self.tile);
        let layout = &product.layout;
        assert!(Self::fits(tile), "lanes own equal parts, found {tile:?}");
        assert!(Self::takes(layout), "weights are integers in whole groups, found {layout:?}");
        let values = layout.format.values("MATRIX", product.values(ActivationFormat::F32));
        let values = tile
            .values(layout, values)
            .text("DECLARATIONS", declarations(&self.bindings()))
            .count("MATRIX_QUADS", tile.matrix_rows / 4)
            .count("STEP_QUADS", tile.step_rows / 4)
            .count("ACTIVATION_LOADS", (tile.step_rows * QUARTER_COLS / 4).div_ceil(tile.lanes()))
            .count("QUARTER_COLS", QUARTER_COLS)
            .count("GROUPS", layout.cols / GROUP_COLS);
        render(include_str!("kernel.wgsl"), &values)
    }
}
