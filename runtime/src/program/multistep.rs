//! How many steps of decode a submission has. Between two submissions a device does nothing for a while (26 µs on an H200),
//! although the second waits in its queue. Several steps in one submission pay that once; their tokens are heard of together,
//! and so each waits for the last of them. Pure.

use unicorn_artifact::step::KEPT_DRAWS;

use crate::program::chunks::{ProgramShape, batch_program};

/// Steps of a submission that has several. SmolLM2-135M's take 546 µs each on an H200, of two together 533, four 526, eight
/// 523: more than four would only hold tokens back.
pub const STEPS_TOGETHER: u32 = 4;

/// Positions that steps under way may have at most: two submissions.
pub const MOST_POSITIONS_UNDER_WAY: u32 = 2 * STEPS_TOGETHER;

// The host reads what one submission drew while the next one draws.
const _: () = assert!(MOST_POSITIONS_UNDER_WAY as usize <= KEPT_DRAWS);

/// Steps of the submission that begins behind `cached` tokens, with `draws_to_begin` left: several where one program
/// runs them all, and only if a step is known to take so few seconds that together they take at most `most_seconds`.
pub fn steps_of_submission(
    programs: &[ProgramShape],
    cached: u32,
    draws_to_begin: u32,
    step_seconds: Option<f64>,
    most_seconds: f64,
) -> u32 {
    let fits = |seconds: f64| most_seconds > 0.0 && f64::from(STEPS_TOGETHER) * seconds <= most_seconds;
    let are_quick = step_seconds.is_some_and(fits);
    // Programs change with the number of cached tokens, and never back: equal at both ends, they are so between.
    let decoder = |cached| batch_program(programs, 1, cached);
    let are_of_one_program = || decoder(cached) == decoder(cached + STEPS_TOGETHER - 1);
    if are_quick && draws_to_begin >= STEPS_TOGETHER && are_of_one_program() { STEPS_TOGETHER } else { 1 }
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::LogitsRows;

    use super::*;

    /// Cached tokens from which on another program decodes.
    const DEEP: u32 = 1000;

    fn steps(cached: u32, draws_to_begin: u32, step_seconds: Option<f64>) -> u32 {
        steps_within(0.010, cached, draws_to_begin, step_seconds)
    }

    fn steps_within(most_seconds: f64, cached: u32, draws_to_begin: u32, step_seconds: Option<f64>) -> u32 {
        let shallow = ProgramShape { rows: 1, logits: LogitsRows::One, samples: true, batch: true, from_tokens: 0 };
        let programs = [shallow, ProgramShape { from_tokens: DEEP, ..shallow }];
        steps_of_submission(&programs, cached, draws_to_begin, step_seconds, most_seconds)
    }

    #[test]
    fn quick_steps_go_together() {
        assert_eq!([0.0005, 0.0025, 0.0026, 1.0].map(|seconds| steps(0, 100, Some(seconds))), [4, 4, 1, 1]);
        // Not at all, however coarse the clock.
        assert_eq!(steps_within(0.0, 0, 100, Some(0.0)), 1);
        // Nobody knows yet, or the device keeps no time.
        assert_eq!(steps(0, 100, None), 1);
    }

    #[test]
    fn no_step_is_begun_for_a_draw_that_nobody_asked_for() {
        assert_eq!([1, 3, 4, 5].map(|draws_left| steps(0, draws_left, Some(0.0))), [1, 1, 4, 4]);
    }

    #[test]
    fn the_last_steps_before_another_program_go_one_by_one() {
        let found = [5, 4, 3, 2, 1, 0].map(|before| steps(DEEP - before, 100, Some(0.0)));
        assert_eq!(found, [4, 4, 1, 1, 1, 4]);
    }
}
