//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one product.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SparseActMulSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows, the same for all operands.
    pub stride: usize,
    /// The activation of gates that are kept.
    pub activation: Activation,
    /// Standard deviations above the mean at which gates begin to be kept.
    pub deviations: Number,
    /// Invocations of a workgroup: a multiple of the subgroup's.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

impl Kernel for SparseActMulSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Input, Role::Second, Role::Output])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(0)
    }

    fn wgsl(&self) -> String {
        let values = Activation::values(Some(self.activation), Values::default())
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("DEVIATIONS", self.deviations.get())
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
