//! The kernel in plain loops, to check it by.

use super::spec::DotGemmSpec;
use crate::activation_format::ActivationFormat;
use crate::gemm::GemmInputs;

/// The kernel in plain loops: writes `output` (n_rows, output_stride).
pub fn twin(spec: &DotGemmSpec, inputs: &GemmInputs, output: &mut [f32]) {
    spec.product.twin(ActivationFormat::Quantized(spec.product.input), false, inputs, output);
}
