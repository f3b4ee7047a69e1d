//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of the routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EveryMatrixSpec {
    /// Matrices of the stack.
    pub matrices: usize,
    /// Words between rows of the routes.
    pub output_stride: usize,
}

const WORKGROUP: usize = 64;

impl Kernel for EveryMatrixSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::MadeRoutes])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.matrices.div_ceil(WORKGROUP), rows, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("MATRICES", self.matrices)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
