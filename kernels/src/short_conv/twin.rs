//! The kernel in plain loops, to check it by.

use super::spec::ShortConvSpec;
use crate::activation::Activation;

/// Rows of one sequence, `spec.stride` elements apart. `kept`: (channels, taps - 1), the inputs before the first row, oldest first; and
/// afterwards those before the next. `taps`: (channels, taps).
pub fn twin(spec: &ShortConvSpec, input: &[f32], taps: &[f32], kept: &mut [f32], output: &mut [f32]) {
    let (n_taps, n_kept) = (spec.state.taps, spec.state.taps - 1);
    for channel in 0..spec.state.channels {
        let before = &mut kept[channel * n_kept..][..n_kept];
        let inputs = input.iter().skip(channel).step_by(spec.stride);
        let all: Vec<f32> = before.iter().chain(inputs).copied().collect();
        for (row, window) in all.windows(n_taps).enumerate() {
            let sum = window.iter().zip(&taps[channel * n_taps..]).map(|(x, tap)| x * tap).sum();
            output[row * spec.stride + channel] = Activation::Silu.apply(sum);
        }
        before.copy_from_slice(&all[all.len() - n_kept..]);
    }
}
