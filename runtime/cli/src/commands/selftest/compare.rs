//! How far the results of two targets are apart.

use super::observe::Observation;
use super::row::spread;
use crate::commands::perplexity::likelihood::Divergence;
use unicorn_runtime::Model;

/// Relative difference of logits where activations are rounded to 8 or 11 bits, or to halves, on one side.
const ROUNDED_LIMIT: f64 = 0.15;
/// Relative difference of logits where only the order of sums differs.
const SUMS_LIMIT: f64 = 0.01;
/// Kernels behind which a small difference can make a row that of another model: the choice of experts, and gates that are cut, whose
/// few small remains are normed.
const AMPLIFIERS: [&str; 2] = ["route", "sparse act mul"];

/// Largest difference that correct kernels of a target may have.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Limit of [`Difference::relative`].
    pub relative: f64,
    /// Where two experts are nearly as likely, a difference within the limit chooses the other one, and the row is that of another model; so
    /// with other [`AMPLIFIERS`]. The rows that differ most are then left out, and a step is wrong when it is so with several texts.
    is_amplified: bool,
}

/// How far the results of two targets are apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Difference {
    /// Root mean square of the difference, as a part of the logits' standard deviation, or of the hidden row's; the largest of the rows
    /// compared. Infinite where a number is not finite, or missing.
    pub relative: f64,
    /// Mean Kullback-Leibler divergence, in nats.
    pub kl: f64,
    /// Part of the rows whose most likely token is the same.
    pub same_top: f64,
}

impl Limit {
    /// Limit for the target named `own`.
    pub fn of(model: &Model, own: &str) -> Limit {
        let target = model.targets().iter().find(|target| target.name == own);
        let rounds = |matches: &unicorn_runtime::TargetMatch| {
            matches.integer_dot_product || matches.matrix_sides.get().is_some()
        };
        let is_rounded = target.is_some_and(|target| rounds(&target.matches));
        let relative = if is_rounded { ROUNDED_LIMIT } else { SUMS_LIMIT };
        let amplifies = |name: &str| AMPLIFIERS.contains(&name);
        let is_amplified =
            target.is_some_and(|target| target.pipelines.iter().any(|pipeline| amplifies(&pipeline.name)));
        Limit { relative, is_amplified }
    }

    /// Different texts with which a step is tried before it counts as wrong.
    pub fn n_texts(self) -> usize {
        if self.is_amplified { 3 } else { 1 }
    }

    /// The largest of the values; where differences are amplified, of the nine tenths that are smallest. Infinite where one is not finite.
    pub fn largest(self, mut values: Vec<f64>) -> f64 {
        if values.iter().any(|value| !value.is_finite()) {
            return f64::INFINITY;
        }
        values.sort_by(f64::total_cmp);
        let compared = if self.is_amplified { (values.len() * 9 / 10).max(1) } else { values.len() };
        values.into_iter().take(compared).next_back().unwrap_or(0.0)
    }
}

impl Difference {
    pub fn between(expected: &Observation, found: &Observation, limit: Limit) -> Difference {
        let counts =
            |seen: &Observation| (seen.rows.len(), seen.sampled.len(), seen.hidden.len(), seen.predicted.len());
        if counts(expected) != counts(found) {
            return Difference { relative: f64::INFINITY, kl: f64::INFINITY, same_top: 0.0 };
        }
        let mut divergence = Divergence::default();
        let mut relative = Vec::new();
        for (expected, found) in expected.rows.iter().zip(&found.rows) {
            divergence.add(expected, found);
            relative.push(relative_difference(expected, found));
        }
        let beside = |seen: &Observation| [&seen.hidden[..], &seen.predicted[..]].concat();
        for (expected, found) in beside(expected).iter().zip(&beside(found)) {
            relative.push(relative_difference(expected, found));
        }
        let all_spread = expected.rows.first().map_or(1.0, |row| spread(row));
        for (&expected, &found) in expected.sampled.iter().zip(&found.sampled) {
            // One logit differs by more than the root mean square of all.
            relative.push(f64::from(expected - found).abs() / all_spread / SAMPLED_ALLOWANCE);
        }
        Difference { relative: limit.largest(relative), kl: divergence.mean(), same_top: divergence.same_top() }
    }

    pub fn is_within(&self, limit: Limit) -> bool {
        self.relative <= limit.relative
    }
}

/// A single logit is farther off than the root mean square: this many standard deviations.
const SAMPLED_ALLOWANCE: f64 = 4.0;

fn relative_difference(expected: &[f32], found: &[f32]) -> f64 {
    let squares = expected.iter().zip(found).map(|(&one, &other)| f64::from(one - other).powi(2)).sum::<f64>();
    (squares / expected.len() as f64).sqrt() / spread(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(relative: f64) -> Limit {
        Limit { relative, is_amplified: false }
    }

    fn seen(rows: &[&[f32]], sampled: &[f32]) -> Observation {
        Observation {
            rows: rows.iter().map(|row| row.to_vec()).collect(),
            sampled: sampled.to_vec(),
            ..Observation::default()
        }
    }

    #[test]
    fn the_difference_is_a_part_of_the_logits_spread() {
        // Standard deviation 1, and a difference of 0.1 in each.
        let found = Difference::between(&seen(&[&[1.0, -1.0]], &[1.0]), &seen(&[&[1.1, -1.1]], &[1.1]), limit(0.0));
        assert!((found.relative - 0.1).abs() < 1e-6 && found.same_top == 1.0 && found.kl > 0.0, "{found:?}");
        assert!(found.is_within(limit(0.11)) && !found.is_within(limit(0.09)));
    }

    #[test]
    fn hidden_rows_count_as_logits_do() {
        let with = |hidden: &[f32]| Observation { hidden: vec![hidden.to_vec()], ..seen(&[&[1.0, -1.0]], &[1.0]) };
        let found = Difference::between(&with(&[2.0, -2.0]), &with(&[2.2, -2.2]), limit(0.0));
        assert!((found.relative - 0.1).abs() < 1e-6 && found.kl == 0.0, "{found:?}");
        assert!(
            !Difference::between(&with(&[2.0, -2.0]), &seen(&[&[1.0, -1.0]], &[1.0]), limit(0.0)).is_within(limit(1e9))
        );
    }

    #[test]
    fn what_is_missing_or_no_number_is_never_right() {
        let expected = seen(&[&[1.0, -1.0]], &[1.0]);
        for wrong in [seen(&[], &[1.0]), seen(&[&[f32::NAN, 0.0]], &[1.0]), seen(&[&[1.0, -1.0]], &[f32::NAN])] {
            assert!(!Difference::between(&expected, &wrong, limit(0.0)).is_within(limit(1e9)));
        }
    }

    #[test]
    fn of_a_mixture_the_rows_with_another_expert_are_left_out() {
        let mixture = Limit { relative: 0.01, is_amplified: true };
        let rows = |wrong: usize| -> Vec<f64> { (0..20).map(|row| if row < wrong { 1.0 } else { 0.005 }).collect() };
        assert_eq!([0, 2, 3].map(|wrong| mixture.largest(rows(wrong))), [0.005, 0.005, 1.0]);
        assert_eq!(limit(0.01).largest(rows(1)), 1.0);
        assert_eq!(mixture.largest([vec![f64::NAN], rows(0)].concat()), f64::INFINITY);
        assert_eq!([mixture.largest(vec![1.0]), mixture.largest(Vec::new())], [1.0, 0.0]);
    }
}
