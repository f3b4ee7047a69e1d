//! How many decode steps one submission has (multi-step scheduling). Between two submissions a device idles (26 µs on an H200),
//! even if the second is queued. Several steps in one submission incur that once; their tokens reach the host together, after
//! the last of them. Pure.

use unicorn_artifact::step::KEPT_SAMPLES;

use crate::program::chunks::{ProgramShape, batch_program};

/// Steps of a multi-step submission. A step of SmolLM2-135M takes 546 µs on an H200 by itself, 533 µs in a submission of two, 526
/// of four, 523 of eight: more than four would delay tokens for little.
pub const STEPS_PER_SUBMISSION: u32 = 4;

/// Most positions of one sequence in flight: two submissions.
pub const MAX_POSITIONS_IN_FLIGHT: u32 = 2 * STEPS_PER_SUBMISSION;

// The host reads the tokens of one submission while the next one runs.
const _: () = assert!(MAX_POSITIONS_IN_FLIGHT as usize <= KEPT_SAMPLES);

/// Number of steps, of `steps_left` in all, in the submission that begins after `cached` tokens: several if one program runs them
/// all, and together they take at most `max_seconds` according to `step_seconds`, the measured time of a step.
pub fn steps_of_submission(
    programs: &[ProgramShape],
    cached: u32,
    steps_left: u32,
    step_seconds: Option<f64>,
    max_seconds: f64,
) -> u32 {
    let fits = |seconds: f64| max_seconds > 0.0 && f64::from(STEPS_PER_SUBMISSION) * seconds <= max_seconds;
    let are_short = step_seconds.is_some_and(fits);
    // The program changes only towards longer contexts, so that equal programs at both ends are equal in between.
    let program = |cached| batch_program(programs, 1, cached);
    let have_one_program = || program(cached) == program(cached + STEPS_PER_SUBMISSION - 1);
    if are_short && steps_left >= STEPS_PER_SUBMISSION && have_one_program() { STEPS_PER_SUBMISSION } else { 1 }
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::LogitsRows;

    use super::*;

    /// Cached tokens from which the program for long contexts decodes.
    const LONG: u32 = 1000;

    fn steps(cached: u32, steps_left: u32, step_seconds: Option<f64>) -> u32 {
        steps_within(0.010, cached, steps_left, step_seconds)
    }

    fn steps_within(max_seconds: f64, cached: u32, steps_left: u32, step_seconds: Option<f64>) -> u32 {
        let short = ProgramShape {
            rows: 1,
            logits: LogitsRows::One,
            samples: true,
            batch: true,
            images: false,
            from_tokens: 0,
        };
        let programs = [short, ProgramShape { from_tokens: LONG, ..short }];
        steps_of_submission(&programs, cached, steps_left, step_seconds, max_seconds)
    }

    #[test]
    fn short_steps_share_a_submission() {
        assert_eq!([0.0005, 0.0025, 0.0026, 1.0].map(|seconds| steps(0, 100, Some(seconds))), [4, 4, 1, 1]);
        // A limit of 0 turns it off, however coarse the clock.
        assert_eq!(steps_within(0.0, 0, 100, Some(0.0)), 1);
        // Not measured yet, or the device has no timestamps.
        assert_eq!(steps(0, 100, None), 1);
    }

    #[test]
    fn no_more_steps_are_submitted_than_are_left() {
        assert_eq!([1, 3, 4, 5].map(|steps_left| steps(0, steps_left, Some(0.0))), [1, 1, 4, 4]);
    }

    #[test]
    fn the_last_steps_before_another_program_have_a_submission_each() {
        let found = [5, 4, 3, 2, 1, 0].map(|before| steps(LONG - before, 100, Some(0.0)));
        assert_eq!(found, [4, 4, 1, 1, 1, 4]);
    }
}
