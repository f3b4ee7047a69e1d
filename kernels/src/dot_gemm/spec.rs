//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::{ActivationFormat, Precision, group_words_at, groups};
use crate::gemm::Product;
use crate::kernel::{Kernel, RowAxis};
use crate::lane_tile::LaneTile;
use crate::layout::{WORD_BYTES, WeightFormat};
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
    pub tile: LaneTile,
}

impl DotGemmSpec {
    /// Bytes of workgroup memory, for activations of this precision.
    pub fn shared_bytes(tile: &LaneTile, input: Precision) -> usize {
        BUFFERS * WORD_BYTES * (tile.matrix_rows * row_words(1) + tile.step_rows * row_words(input.planes()))
    }
}

/// Words of a row's codes of a group, and one more that begins with their scale: an odd number puts eight rows in different banks.
fn row_words(planes: usize) -> usize {
    2 * planes + 1
}

impl Kernel for DotGemmSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Weights, Role::Output, Role::QuantizedInput];
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
        assert!(tile.is_whole(), "lanes own equal parts, found {tile:?}");
        assert!(layout.format != WeightFormat::F16, "weights are integers");
        let planes = product.input.planes();
        let format = ActivationFormat::Quantized(product.input);
        let values = layout.format.values("MATRIX", product.values(format));
        let values = tile
            .values(layout, values)
            .size("WEIGHT_ROW_WORDS", row_words(1))
            .size("ACTIVATION_ROW_WORDS", row_words(planes))
            .size("GROUP_WORDS_AT", group_words_at(layout.cols, product.input))
            .text("DECLARATIONS", declarations(&self.bindings()))
            .count("BUFFERS", BUFFERS)
            .count("PLANES", planes)
            .count("ACTIVATION_LOADS", (tile.step_rows * 2 * planes).div_ceil(tile.lanes()))
            .count("GROUPS", groups(layout.cols));
        render(include_str!("kernel.wgsl"), &values)
    }
}
