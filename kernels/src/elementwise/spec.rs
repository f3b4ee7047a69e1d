//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};
use unicorn_artifact::step::IMAGE_ROW;

use crate::activation::Activation;
use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations, rows_of_step};
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
    /// Rows for each row of the step: in a mixture of experts, one for each expert of a row.
    pub rows_per_token: usize,
}

/// What is computed for each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ElementwiseOp {
    /// `input`
    Copy,
    /// `input + second`
    Add,
    /// `input + bias`
    Bias,
    /// `input + bias`, where each row has a bias of its own.
    RowBias,
    /// `input * bias[0]`
    Scale,
    /// `activation(input)`, of one that is not clamped
    Activate(Activation),
    /// `activation(input) * second`, see [`Activation`]
    ActMul(Activation),
    /// `cap * tanh(input / cap)`
    SoftCap(Number),
    /// `input * sigmoid(second)`, which has one element a row, `second_stride` apart.
    Gate {
        /// Elements between the gates of two rows.
        second_stride: usize,
    },
    /// `input * sigmoid(second)`
    GateEach,
    /// `input`, or `input + input_rows` where the row is one of an image: from column `first` of its row on.
    ImageFeatures {
        /// Column of [`Role::InputRows`] for the input's first.
        first: usize,
        /// Elements between rows of [`Role::InputRows`].
        stride: usize,
    },
    /// `activation(input) * second`, where `second` is wider: from its column `first` on.
    ActMulPart {
        /// See [`Activation`].
        activation: Activation,
        /// Column of `second` for the input's first.
        first: usize,
        /// Elements between rows of `second`.
        second_stride: usize,
    },
}

const WORKGROUP: usize = 64;

impl Kernel for ElementwiseSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let second = match self.op {
            ElementwiseOp::Add
            | ElementwiseOp::ActMul(_)
            | ElementwiseOp::ActMulPart { .. }
            | ElementwiseOp::Gate { .. }
            | ElementwiseOp::GateEach => Some(Role::Second),
            ElementwiseOp::Bias | ElementwiseOp::RowBias | ElementwiseOp::Scale => Some(Role::Bias),
            ElementwiseOp::ImageFeatures { .. } => Some(Role::InputRows),
            ElementwiseOp::Copy | ElementwiseOp::SoftCap(_) | ElementwiseOp::Activate(_) => None,
        };
        bindings([Role::Step, Role::Input, Role::Output].into_iter().chain(second))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.width.div_ceil(WORKGROUP), rows, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(1)
    }

    fn wgsl(&self) -> String {
        let activation = match self.op {
            ElementwiseOp::ActMul(activation)
            | ElementwiseOp::ActMulPart { activation, .. }
            | ElementwiseOp::Activate(activation) => Some(activation),
            _ => None,
        };
        let part = match self.op {
            ElementwiseOp::ActMulPart { first, second_stride, .. } => Some((first, second_stride)),
            ElementwiseOp::ImageFeatures { first, stride } => Some((first, stride)),
            _ => None,
        };
        let cap = if let ElementwiseOp::SoftCap(cap) = self.op { cap.get() } else { 0.0 };
        let gate = if let ElementwiseOp::Gate { second_stride } = self.op { Some(second_stride) } else { None };
        let values = Activation::values(activation, Values::default())
            .size("WIDTH", self.width)
            .size("SECOND_STRIDE", part.map(|(_, stride)| stride).or(gate).unwrap_or(0))
            .size("SECOND_FIRST", part.map_or(0, |(first, _)| first))
            .flag("IMAGE_FEATURES", matches!(self.op, ElementwiseOp::ImageFeatures { .. }))
            .text("IMAGE_ROW", format!("{IMAGE_ROW}u"))
            .flag("PART", part.is_some())
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .number("CAP", cap)
            .flag("ACTIVATION", activation.is_some())
            .flag("SOFTCAP", matches!(self.op, ElementwiseOp::SoftCap(_)))
            .flag("GATE", gate.is_some())
            .flag("GATE_EACH", self.op == ElementwiseOp::GateEach)
            .text("ROWS", rows_of_step(self.rows_per_token))
            .flag("COPY", self.op == ElementwiseOp::Copy)
            .flag("ADD", self.op == ElementwiseOp::Add)
            .flag("BIAS", self.op == ElementwiseOp::Bias)
            .flag("ROW_BIAS", self.op == ElementwiseOp::RowBias)
            .flag("ACTIVATE", matches!(self.op, ElementwiseOp::Activate(_)))
            .flag("SCALE", self.op == ElementwiseOp::Scale)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
