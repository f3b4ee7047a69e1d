//! The kernel in plain loops, to check it by.

use super::spec::FloatGemmSpec;
use crate::activation_format::ActivationFormat;
use crate::gemm::GemmInputs;

/// The kernel in plain loops: writes `output` (n_rows, output_stride).
pub fn twin(spec: &FloatGemmSpec, inputs: &GemmInputs, output: &mut [f32]) {
    spec.product.twin(ActivationFormat::F32, false, inputs, output);
}
