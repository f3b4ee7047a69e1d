//! MXFP4 as gpt-oss' folders have it, by the OCP Microscaling specification: blocks of 32 E2M1 numbers, two a byte, and an E8M0 scale each.

use super::tensor::Tensor;

/// E2M1 without its sign, the code's fourth bit.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The stack (experts, inputs, outputs) of `blocks`, bytes of (experts, outputs, inputs / 32, 16), and `scales`, bytes of (experts,
/// outputs, inputs / 32).
pub fn stack(blocks: &Tensor, scales: &Tensor) -> Tensor {
    let [experts, outputs, groups, 16] = blocks.shape[..] else { panic!("blocks have shape {:?}", blocks.shape) };
    assert_eq!(scales.shape, [experts, outputs, groups]);
    let inputs = 32 * groups;
    let weight = |expert: usize, input: usize, output: usize| {
        let element = (expert * outputs + output) * inputs + input;
        let byte = blocks.values[element / 2] as u8;
        let code = if element.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        let magnitude = E2M1[usize::from(code & 7)] * (scales.values[element / 32] - 127.0).exp2();
        if code & 8 == 0 { magnitude } else { -magnitude }
    };
    let of_input = |expert, input| (0..outputs).map(move |output| weight(expert, input, output));
    let values = (0..experts).flat_map(|expert| (0..inputs).flat_map(move |input| of_input(expert, input)));
    Tensor { shape: vec![experts, inputs, outputs], values: values.collect() }
}
