//! Draft length: how many tokens to draft, or none, by how often drafts were accepted and how long steps took. Pure.

use std::time::Duration;

use crate::session::speculation::drafter::DRAFT_CLASSES;

/// Measured times of steps, in seconds.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// Time of a step without a draft, for all sequences that decode: between the tokens of steps that run ahead.
    plain: Average,
    /// Time of a verification, by the binary logarithm of its rows, rounded up.
    verification: [Average; ROW_CLASSES],
}

/// A mean of the first times, later a moving average.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    seconds: f64,
    /// Number of times.
    count: u32,
}

/// How often drafts of a sequence were accepted.
#[derive(Clone, Debug)]
pub struct Acceptance {
    classes: [ClassAcceptance; DRAFT_CLASSES],
}

#[derive(Clone, Copy, Debug)]
struct ClassAcceptance {
    /// Proposed tokens that were accepted, and those that were compared; older ones weigh less.
    accepted: f64,
    compared: f64,
    /// Consecutive drafts that were not expected to save time.
    skipped: u32,
    /// Number of skipped drafts after which one is tried nevertheless.
    patience: u32,
}

/// Up to 64 rows.
const ROW_CLASSES: usize = 7;
/// The newest time's weight is at least that of one in so many. Steps without drafts end several at once, those of a submission: some of
/// their times are next to nothing.
const PLAIN_TIMES: u32 = 16;
const VERIFICATION_TIMES: u32 = 4;
/// Number of steps without a draft before the first draft is verified.
const FIRST_PLAIN_TIMES: u32 = 8;
/// Factor by which each draft reduces the weight of the acceptance so far.
const MEMORY: f64 = 0.9;
/// Acceptance before anything is measured: three of four tokens.
const ASSUMED: (f64, f64) = (1.5, 2.0);
const PATIENCE: u32 = 8;
const MAX_PATIENCE: u32 = 256;

impl StepTimes {
    /// Adds the time of a step without a draft.
    pub fn add_plain(&mut self, time: Duration) {
        self.plain.add(time, PLAIN_TIMES);
    }

    /// Measured time of a step without a draft; `None`: there was none yet.
    pub fn plain(&self) -> Option<Duration> {
        self.plain.seconds().map(Duration::from_secs_f64)
    }

    /// Adds the time of a verification of `n_rows` rows, the draft and the sampling of their tokens included.
    pub fn add_verification(&mut self, n_rows: usize, time: Duration) {
        self.verification[row_class(n_rows)].add(time, VERIFICATION_TIMES);
    }

    /// Measured seconds of a verification of `n_rows` rows, or of the nearest larger, else smaller, number that was measured.
    fn verification(&self, n_rows: usize) -> Option<f64> {
        let (fewer, more) = self.verification.split_at(row_class(n_rows));
        more.iter().chain(fewer.iter().rev()).find_map(Average::seconds)
    }
}

impl Average {
    fn add(&mut self, time: Duration, times: u32) {
        self.count = self.count.saturating_add(1);
        self.seconds += (time.as_secs_f64() - self.seconds) / f64::from(self.count.min(times));
    }

    fn seconds(&self) -> Option<f64> {
        (self.count > 0).then_some(self.seconds)
    }
}

fn row_class(n_rows: usize) -> usize {
    (n_rows.next_power_of_two().trailing_zeros() as usize).min(ROW_CLASSES - 1)
}

impl Default for Acceptance {
    fn default() -> Acceptance {
        let (accepted, compared) = ASSUMED;
        Acceptance { classes: [ClassAcceptance { accepted, compared, skipped: 0, patience: PATIENCE }; DRAFT_CLASSES] }
    }
}

impl Acceptance {
    /// Counts a draft of `proposed` tokens, of which the first `accepted` were accepted.
    pub fn add(&mut self, class: usize, proposed: usize, accepted: usize) {
        let one = &mut self.classes[class];
        let compared = if accepted < proposed { accepted + 1 } else { accepted };
        one.accepted = MEMORY * one.accepted + accepted as f64;
        one.compared = MEMORY * one.compared + compared as f64;
    }

