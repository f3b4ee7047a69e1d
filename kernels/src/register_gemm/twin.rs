//! The kernel in plain loops, to check it by.

use super::spec::RegisterGemmSpec;
use crate::activation_format::ActivationFormat;
use crate::gemm::GemmInputs;

/// The kernel in plain loops: writes `output` (n_rows, output_stride), in f32, also if the kernel writes `Halves`.
pub fn twin(spec: &RegisterGemmSpec, inputs: &GemmInputs, output: &mut [f32]) {
    spec.product.twin(ActivationFormat::Halves(spec.product.input), true, inputs, output);
}
