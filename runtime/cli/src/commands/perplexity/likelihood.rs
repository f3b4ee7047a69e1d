//! The likelihood that a model gives to the next tokens: sums over scored tokens.

/// Sums over scored tokens of their negative log-likelihood (nats), and of its square.
#[derive(Default)]
pub struct Score {
    sum: f64,
    sum_of_squares: f64,
    count: u64,
}

impl Score {
    /// Counts how unlikely `logits` (one a vocabulary entry) made the token that followed.
    pub fn add(&mut self, logits: &[f32], token: usize) {
        let nll = log_sum_exp(logits) - f64::from(logits[token]);
        self.sum += nll;
        self.sum_of_squares += nll * nll;
        self.count += 1;
    }

    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the mean, carried through the exponential.
    pub fn perplexity_error(&self) -> Option<f64> {
        let variance = self.sum_of_squares / self.count as f64 - self.mean() * self.mean();
        (self.count > 1).then(|| (variance.max(0.0) / (self.count - 1) as f64).sqrt() * self.perplexity())
    }

    pub fn is_finite(&self) -> bool {
        self.sum.is_finite()
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

/// How far a model's predictions are from those of a base: sums over scored tokens.
#[derive(Default)]
pub struct Divergence {
    sum: f64,
    same_top: u64,
    count: u64,
}

impl Divergence {
    /// Counts one prediction of either, as logits (one a vocabulary entry).
    pub fn add(&mut self, base: &[f32], logits: &[f32]) {
        let (base_total, total) = (log_sum_exp(base), log_sum_exp(logits));
        self.sum += base
            .iter()
            .zip(logits)
            .map(|(&base, &logit)| {
                let base = f64::from(base) - base_total;
                base.exp() * (base - (f64::from(logit) - total))
            })
            .sum::<f64>();
        self.same_top += u64::from(top(base) == top(logits));
        self.count += 1;
    }

    /// Mean Kullback-Leibler divergence of the model from the base, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Part of the predictions whose most likely token is the base's, from 0 to 1.
    pub fn same_top(&self) -> f64 {
        self.same_top as f64 / self.count as f64
    }
}

/// The logarithm of the sum of exponentials, without overflow.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    largest + sum.ln()
}

/// The first index of the largest logit.
fn top(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, index| if logits[index] > logits[best] { index } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fair_guess_among_n_has_perplexity_n() {
        let mut score = Score::default();
        for token in 0..4 {
            score.add(&[7.0; 4], token);
        }
        assert!((score.perplexity() - 4.0).abs() < 1e-12);
        assert_eq!(score.perplexity_error(), Some(0.0));
    }

    #[test]
    fn perplexity_is_the_geometric_mean_of_one_over_probability() {
        // Probabilities 1/4 and 3/4 of the tokens that followed.
        let logits = [0.0, 3f32.ln()];
        let mut score = Score::default();
        score.add(&logits, 0);
        score.add(&logits, 1);
        assert!((score.perplexity() - (4.0f64 * 4.0 / 3.0).sqrt()).abs() < 1e-6);
        // Both are ln(3)/2 from the mean.
        let error = 3f64.ln() / 2.0 * score.perplexity();
        assert!((score.perplexity_error().unwrap() - error).abs() < 1e-6);
    }

    #[test]
    fn one_token_has_no_error_and_nonsense_is_noticed() {
        let mut score = Score::default();
        score.add(&[1000.0, -1000.0], 0);
        assert_eq!((score.perplexity(), score.perplexity_error()), (1.0, None));
        score.add(&[f32::NAN, 0.0], 1);
        assert!(!score.is_finite());
    }

    #[test]
    fn divergence_is_measured_from_the_base() {
        let mut divergence = Divergence::default();
        divergence.add(&[1.0, 2.0], &[11.0, 12.0]);
        assert_eq!((divergence.mean().abs() < 1e-12, divergence.same_top()), (true, 1.0));
        // The base is sure of the first token, the model finds both equally likely after a tie that the first wins.
        divergence.add(&[0.0, -1000.0], &[0.0, 0.0]);
        assert!((divergence.mean() - 2f64.ln() / 2.0).abs() < 1e-12);
        divergence.add(&[0.0, -1000.0], &[0.0, 0.1]);
        assert!((divergence.same_top() - 2.0 / 3.0).abs() < 1e-12);
    }
}