    /// How many tokens of a draft of that class to verify, at least `least` and at most `most`, while `n_sequences` decode: as many
    /// as give most tokens a second. 0: a step without them gives more, or what it gives was not measured yet. Now and then one is tried that is
    /// not expected to save time.
    pub fn depth(&mut self, class: usize, least: usize, most: usize, n_sequences: usize, times: &StepTimes) -> usize {
        let one = &mut self.classes[class];
        let expected = |depth: usize| expected_tokens(one.accepted / one.compared, depth);
        // Among equally fast depths, the smallest: fewer rejected tokens are computed.
        let rate = |depth: usize| expected(depth) / times.verification(depth + 1).unwrap_or(1.0);
        let best = (least.max(1)..=most).max_by(|&a, &b| rate(a).total_cmp(&rate(b)).then(b.cmp(&a)));
        let Some(depth) = best.filter(|_| times.plain.count >= FIRST_PLAIN_TIMES) else { return 0 };
        let Some(verification) = times.verification(depth + 1) else { return depth };
        if pays(expected(depth), verification, times.plain.seconds, n_sequences) {
            (one.skipped, one.patience) = (0, PATIENCE);
            return depth;
        }
        one.skipped += 1;
        if one.skipped < one.patience {
            return 0;
        }
        (one.skipped, one.patience) = (0, MAX_PATIENCE.min(2 * one.patience));
        depth
    }
}

/// Tokens that a step gives when each token of a draft is accepted with this probability if those before it were (Leviathan et al.
/// 2023, equation 1).
fn expected_tokens(acceptance: f64, depth: usize) -> f64 {
    (0..=depth as i32).map(|accepted| acceptance.powi(accepted)).sum()
}

/// Whether verification gives more tokens a second than the step that all sequences share.
fn pays(tokens: f64, verification: f64, plain: f64, n_sequences: usize) -> bool {
    tokens * plain > n_sequences as f64 * verification
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(plain: f64, verification: f64) -> StepTimes {
        let mut times = StepTimes::default();
        (0..FIRST_PLAIN_TIMES).for_each(|_| times.add_plain(Duration::from_secs_f64(plain)));
        times.add_verification(8, Duration::from_secs_f64(verification));
        times
    }

    #[test]
    fn a_draft_is_verified_where_it_gives_more_tokens_a_second() {
        let depth = |plain, verification, n_sequences| {
            Acceptance::default().depth(3, 1, 7, n_sequences, &times(plain, verification))
        };
        // Three of four tokens accepted: 3.6 tokens of a step of 8 rows.
        assert_eq!((depth(1.0, 3.5, 1), depth(1.0, 3.7, 1)), (7, 0));
        // With two sequences, a plain step gives two tokens.
        assert_eq!((depth(1.0, 1.7, 2), depth(1.0, 1.9, 2)), (7, 0));
        assert_eq!((depth(1.0, 1.1, 3), depth(1.0, 1.3, 3)), (7, 0));
        assert_eq!(Acceptance::default().depth(3, 4, 3, 1, &times(1.0, 3.5)), 0);
    }

    #[test]
    fn what_a_step_without_a_draft_gives_is_measured_first() {
        let mut times = StepTimes::default();
        let first = (0..20).position(|_| {
            times.add_plain(Duration::from_secs(1));
            Acceptance::default().depth(3, 1, 7, 1, &times) > 0
        });
        assert_eq!(first, Some(7));
    }

    #[test]
    fn the_depth_follows_acceptance() {
        let mut times = times(1.0, 1.5);
        times.add_verification(2, Duration::from_secs_f64(1.1));
        let mut acceptance = Acceptance::default();
        (0..50).for_each(|_| acceptance.add(0, 7, 0));
        // Nothing is accepted: not even two rows are worth it.
        assert_eq!(acceptance.depth(0, 1, 7, 1, &times), 0);
        (0..3).for_each(|_| acceptance.add(0, 7, 1));
        assert_eq!(acceptance.depth(0, 1, 7, 1, &times), 1);
        (0..50).for_each(|_| acceptance.add(0, 7, 7));
        assert_eq!(acceptance.depth(0, 1, 7, 1, &times), 7);
        // Other classes have their own.
        assert_eq!(Acceptance::default().depth(1, 1, 7, 1, &times), 7);
    }

    #[test]
    fn what_does_not_pay_is_tried_again_less_and_less() {
        let mut acceptance = Acceptance::default();
        (0..50).for_each(|_| acceptance.add(0, 7, 0));
        let tried: Vec<usize> = (1..200).filter(|_| acceptance.depth(0, 1, 7, 1, &times(1.0, 1.5)) > 0).collect();
        assert_eq!(tried, [8, 24, 56, 120]);
    }

    #[test]
    fn times_are_averages_that_forget() {
        let mut times = times(1.0, 2.0);
        (0..40).for_each(|_| times.add_plain(Duration::from_secs(3)));
        assert!((times.plain().unwrap().as_secs_f64() - 3.0).abs() < 0.3);
        assert_eq!((times.verification(3), times.verification(64)), (Some(2.0), Some(2.0)));
    }

    #[test]
    fn steps_that_end_together_count_as_much_as_others() {
        let mut times = StepTimes::default();
        (0..64).for_each(|step| times.add_plain(Duration::from_secs(if step % 4 == 0 { 4 } else { 0 })));
        assert!((times.plain().unwrap().as_secs_f64() - 1.0).abs() < 0.2);
    }
}
