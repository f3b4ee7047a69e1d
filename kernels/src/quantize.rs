//! An f32 row as the integers that the next matmul reads, where the kernel that made it could not write them itself.
//!
//! Formats and formulas: `activations`. One workgroup a row, because a `Factored` row has one factor.

use serde::{Deserialize, Serialize};

use crate::activations::{self, ACTIVATION_GROUP, ActivationFormat};
use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one quantisation of activations; `activations::encode_row` is its twin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QuantizeSpec {
    pub width: usize,
    /// Elements between rows of the input, and words between rows of the output.
    pub stride: usize,
    /// Not `F32`.
    pub format: ActivationFormat,
    pub subgroup_size: u32,
}

/// No device has fewer lanes in a workgroup.
const WORKGROUP: usize = 128;

impl QuantizeSpec {
    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::InputQuads, Role::Encoded])
    }

    pub(crate) fn wgsl(&self) -> String {
        assert!(self.format != ActivationFormat::F32, "f32 rows need no kernel");
        let values = Values::default()
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("CODE_QUADS", activations::groups(self.width) * ACTIVATION_GROUP / 4)
            .size("WORKGROUP", WORKGROUP)
            .size("SUBGROUP", self.subgroup_size as usize)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("WORKGROUP_SIZE", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("wgsl/quantize.wgsl"), &self.format.row_values(self.width, values))
    }
}
