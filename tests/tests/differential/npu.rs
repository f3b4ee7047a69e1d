//! The kernels on both sides of an NPU's product.

use half::bf16;
use unicorn_kernels::npu::quantize::Activations;
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GEMV_ROWS, GemmShape};
use unicorn_kernels::npu_input::NpuInputSpec;
use unicorn_kernels::npu_output::NpuOutputSpec;

use super::*;

/// Codes in a thousand that may differ by one, where a device's division and rounding differ from the host's in the last bit.
const MOVED_CODES: usize = 2;

#[test]
fn npu_input_is_the_activations_of_a_program() {
    let targets = targets();
    let cases = (0..targets.len(), 1..300usize, 1..5usize, 0..3usize, 1..5usize, 1..90usize, any::<bool>());
    check_cases("npu input", 12, &cases, |&(target, width, columns, core_rows, core_depth, n_rows, wide), rng| {
        let target = &targets[target];
        let rows = if core_rows == 0 { GEMV_ROWS } else { 16 * core_rows };
        let core = CoreTile { rows, cols: 16, depth: 32 * core_depth, epilogue: Epilogue::Scale };
        let shape = GemmShape::padded(n_rows, 16, width, columns, core);
        let stride = width.next_multiple_of(32);
        let lanes = if wide { target.workgroup_invocations } else { 128 };
        let spec = NpuInputSpec::of(&shape, width, stride, lanes, target.subgroup_size);
        let mut input = normals(rng, n_rows * stride);
        // A row of zeros has the scale 0.
        input[..stride].fill(0.0);
        let words = shape.activation_bytes() / 4;
        let operands = vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words }];
        let found = launch(target, KernelSpec::NpuInput(spec.clone()), operands, n_rows).run();
        let found: Vec<u8> = found[&0].iter().flat_map(|word| word.to_le_bytes()).collect();
        let values: Vec<f32> = input.chunks(stride).flat_map(|row| row[..width].to_vec()).collect();
        let expected = Activations::quantize(&shape, &values, width).pack(&shape);
        let mut moved = 0;
        let objects = found.chunks(core.activation_bytes()).zip(expected.chunks(core.activation_bytes()));
        for (found, expected) in objects {
            let (codes, scales) = found.split_at(core.row_scales_at());
            let (expected_codes, expected_scales) = expected.split_at(core.row_scales_at());
            for (found, expected) in codes.iter().zip(expected_codes) {
                let apart = (*found as i8).abs_diff(*expected as i8);
                assert!(apart <= 1, "{spec:?}: code {} for {}", *found as i8, *expected as i8);
                moved += usize::from(apart);
            }
            for (found, expected) in scales.chunks(4).zip(expected_scales.chunks(4)) {
                let [found, expected] = [found, expected].map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
                assert!((found - expected).abs() <= 1e-6 * expected, "{spec:?}: scale {found} for {expected}");
            }
        }
        assert!(moved <= 1 + MOVED_CODES * n_rows * width / 1000, "{spec:?}: {moved} codes moved");
    });
}

#[test]
fn npu_output_is_rows_of_the_same_numbers() {
    let targets = targets();
    let cases = (0..targets.len(), 1..700usize, 1..4usize, 1..6usize);
    check_cases("npu output", 6, &cases, |&(target, width, padding, n_rows), rng| {
        let target = &targets[target];
        let (outputs, stride) = (width.next_multiple_of(8 * padding), width.next_multiple_of(32));
        let spec = NpuOutputSpec { width, outputs, stride };
        let values: Vec<bf16> = normals(rng, n_rows * outputs).into_iter().map(bf16::from_f32).collect();
        let words: Vec<u32> =
            values.chunks(2).map(|pair| u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16).collect();
        let out = Operand::Out { id: 0, words: n_rows * stride };
        let operands = vec![Operand::Step, Operand::words(&words), out];
        let found = launch(target, KernelSpec::NpuOutput(spec.clone()), operands, n_rows).run();
        for (row, values) in values.chunks(outputs).enumerate() {
            let expected: Vec<u32> = values[..width].iter().map(|value| value.to_f32().to_bits()).collect();
            assert!(found[&0][row * stride..][..width] == expected, "{spec:?}, row {row}");
        }
    });
}
