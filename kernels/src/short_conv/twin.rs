//! The kernel in plain loops, to check it by.

use super::spec::{ConvForm, ShortConvSpec};
use crate::activation::Activation;

/// The kernel for rows of one sequence, `spec.input_stride` and `spec.output_stride` elements apart. `kept`, (channels, taps - 1),
/// are the inputs before the first row, the oldest first, and on return those before the next row. `taps`: (channels, taps).
pub fn twin(spec: &ShortConvSpec, input: &[f32], taps: &[f32], kept: &mut [f32], output: &mut [f32]) {
    let (n_taps, n_kept) = (spec.state.taps, spec.state.taps - 1);
    for channel in 0..spec.state.channels {
        let before = &mut kept[channel * n_kept..][..n_kept];
        let rows = input.chunks(spec.input_stride);
        let block = |row: &[f32], block: usize| row[block * spec.state.channels + channel];
        let inputs = rows.clone().map(|row| match spec.form {
            ConvForm::Activated => block(row, 0),
            ConvForm::Gated => block(row, 0) * block(row, 2),
        });
        let all: Vec<f32> = before.iter().copied().chain(inputs).collect();
        for ((row, input), window) in rows.enumerate().zip(all.windows(n_taps)) {
            let sum: f32 = window.iter().zip(&taps[channel * n_taps..]).map(|(x, tap)| x * tap).sum();
            output[row * spec.output_stride + channel] = match spec.form {
                ConvForm::Activated => Activation::Silu.apply(sum),
                ConvForm::Gated => sum * block(input, 1),
            };
        }
        before.copy_from_slice(&all[all.len() - n_kept..]);
    }
}
