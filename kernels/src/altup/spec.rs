//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one prediction or correction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AltUpSpec {
    /// Which of the two it is.
    pub form: AltUpForm,
    /// Elements of a row of a stream.
    pub width: usize,
    /// Elements between rows, the same for all operands.
    pub stride: usize,
    /// Streams, the active one included: at least 2.
    pub streams: usize,
    /// Added to the mean square of the router's norm.
    pub eps: Number,
    /// Invocations of a workgroup: a multiple of the subgroup's.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

/// Where in a layer the streams are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AltUpForm {
    /// In front of it, from those of the layer before.
    Predict,
    /// Behind it, from its result and those that were predicted.
    Correct,
}

impl AltUpSpec {
    /// Element of the weights at which the router's matrix (streams, width) begins: behind the weights of its norm (width).
    pub(super) fn router_at(&self) -> usize {
        self.width
    }

    /// Element at which the coefficients begin: (streams², streams) of a prediction, (streams, streams) of a correction, behind which are
    /// the factors of what is scaled (width).
    pub(super) fn coefs_at(&self) -> usize {
        self.router_at() + self.streams * self.width
    }

    /// Element of a correction's weights at which the factors begin.
    pub(super) fn scale_at(&self) -> usize {
        self.coefs_at() + self.streams * self.streams
    }
}

impl Kernel for AltUpSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let streams = [Role::Step, Role::Input, Role::Streams, Role::Output, Role::MadeStreams, Role::StreamWeights];
        let of_correction: &[Role] = match self.form {
            AltUpForm::Predict => &[],
            AltUpForm::Correct => &[Role::Second, Role::ScaledOutput],
        };
        bindings(streams.into_iter().chain(of_correction.iter().copied()))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(0)
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", self.lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("ROUTER", self.router_at())
            .size("COEFS", self.coefs_at())
            .size("FACTORS", self.scale_at())
            .count("STREAMS", self.streams)
            .number("EPS", self.eps.get())
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("PREDICT", self.form == AltUpForm::Predict)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
