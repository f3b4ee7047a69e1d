//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations, rows_of_step};
use crate::template::{Values, render};

/// Parameters of one layer norm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LayerNormSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows of input and output.
    pub stride: usize,
    /// Added to the variance.
    pub eps: Number,
    /// Rows for each row of the step.
    pub rows_per_token: usize,
    /// Invocations of a workgroup: a multiple of the subgroup's.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

impl Kernel for LayerNormSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        // The bias is behind the weight.
        bindings([Role::Step, Role::Input, Role::Output, Role::Bias])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .count("SLOTS", self.width.div_ceil(self.lanes))
            .number("EPS", self.eps.get())
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("ROWS", rows_of_step(self.rows_per_token))
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
