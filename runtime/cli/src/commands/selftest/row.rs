//! Figures of one row of logits.

/// Standard deviation; never 0.
pub fn spread(logits: &[f32]) -> f64 {
    let mean = logits.iter().map(|&logit| f64::from(logit)).sum::<f64>() / logits.len() as f64;
    let squares = logits.iter().map(|&logit| (f64::from(logit) - mean).powi(2)).sum::<f64>();
    (squares / logits.len() as f64).sqrt().max(1e-12)
}

/// The first index of the largest logit.
pub fn top(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, index| if logits[index] > logits[best] { index } else { best })
}
