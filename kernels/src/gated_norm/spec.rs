//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::kernel::Kernel;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one gated norm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatedNormSpec {
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements between rows of input and output.
    pub stride: usize,
    /// Elements between rows of the second input.
    pub gate_stride: usize,
    /// Columns of such a row before the first head.
    pub gate_first: usize,
    /// Epsilon of the RMS norm.
    pub eps: Number,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// What is done with the second input.
    pub form: GatedForm,
}

/// What becomes of a normed head and a second input of the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GatedForm {
    /// The product with SiLU of the second.
    Silu,
    /// The sum of both.
    Sum,
}

impl GatedNormSpec {
    fn workgroup(&self) -> usize {
        self.head_dim.next_multiple_of(self.subgroup_size.max(32) as usize).min(128)
    }
}

impl Kernel for GatedNormSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Input, Role::Second, Role::Output, Role::HeadNorm])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.heads, rows, 1]
    }

    fn wgsl(&self) -> String {
        let values = Activation::values(Some(Activation::Silu), Values::default())
            .size("HEAD_DIM", self.head_dim)
            .size("STRIDE", self.stride)
            .size("GATE_STRIDE", self.gate_stride)
            .size("GATE_FIRST", self.gate_first)
            .size("WORKGROUP", self.workgroup())
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", self.eps.get())
            .flag("SUM", self.form == GatedForm::Sum)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
