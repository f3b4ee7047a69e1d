//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::{Kernel, RowAxis};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one conversion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NpuOutputSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements of a row of the NPU program, with its padding: a multiple of 8.
    pub outputs: usize,
    /// Elements between rows of the output.
    pub stride: usize,
}

/// Elements that a lane converts: four words of bf16.
const LANE_VALUES: usize = 8;
const WORKGROUP: usize = 64;

impl Kernel for NpuOutputSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::QuantizedInput, Role::Output])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.width.div_ceil(LANE_VALUES * WORKGROUP), rows, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(1)
    }

    fn wgsl(&self) -> String {
        assert!(self.outputs.is_multiple_of(LANE_VALUES), "outputs of an NPU program come in blocks of 8 columns");
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("QUADS", self.outputs / LANE_VALUES)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
