//! The kernel in plain loops, to check it by.

use super::spec::NormSpec;

/// One row in plain loops: the sum and the normed sum. `residual`, `post_weight` and `weight` may be empty if unused; after the
/// elements of `post_weight` comes the sum's factor, if the spec has one.
pub fn norm_row(
    spec: &NormSpec,
    input: &[f32],
    residual: &[f32],
    post_weight: &[f32],
    weight: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let inverse_rms = |x: &[f32]| {
        let squares: f32 = x.iter().map(|x| x * x).sum();
        1.0 / (squares / spec.width as f32 + spec.eps.get()).sqrt()
    };
    let mut sum = input.to_vec();
    if spec.post_norm {
        let scale = inverse_rms(input);
        for (value, weight) in sum.iter_mut().zip(post_weight) {
            *value *= scale * weight;
        }
    }
    if spec.add {
        for (value, residual) in sum.iter_mut().zip(residual) {
            *value += residual;
        }
    }
    if spec.scale_sum {
        sum.iter_mut().for_each(|value| *value *= post_weight[spec.width]);
    }
    if !spec.norm_sum {
        return (sum.clone(), sum);
    }
    let scale = inverse_rms(&sum);
    let normed = sum.iter().zip(weight).map(|(value, weight)| value * scale * weight).collect();
    (sum, normed)
}
