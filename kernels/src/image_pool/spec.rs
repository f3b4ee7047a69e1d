//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one pooling; the step has a row for each square of patches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImagePoolSpec {
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows of input and output.
    pub stride: usize,
    /// Squares of patches from left to right.
    pub across: usize,
    /// Patches of a square from left to right, and from top to bottom.
    pub side: usize,
}

const WORKGROUP: usize = 64;

impl Kernel for ImagePoolSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Input, Role::Output])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.width.div_ceil(WORKGROUP), rows, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("ACROSS", self.across)
            .size("SIDE", self.side)
            .size("WORKGROUP", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
