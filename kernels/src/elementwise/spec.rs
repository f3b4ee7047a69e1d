//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::kernel::Kernel;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one elementwise kernel over rows of `width`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ElementwiseSpec {
    /// The operation.
    pub op: ElementwiseOp,
    /// Elements of a row.
    pub width: usize,
    /// Elements between rows of the inputs.
    pub input_stride: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
}

/// What is computed for each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ElementwiseOp {
    /// `input + second`
    Add,
    /// `input + bias`
    Bias,
    /// `activation(input) * second`
    ActMul(Activation),
    /// `cap * tanh(input / cap)`
    SoftCap(Number),
}

const WORKGROUP: usize = 64;

impl Kernel for ElementwiseSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let second = match self.op {
            ElementwiseOp::Add | ElementwiseOp::ActMul(_) => Some(Role::Second),
            ElementwiseOp::Bias => Some(Role::Bias),
            ElementwiseOp::SoftCap(_) => None,
        };
        bindings([Role::Step, Role::Input, Role::Output].into_iter().chain(second))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.width.div_ceil(WORKGROUP), rows, 1]
    }

    fn wgsl(&self) -> String {
        let activation = if let ElementwiseOp::ActMul(activation) = self.op { Some(activation) } else { None };
        let cap = if let ElementwiseOp::SoftCap(cap) = self.op { cap.get() } else { 0.0 };
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .number("CAP", cap)
            .flag("ACTIVATION", activation.is_some())
            .flag("SOFTCAP", matches!(self.op, ElementwiseOp::SoftCap(_)))
            .flag("SILU", activation == Some(Activation::Silu))
            .flag("ADD", self.op == ElementwiseOp::Add)
            .flag("BIAS", self.op == ElementwiseOp::Bias)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
