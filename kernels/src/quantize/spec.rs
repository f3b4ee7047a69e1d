//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::ActivationFormat;
use crate::kernel::{Kernel, RowAxis};
use crate::role::{BindingSpec, Role, bindings, declarations, rows_of_step};
use crate::template::{Values, render};

/// Parameters of one quantisation of activations; `activation_format::encode_row` is its twin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QuantizeSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows of the input, and words between rows of the output.
    pub stride: usize,
    /// Format of the output, not `F32`.
    pub format: ActivationFormat,
    /// Invocations of a workgroup: a multiple of 8.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// Rows for each row of the step: in a mixture of experts, one for each expert of a row.
    pub rows_per_token: usize,
}

impl Kernel for QuantizeSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::InputQuads, Role::Encoded])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(0)
    }

    fn wgsl(&self) -> String {
        assert!(self.format != ActivationFormat::F32, "f32 rows need no kernel");
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("ROWS", rows_of_step(self.rows_per_token))
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &self.format.row_values(self.width, values))
    }
}
