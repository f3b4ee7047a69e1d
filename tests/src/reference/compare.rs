//! The distance of two answers.

/// The length of the difference over the length of `expected`: 0 for equal, about 1 for unrelated.
///
/// # Panics
/// If the two have different numbers of values.
pub fn relative_error(expected: &[f32], actual: &[f32]) -> f64 {
    assert_eq!(expected.len(), actual.len(), "both answers have as many values");
    let square = |value: f64| value * value;
    let difference: f64 = expected.iter().zip(actual).map(|(&e, &a)| square(f64::from(e) - f64::from(a))).sum();
    let length: f64 = expected.iter().map(|&value| square(value.into())).sum();
    if difference == 0.0 { 0.0 } else { (difference / length).sqrt() }
}

/// Mean over positions of KL(reference || other) in nats, of the distributions that two sets of logits,
/// (positions, vocab), define.
///
/// # Panics
/// If the two have different numbers of values, or these do not fill whole positions.
pub fn mean_kl_divergence(reference_logits: &[f32], other_logits: &[f32], vocab_size: usize) -> f64 {
    assert_eq!(reference_logits.len(), other_logits.len(), "both answers have as many values");
    assert_eq!(reference_logits.len() % vocab_size, 0, "logits are whole rows of {vocab_size}");
    let positions = reference_logits.len() / vocab_size;
    let rows = reference_logits.chunks_exact(vocab_size).zip(other_logits.chunks_exact(vocab_size));
    let total: f64 = rows.map(|(reference, other)| kl_divergence(reference, other)).sum();
    total / positions as f64
}

fn kl_divergence(reference: &[f32], other: &[f32]) -> f64 {
    let (reference, other) = (log_probabilities(reference), log_probabilities(other));
    reference.iter().zip(other).map(|(log_p, log_q)| log_p.exp() * (log_p - log_q)).sum()
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = logits.iter().map(|&logit| f64::from(logit) - f64::from(largest));
    let log_sum = shifted.clone().map(f64::exp).sum::<f64>().ln();
    shifted.map(|logit| logit - log_sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_answers_have_no_distance() {
        let logits = [1.0, -2.0, 0.5, 3.0];
        assert_eq!(relative_error(&logits, &logits), 0.0);
        assert_eq!(mean_kl_divergence(&logits, &logits, 2), 0.0);
    }

    #[test]
    fn relative_error_is_a_ratio_of_lengths() {
        assert_eq!(relative_error(&[3.0, 4.0], &[3.0, 4.5]), 0.1);
        assert_eq!(relative_error(&[0.0], &[1.0]), f64::INFINITY);
        assert!(relative_error(&[1.0], &[f32::NAN]).is_nan());
    }

    #[test]
    fn divergence_of_a_fair_coin_from_a_loaded_one() {
        let fair = [0.0, 0.0];
        let loaded = [3.0f32.ln(), 0.0]; // probabilities 3/4 and 1/4
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((mean_kl_divergence(&fair, &loaded, 2) - expected).abs() < 1e-7);
    }
}
