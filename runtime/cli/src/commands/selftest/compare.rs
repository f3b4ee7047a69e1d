//! How far the results of two targets are apart.

use super::observe::Observation;
use crate::commands::perplexity::likelihood::Divergence;
use unicorn_runtime::Model;

/// Relative difference of logits where activations are rounded to 8 or 11 bits, or to halves, on one side.
const ROUNDED_LIMIT: f64 = 0.15;
/// Where only the order of sums differs.
const SUMS_LIMIT: f64 = 0.01;

/// How far the results of two targets are apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Difference {
    /// Root mean square of the difference, as a part of the logits' standard deviation, or of the hidden row's; the largest of all rows.
    /// Infinite where a number is not finite, or missing.
    pub relative: f64,
    /// Mean Kullback-Leibler divergence, in nats.
    pub kl: f64,
    /// Part of the rows whose most likely token is the same.
    pub same_top: f64,
}

/// The largest relative difference that right kernels of the own target may have.
pub fn limit(model: &Model, own: &str) -> f64 {
    let target = model.targets().iter().find(|target| target.name == own);
    let rounds = |matches: &unicorn_runtime::TargetMatch| matches.integer_dot_product || matches.matrix_side > 0;
    if target.is_some_and(|target| rounds(&target.matches)) { ROUNDED_LIMIT } else { SUMS_LIMIT }
}

impl Difference {
    pub fn between(expected: &Observation, found: &Observation) -> Difference {
        let counts = |seen: &Observation| (seen.rows.len(), seen.sampled.len(), seen.hidden.len());
        if counts(expected) != counts(found) {
            return Difference { relative: f64::INFINITY, kl: f64::INFINITY, same_top: 0.0 };
        }
        let mut divergence = Divergence::default();
        let mut relative: f64 = 0.0;
        for (expected, found) in expected.rows.iter().zip(&found.rows) {
            divergence.add(expected, found);
            relative = worse(relative, relative_difference(expected, found));
        }
        for (expected, found) in expected.hidden.iter().zip(&found.hidden) {
            relative = worse(relative, relative_difference(expected, found));
        }
        let all_spread = expected.rows.first().map_or(1.0, |row| spread(row));
        for (&expected, &found) in expected.sampled.iter().zip(&found.sampled) {
            // One logit differs by more than the root mean square of all.
            relative = worse(relative, f64::from(expected - found).abs() / all_spread / SAMPLED_ALLOWANCE);
        }
        Difference { relative, kl: divergence.mean(), same_top: divergence.same_top() }
    }

    pub fn is_within(&self, limit: f64) -> bool {
        self.relative <= limit
    }
}

/// A single logit is farther off than the root mean square: this many standard deviations.
const SAMPLED_ALLOWANCE: f64 = 4.0;

fn worse(one: f64, other: f64) -> f64 {
    if other.is_finite() { one.max(other) } else { f64::INFINITY }
}

fn relative_difference(expected: &[f32], found: &[f32]) -> f64 {
    let squares = expected.iter().zip(found).map(|(&one, &other)| f64::from(one - other).powi(2)).sum::<f64>();
    (squares / expected.len() as f64).sqrt() / spread(expected)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rows: &[&[f32]], sampled: &[f32]) -> Observation {
        Observation {
            rows: rows.iter().map(|row| row.to_vec()).collect(),
            sampled: sampled.to_vec(),
            hidden: Vec::new(),
        }
    }

    #[test]
    fn the_difference_is_a_part_of_the_logits_spread() {
        // Standard deviation 1, and a difference of 0.1 in each.
        let found = Difference::between(&seen(&[&[1.0, -1.0]], &[1.0]), &seen(&[&[1.1, -1.1]], &[1.1]));
        assert!((found.relative - 0.1).abs() < 1e-6 && found.same_top == 1.0 && found.kl > 0.0, "{found:?}");
        assert!(found.is_within(0.11) && !found.is_within(0.09));
    }

    #[test]
    fn hidden_rows_count_as_logits_do() {
        let with = |hidden: &[f32]| Observation { hidden: vec![hidden.to_vec()], ..seen(&[&[1.0, -1.0]], &[1.0]) };
        let found = Difference::between(&with(&[2.0, -2.0]), &with(&[2.2, -2.2]));
        assert!((found.relative - 0.1).abs() < 1e-6 && found.kl == 0.0, "{found:?}");
        assert!(!Difference::between(&with(&[2.0, -2.0]), &seen(&[&[1.0, -1.0]], &[1.0])).is_within(1e9));
    }

    #[test]
    fn what_is_missing_or_no_number_is_never_right() {
        let expected = seen(&[&[1.0, -1.0]], &[1.0]);
        for wrong in [seen(&[], &[1.0]), seen(&[&[f32::NAN, 0.0]], &[1.0]), seen(&[&[1.0, -1.0]], &[f32::NAN])] {
            assert!(!Difference::between(&expected, &wrong).is_within(1e9));
        }
    }
}
