//! The kernels on both sides of an NPU's product.

use half::bf16;
use unicorn_kernels::Number;
use unicorn_kernels::npu::quantize::Activations;
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GEMV_ROWS, GemmShape};
use unicorn_kernels::npu_input::NpuInputSpec;
use unicorn_kernels::npu_output::NpuOutputSpec;

use super::*;

/// Codes in a thousand that may differ by one, where a device's division and rounding differ from the host's in the last bit.
const MOVED_CODES: usize = 2;
/// Of a row's scale: the largest value of up to 300 by a sum in f32 of their squares.
const SCALE_TOLERANCE: f32 = 4e-6;
/// Large enough to change the norm of small rows.
const EPS: f32 = 0.1;

#[test]
fn npu_input_is_the_activations_of_a_program() {
    let targets = targets();
    let flags = (any::<bool>(), any::<bool>());
    let cases = (0..targets.len(), 1..300usize, 1..5usize, 0..3usize, 1..5usize, 1..90usize, flags);
    check_cases("npu input", 12, &cases, |&(target, width, columns, core_rows, core_depth, n_rows, flags), rng| {
        let (target, (wide, normed)) = (&targets[target], flags);
        let rows = if core_rows == 0 { GEMV_ROWS } else { 16 * core_rows };
        let core = CoreTile::new(rows, 16, 32 * core_depth, Epilogue::Scale);
        let shape = GemmShape::padded(n_rows, 16, width, columns, core);
        let stride = width.next_multiple_of(32);
        let lanes = if wide { target.workgroup_invocations } else { 128 };
        let norm_eps = normed.then(|| Number::new(EPS));
        let spec = NpuInputSpec { norm_eps, ..NpuInputSpec::of(&shape, width, stride, lanes, target.subgroup_size) };
        let mut input = normals(rng, n_rows * stride);
        // Groups of different sizes, which are those of k in blocks of 32.
        input.iter_mut().enumerate().for_each(|(index, value)| *value *= 1.0 / (1 + index / 32 % 6) as f32);
        // Rows of different sizes; one of zeros has the scale 0.
        input
            .chunks_mut(stride)
            .enumerate()
            .for_each(|(row, values)| values.iter_mut().for_each(|value| *value *= (row % 4) as f32));
        let weight: Vec<f32> = normals(rng, stride).into_iter().map(|value| 1.0 + value / 2.0).collect();
        let words = shape.activation_bytes() / 4;
        let mut operands = vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words }];
        operands.extend(normed.then(|| Operand::floats(&weight)));
        let found = launch(target, KernelSpec::NpuInput(spec.clone()), operands, n_rows).run();
        let found: Vec<u8> = found[&0].iter().flat_map(|word| word.to_le_bytes()).collect();
        let rows = input.chunks(stride).map(|row| &row[..width]);
        let values: Vec<f32> =
            rows.flat_map(|row| if normed { rms_norm(row, &weight) } else { row.to_vec() }).collect();
        let expected = Activations::quantize(&shape, &values, width).pack(&shape);
        let mut moved = 0;
        let objects = found.chunks(core.activation_bytes()).zip(expected.chunks(core.activation_bytes()));
        for (found, expected) in objects {
            for row in 0..core.rows {
                let ([scale, multiplier], [expected_scale, expected_multiplier]) =
                    (scales(&core, found, row), scales(&core, expected, row));
                assert!(
                    (scale - expected_scale).abs() <= SCALE_TOLERANCE * expected_scale,
                    "{spec:?}: {scale} for {expected_scale}"
                );
                assert!(
                    (multiplier - expected_multiplier).abs() <= 1.0,
                    "{spec:?}: {multiplier} for {expected_multiplier}"
                );
                let step = scale * multiplier.max(expected_multiplier);
                for k in 0..core.depth {
                    let at = (row / 4 * (core.depth / 16) + k / 16) * 64 + row % 4 * 16 + k % 16;
                    let [code, other] = [found, expected].map(|bytes| f32::from(bytes[at] as i8));
                    let apart = (scale * multiplier * code - scale * expected_multiplier * other).abs();
                    assert!(apart <= 1.01 * step, "{spec:?}: code {code} for {other}");
                    moved += usize::from(apart > 1e-3 * step);
                }
            }
        }
        assert!(moved <= 1 + MOVED_CODES * n_rows * width / 1000, "{spec:?}: {moved} codes moved");
    });
}

/// From its definition, in f64.
fn rms_norm(row: &[f32], weight: &[f32]) -> Vec<f32> {
    let squares: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
    let rms = (squares / row.len() as f64 + f64::from(EPS)).sqrt();
    row.iter().zip(weight).map(|(value, weight)| (f64::from(*value) / rms * f64::from(*weight)) as f32).collect()
}

/// Scale of a row of an object, and the multiplier of its group.
fn scales(core: &CoreTile, object: &[u8], row: usize) -> [f32; 2] {
    let scale = object[core.row_scales_at() + 4 * row..][..4].try_into().unwrap();
    let multipliers = &object[core.row_multipliers_at() + 8 * core.row_multiplier_of(row)..][..8];
    assert!(multipliers.iter().all(|one| *one == multipliers[0]), "one for all columns: {multipliers:?}");
    [f32::from_le_bytes(scale), f32::from(multipliers[0])]
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
