//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one operation on streams.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamsSpec {
    /// What is made.
    pub form: StreamsForm,
    /// Elements of a row of a stream.
    pub width: usize,
    /// Elements between rows, the same for all operands.
    pub stride: usize,
    /// Streams beside the active one: at least 1.
    pub others: usize,
    /// Added to the mean square of a norm.
    pub eps: Number,
    /// Invocations of a workgroup: a multiple of the subgroup's.
    pub lanes: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

/// What is made of a row and the rows of streams that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StreamsForm {
    /// The streams, with the row's magnitude.
    Begin,
    /// The streams plus a norm of the row.
    Add,
    /// The mean of the row and the streams, which have its magnitude.
    End,
}

/// The least mean square of a stream that is compared with the row's.
pub(super) const LEAST_SQUARE: f32 = 1e-5;

impl Kernel for StreamsSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let made: &[Role] = match self.form {
            StreamsForm::Begin => &[Role::MadeStreams],
            StreamsForm::Add => &[Role::MadeStreams, Role::StreamWeights],
            StreamsForm::End => &[Role::Output],
        };
        bindings([Role::Step, Role::Input, Role::Streams].into_iter().chain(made.iter().copied()))
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
            .count("OTHERS", self.others)
            .number("EPS", self.eps.get())
            .number("LEAST_SQUARE", LEAST_SQUARE)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("ADD", self.form == StreamsForm::Add)
            .flag("END", self.form == StreamsForm::End)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
