//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::{Kernel, RowAxis};
use crate::npu::rotation::{FACTOR, ROTATED};
use crate::npu::tile::{ACTIVATION_MAX, BLOCK_DEPTH, BLOCK_ROWS, GemmShape};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one conversion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NpuInputSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows of the input.
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
    /// Values of k of an object.
    pub core_depth: usize,
    /// Invocations of a workgroup: a multiple of 8.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

impl NpuInputSpec {
    /// The spec for rows of `width` elements and a program of this shape.
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
            lanes,
            subgroup_size,
        }
    }
}

impl Kernel for NpuInputSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Input, Role::Encoded])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        assert!(rows <= self.rows, "{rows} rows for an NPU program of {}", self.rows);
        [self.rows, 1, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(0)
    }

    fn wgsl(&self) -> String {
        assert!(self.depth.is_multiple_of(ROTATED), "depth {} is not blocks of {ROTATED}", self.depth);
        let code_words = self.core_rows * self.core_depth / 4;
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("BLOCKS", self.depth / ROTATED)
            .size("ROTATED", ROTATED)
            .size("QUADS", ROTATED / 4)
            .size("COLUMNS", self.columns)
            .size("CHUNKS", self.depth / self.core_depth)
            .size("CORE_DEPTH", self.core_depth)
            .size("TILE_ROWS", self.array_rows * self.core_rows)
            .size("ARRAY_ROWS", self.array_rows)
            .size("BLOCK_ROWS", BLOCK_ROWS)
            .size("BLOCK_DEPTH", BLOCK_DEPTH)
            .size("SCALES_AT", code_words)
            .size("OBJECT_WORDS", code_words + self.core_rows)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .number("CODE_MAX", ACTIVATION_MAX as f32)
            .number("FACTOR", FACTOR)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
