//! The kernel in plain loops, to check it by.

use super::product::GemmInputs;
use super::spec::GemmSpec;
use crate::activation_format::ActivationFormat;

/// The kernel in plain loops: writes `output` (n_rows, output_stride).
pub fn twin(spec: &GemmSpec, inputs: &GemmInputs, output: &mut [f32]) {
    spec.product.twin(ActivationFormat::RowScaled(spec.product.input), true, inputs, output);
}
