//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activations::ActivationFormat;
use crate::gemm::Product;
use crate::kernel::Kernel;
use crate::lane_tile::LaneTile;
use crate::layout::{WeightFormat, WeightLayout};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::render;

/// Columns of a stage: those of a group of weights.
const STAGE_COLS: usize = 32;
/// Columns of a stage whose products follow one another without a branch. Measured on an H100: 1 to 8 are slower by up to a half, 32 is not faster.
const UNROLL: usize = 16;

/// Parameters of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FloatGemmSpec {
    /// What is multiplied, and where the result goes. Its input is f32, whatever `Product::input` is.
    pub product: Product,
    /// How a workgroup divides it: a shape of [`FloatGemmSpec::fits`].
    pub tile: LaneTile,
}

impl FloatGemmSpec {
    /// Whether the kernel multiplies by such a matrix: INT4 or INT8 weights in whole groups of 32 columns.
    pub fn takes(layout: &WeightLayout) -> bool {
        (layout.format.is_int4() || layout.format == WeightFormat::Int8) && layout.cols.is_multiple_of(STAGE_COLS)
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(tile: &LaneTile) -> usize {
        STAGE_COLS * (tile.matrix_rows + tile.step_rows) * size_of::<f32>()
    }

    /// Whether a lane's part of the tile is whole vectors of four in both directions.
    pub fn fits(tile: &LaneTile) -> bool {
        tile.is_whole() && tile.lane_tiles.is_multiple_of(4) && tile.lane_rows.is_multiple_of(4)
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

    fn wgsl(&self) -> String {
        let (product, tile) = (&self.product, &self.tile);
        let layout = &product.layout;
        assert!(Self::fits(tile), "lanes own equal parts, found {tile:?}");
        assert!(Self::takes(layout), "weights are integers in whole groups, found {layout:?}");
        let values = layout.format.values("MATRIX", product.values(ActivationFormat::F32));
        let values = tile
            .values(layout, values)
            .text("DECLARATIONS", declarations(&self.bindings()))
            .count("STAGE_COLS", STAGE_COLS)
            .count("UNROLL", UNROLL)
            .count("MATRIX_QUADS", tile.matrix_rows / 4)
            .count("STEP_QUADS", tile.step_rows / 4)
            .count("ACTIVATION_LOADS", (tile.step_rows * STAGE_COLS / 4).div_ceil(tile.lanes()))
            .count("STAGES", layout.cols / STAGE_COLS);
        render(include_str!("kernel.wgsl"), &values)
    }
}
