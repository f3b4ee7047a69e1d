//! The kernel in plain loops, to check it by.

use super::spec::ImagePoolSpec;

/// The kernel in plain loops: writes `output` (n_rows, stride) of `input` (n_rows · side², stride).
pub fn twin(spec: &ImagePoolSpec, input: &[f32], n_rows: usize, output: &mut [f32]) {
    let patches_across = spec.across * spec.side;
    for row in 0..n_rows {
        let (top, left) = (row / spec.across * spec.side, row % spec.across * spec.side);
        for column in 0..spec.width {
            let of_row = |down: usize| {
                let patch = |right: usize| (top + down) * patches_across + left + right;
                (0..spec.side).map(|right| input[patch(right) * spec.stride + column]).sum::<f32>()
            };
            let sum: f32 = (0..spec.side).map(of_row).sum();
            output[row * spec.stride + column] = sum / (spec.side * spec.side) as f32;
        }
    }
}
