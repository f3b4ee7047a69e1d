//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::{Kernel, RowAxis};
use crate::npu::rotation::{FACTOR, ROTATED};
use crate::npu::tile::{ACTIVATION_MAX, BLOCK_COLS, BLOCK_DEPTH, BLOCK_ROWS, GemmShape, MULTIPLIER_MAX};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one conversion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NpuInputSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows of the input: a multiple of 4.
    pub stride: usize,
    /// Rows of the NPU program; those that the step does not have become 0.
    pub rows: usize,
    /// Values of k of the NPU program; those from `width` on become 0.
    pub depth: usize,
    /// Columns of the array through which activations enter.
    pub columns: usize,
    /// Rows of the array with different activations.
    pub array_rows: usize,
    /// Rows of a core's tile.
    pub core_rows: usize,
    /// Values of k of an object: a group.
    pub core_depth: usize,
    /// Rows that share the multiplier of a group, [`BLOCK_ROWS`] × `array_rows` apart.
    pub sharing_rows: usize,
    /// Epsilon of the RMS norm of the rows, which are read before it; `None`: they are converted as they are.
    pub norm_eps: Option<Number>,
    /// Invocations of a workgroup: a multiple of 8.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

impl NpuInputSpec {
    /// The spec for rows of `width` elements, converted as they are, and a program of this shape.
    pub fn of(shape: &GemmShape, width: usize, stride: usize, lanes: usize, subgroup_size: u32) -> NpuInputSpec {
        let GemmShape { rows, depth, core, .. } = *shape;
        let [columns, array_rows] = shape.activation_spread();
        NpuInputSpec {
            width,
            stride,
            rows,
            depth,
            columns,
            array_rows,
            core_rows: core.rows,
            core_depth: core.depth,
            sharing_rows: core.sharing_rows(),
            norm_eps: None,
            lanes: lanes.min(LANES_MAX),
            subgroup_size,
        }
    }
}

/// Most groups of a row: a workgroup keeps 4 bytes of each in its memory, of which every device has 16 KiB, and 20 bytes of each of its lanes.
const GROUPS_MAX: usize = 2 << 10;
/// Most lanes of a workgroup.
const LANES_MAX: usize = 256;
/// Values of k that eight lanes rotate, four each.
const _: () = assert!(ROTATED == 8 * 4);

impl NpuInputSpec {
    /// Rows of a workgroup's share of consecutive rows ([`GemmShape::sharing_window`]), and of the workgroups that divide it.
    fn window(&self) -> [usize; 2] {
        let apart = BLOCK_ROWS * self.array_rows;
        [apart * self.sharing_rows, apart]
    }
}

impl Kernel for NpuInputSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let norm_weight = self.norm_eps.map(|_| Role::NormWeight);
        bindings([Role::Step, Role::InputQuads, Role::Encoded].into_iter().chain(norm_weight))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        assert!(rows <= self.rows, "{rows} rows for an NPU program of {}", self.rows);
        let [window, apart] = self.window();
        [self.rows / window, apart, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        let [rows, _] = self.window();
        Some(RowAxis { axis: 0, rows })
    }

    fn wgsl(&self) -> String {
        assert!(self.depth.is_multiple_of(ROTATED), "depth {} is not blocks of {ROTATED}", self.depth);
        assert!(self.stride.is_multiple_of(4), "rows are {} elements apart, expected a multiple of 4", self.stride);
        let groups = self.depth / self.core_depth;
        assert!(groups <= GROUPS_MAX, "{groups} groups in a row, expected at most {GROUPS_MAX}");
        let code_words = self.core_rows * self.core_depth / 4;
        let multiplier_words = self.core_rows / self.sharing_rows * BLOCK_COLS / 4;
        let [_, apart] = self.window();
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("ROW_QUADS", self.depth / 4)
            .size("COLUMNS", self.columns)
            .size("CHUNKS", groups)
            .size("SHARING", self.sharing_rows)
            .size("APART", apart)
            .size("CORE_DEPTH", self.core_depth)
            .size("TILE_ROWS", self.array_rows * self.core_rows)
            .size("ARRAY_ROWS", self.array_rows)
            .size("BLOCK_ROWS", BLOCK_ROWS)
            .size("BLOCK_DEPTH", BLOCK_DEPTH)
            .size("MULTIPLIERS_AT", code_words)
            .size("SCALES_AT", code_words + multiplier_words)
            .size("OBJECT_WORDS", code_words + multiplier_words + self.core_rows)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("NORM", self.norm_eps.is_some())
            .number("EPS", self.norm_eps.map_or(0.0, Number::get))
            .number("CODE_MAX", ACTIVATION_MAX as f32)
            .number("MULTIPLIER_MAX", MULTIPLIER_MAX as f32)
            .number("FACTOR", FACTOR)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
