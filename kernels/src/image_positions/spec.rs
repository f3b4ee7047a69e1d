//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations, rows_of_step};
use crate::template::{Values, render};

/// Parameters of one addition of positions; the step has a row for each square of patches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImagePositionsSpec {
    /// Elements of a patch's row.
    pub width: usize,
    /// Elements between rows of input and output.
    pub stride: usize,
    /// Learned positions from left to right, and from top to bottom: [`Role::Bias`] has (positions, positions, width) f32.
    pub positions: usize,
    /// Patches of a row of the step from left to right, and from top to bottom.
    pub side: usize,
}

const WORKGROUP: usize = 64;

impl Kernel for ImagePositionsSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Input, Role::Bias, Role::Output])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.width.div_ceil(WORKGROUP), rows, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("POSITIONS", self.positions)
            .size("SIDE", self.side)
            .size("WORKGROUP", WORKGROUP)
            .text("ROWS", rows_of_step(self.side * self.side))
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
