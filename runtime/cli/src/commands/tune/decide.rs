//! Which alternatives are chosen: pure functions of measured times.

use std::collections::BTreeMap;

use super::report::{StepTimes, fastest};
use crate::files::tuning_file::{TunedStep, Winner};
use unicorn_runtime::{Choice, TimedPipeline};

/// An alternative must be this much faster: smaller differences come from clocks and other processes.
const MIN_GAIN: f64 = 0.02;

/// Variants of a step of which whole steps are to be timed: the compiler's first, then every version of its program with
/// the winners among its kernels, where they differ from the compiler's choice.
pub fn choices(versions: &[Vec<TimedPipeline>]) -> Vec<Choice> {
    let mut choices = vec![Choice::default()];
    for (version, kernels) in (0..).zip(versions) {
        let winners: BTreeMap<u32, u32> =
            kernels.iter().filter_map(|timed| Some((timed.pipeline, winner(timed)?))).collect();
        let choice = Choice { version, winners };
        if choice != choices[0] {
            choices.push(choice);
        }
    }
    choices
}

/// The fastest alternative, if its gain is large enough.
pub fn winner(timed: &TimedPipeline) -> Option<u32> {
    let (own, others) = timed.candidates.split_first()?;
    let (alternative, fastest) = (0..).zip(others).min_by(|left, right| left.1.seconds.total_cmp(&right.1.seconds))?;
    (fastest.seconds < (1.0 - MIN_GAIN) * own.seconds).then_some(alternative)
}

/// What is kept of a step: nothing, if it is fastest as the compiler made it.
pub fn decided(step: &StepTimes) -> Option<TunedStep> {
    let best = fastest(&step.seconds);
    let choice = &step.choices[best];
    let microseconds = |number: usize| 1e6 * step.seconds[number].unwrap_or_default();
    let kernels = &step.versions[choice.version as usize].kernels;
    let winners = kernels.iter().filter_map(|kernel| {
        let &alternative = choice.winners.get(&kernel.pipeline)?;
        Some(Winner {
            pipeline: kernel.pipeline,
            alternative,
            name: kernel.names[alternative as usize + 1].clone(),
            microseconds_before: kernel.microseconds[0],
            microseconds: kernel.microseconds[alternative as usize + 1],
        })
    });
    (best > 0).then(|| TunedStep {
        rows: step.shape.rows,
        batch: step.shape.batch,
        from_tokens: step.shape.from_tokens,
        version: choice.version,
        microseconds_before: microseconds(0),
        microseconds: microseconds(best),
        winners: winners.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::VersionTimes;
    use super::*;
    use unicorn_runtime::{StepShape, TimedCandidate};

    fn timed(pipeline: u32, seconds: &[f64]) -> TimedPipeline {
        let candidates = seconds.iter().map(|&seconds| TimedCandidate { name: seconds.to_string(), seconds });
        TimedPipeline { pipeline, candidates: candidates.collect() }
    }

    #[test]
    fn an_alternative_wins_where_it_is_worth_while() {
        assert_eq!(winner(&timed(4, &[1.0, 1.5, 0.5, 0.6])), Some(1));
        assert_eq!(winner(&timed(4, &[1.0, 0.99])), None);
        assert_eq!(winner(&timed(4, &[1.0])), None);
    }

    #[test]
    fn winners_are_measured_together_and_kept_if_whole_steps_are_faster() {
        let kernels = [vec![timed(4, &[1.0, 0.5]), timed(5, &[1.0, 1.0])], vec![timed(4, &[1.0, 2.0])]];
        let choices = choices(&kernels);
        let of = |version, winners: &[(u32, u32)]| Choice { version, winners: winners.iter().copied().collect() };
        assert_eq!(choices, [of(0, &[]), of(0, &[(4, 0)]), of(1, &[])]);

        let step = |seconds: [f64; 3]| StepTimes {
            shape: StepShape { rows: 1, batch: false, from_tokens: 0 },
            step: "decode".into(),
            versions: kernels.iter().map(|kernels| VersionTimes::new(kernels)).collect(),
            choices: choices.clone(),
            seconds: seconds.map(Some).to_vec(),
        };
        assert_eq!(decided(&step([3.0, 3.1, 3.2])), None);
        let kept = decided(&step([3.0, 2.5, 2.8])).expect("it is faster");
        assert_eq!((kept.version, kept.microseconds_before, kept.microseconds), (0, 3e6, 2.5e6));
        assert_eq!((kept.winners[0].pipeline, kept.winners[0].name.as_str()), (4, "0.5"));
        let other = decided(&step([3.0, 2.9, 2.8])).expect("it is faster");
        assert_eq!((other.version, other.winners), (1, vec![]));
    }

    #[test]
    fn nothing_to_choose_from_changes_nothing() {
        let choices = choices(&[vec![timed(4, &[1.0, 1.0])]]);
        assert_eq!((choices.len(), fastest(&[None])), (1, 0));
    }
}
