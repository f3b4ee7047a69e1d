//! Which kernel of a wrong step is wrong, and which of its alternatives is right.

use std::collections::{BTreeMap, BTreeSet};

use super::compare::{Difference, Limit};
use super::observe::{Observation, ProgramSource, Sides};
use crate::error::CliError;
use unicorn_runtime::{Choice, StepShape};

/// Values of one binding that are compared at most, spread over all of them.
const MAX_VALUES: usize = 1 << 18;
/// A dispatch's relative error above which it may be wrong, where those before it are better.
const FLOOR: f64 = 0.03;
/// Its error must also be this number of times as large as the largest before it.
const JUMP: f64 = 4.0;
/// Other kernels that are tried in place of one.
const MAX_TRIALS: usize = 4;

/// The kernel that is wrong.
pub struct Located {
    /// The wrong kernel's name, or the names of all candidates.
    pub kernels: Vec<String>,
    /// Where its results first differ: layer and role.
    pub place: Option<String>,
    /// Kernels of the same target with which the step is right.
    pub instead: Option<Choice>,
}

impl Located {
    /// For a step whose logits are right, but not its other rows, at `place`. A trace has none of them, so the candidates cannot be narrowed
    /// down by trials.
    pub fn beside_logits(kernels: BTreeSet<&str>, place: &str) -> Located {
        let kernels = kernels.into_iter().map(str::to_owned).collect();
        Located { kernels, place: Some(place.into()), instead: None }
    }

    pub fn in_words(&self) -> String {
        let place = self.place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
        format!("{}{place}", self.kernels.join(" or "))
    }
}

/// A kernel that may be wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suspect {
    pipeline: u32,
    kernel: String,
    label: String,
}

pub fn locate(
    sides: &mut Sides<'_>,
    shape: StepShape,
    cached: u32,
    expected: &Observation,
    limit: Limit,
) -> Result<Located, CliError> {
    let (suspects, place) = suspects(sides, shape, cached)?;
    let mut pipelines: BTreeMap<u32, String> = BTreeMap::new();
    for suspect in suspects {
        pipelines.entry(suspect.pipeline).or_insert(suspect.kernel);
    }
    let own = sides.choice(shape);
    for (&pipeline, kernel) in &pipelines {
        let alternatives = sides.own().pipelines[pipeline as usize].alternatives.len() as u32;
        for choice in trials(&own, pipeline, alternatives) {
            let mut programs = sides.record(shape, &choice)?;
            let found = sides.observe(shape, ProgramSource::Trial(&mut programs), cached)?;
            if Difference::between(expected, &found, limit).is_within(limit) {
                return Ok(Located { kernels: vec![kernel.clone()], place, instead: Some(choice) });
            }
        }
    }
    Ok(Located { kernels: pipelines.into_values().collect(), place, instead: None })
}

/// What runs, with another kernel for a pipeline: the compiler's own first, where a tuning has replaced it.
fn trials(own: &Choice, pipeline: u32, alternatives: u32) -> Vec<Choice> {
    let with = |alternative: Option<u32>| {
        let mut winners = own.winners.clone();
        match alternative {
            Some(alternative) => winners.insert(pipeline, alternative),
            None => winners.remove(&pipeline),
        };
        Choice { version: own.version, winners }
    };
    let running = own.winners.get(&pipeline).copied();
    let all = [None].into_iter().chain((0..alternatives).map(Some));
    all.filter(|one| *one != running).take(MAX_TRIALS).map(with).collect()
}

/// The kernels after the last value that is right, up to the first that is wrong; all where no value is.
fn suspects(sides: &Sides<'_>, shape: StepShape, cached: u32) -> Result<(Vec<Suspect>, Option<String>), CliError> {
    let (mut of_expected, mut of_own) = (Places::default(), Places::default());
    let mut expected: BTreeMap<Place, Vec<Vec<f32>>> = BTreeMap::new();
    sides.trace(false, shape, cached, &mut |dispatch, parts| {
        expected.insert(of_expected.next(role(&dispatch.label)), parts.iter().map(|part| values(part)).collect());
    })?;
    let mut dispatches: Vec<(Suspect, Place, Option<f64>)> = Vec::new();
    sides.trace(true, shape, cached, &mut |dispatch, parts| {
        let place = of_own.next(role(&dispatch.label));
        let error = expected.get(&place).and_then(|others| error(others, parts));
        let suspect =
            Suspect { pipeline: dispatch.pipeline, kernel: dispatch.kernel.clone(), label: dispatch.label.clone() };
        dispatches.push((suspect, place, error));
    })?;
    let is_whole = |index: usize| dispatches.get(index + 1).is_none_or(|next| next.1 != dispatches[index].1);
    let is_of_both = |place: &Place| of_expected.numbers.get(&place.role) == of_own.numbers.get(&place.role);
    let errors: Vec<Option<f64>> = (0..)
        .zip(&dispatches)
        .map(|(index, (_, place, error))| error.filter(|_| is_whole(index) && is_of_both(place)))
        .collect();
    let range = window(&errors);
    let place = range.as_ref().map(|range| dispatches[range.end - 1].1.role.clone());
    let range = range.unwrap_or(0..dispatches.len());
    Ok((dispatches[range].iter().map(|(suspect, ..)| suspect.clone()).collect(), place))
}

/// A value of a step, by the dispatches that make it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Their layer and role.
    role: String,
    /// Which of the values of this role it is: a layer has two norms.
    number: usize,
}

/// Finds the place of each dispatch of a step. Those of one role that follow each other make one value in parts.
#[derive(Default)]
struct Places {
    last: String,
    /// Values of each role so far.
    numbers: BTreeMap<String, usize>,
}

impl Places {
    fn next(&mut self, role: &str) -> Place {
        let number = self.numbers.entry(role.to_owned()).or_default();
        if self.last != role {
            *number += 1;
            role.clone_into(&mut self.last);
        }
        Place { role: role.to_owned(), number: *number }
    }
}

/// Dispatches from behind the last that is known to be right to the first that is not; `None`: none is known to be wrong.
fn window(errors: &[Option<f64>]) -> Option<std::ops::Range<usize>> {
    let (mut begin, mut largest) = (0, 0.0f64);
    for (index, error) in errors.iter().enumerate() {
        let Some(error) = *error else { continue };
        if error.is_nan() || error > FLOOR.max(JUMP * largest) {
            return Some(begin..index + 1);
        }
        (begin, largest) = (index + 1, largest.max(error));
    }
    None
}

/// Layer and role of a dispatch's label, without its kernel: the same in all targets.
fn role(label: &str) -> &str {
    label.split(": ").next().unwrap_or(label)
}

/// f32 values of a range, spread over all of it.
fn values(part: &[u8]) -> Vec<f32> {
    let (words, _) = part.as_chunks::<4>();
    // An odd step reaches every column of a matrix.
    let step = (words.len() / MAX_VALUES) | 1;
    words.iter().step_by(step).map(|&word| f32::from_le_bytes(word)).collect()
}

/// Relative error of the first range of the same length; `None`: a target keeps these values in another form.
fn error(expected: &[Vec<f32>], parts: &[&[u8]]) -> Option<f64> {
    let found = parts.iter().map(|part| values(part));
    let both = expected.iter().zip(found).filter(|(one, other)| one.len() == other.len() && !one.is_empty());
    let errors = both.map(|(one, other)| {
        let square = |value: f32| f64::from(value).powi(2);
        let difference: f64 = one.iter().zip(&other).map(|(&one, &other)| square(one - other)).sum();
        let all: f64 = one.iter().map(|&value| square(value)).sum();
        if difference == 0.0 { 0.0 } else { (difference / all).sqrt() }
    });
    errors.reduce(|one, other| if other.is_nan() { other } else { one.max(other) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_behind_the_last_right_value() {
        assert_eq!(window(&[Some(1e-4), None, Some(2e-3), None, Some(0.5), Some(0.9)]), Some(3..5));
        assert_eq!(window(&[Some(1e-4), Some(f64::NAN)]), Some(1..2));
        // Errors that grow from layer to layer are those of rounded activations.
        assert_eq!(window(&[Some(0.01), Some(0.03), Some(0.06), Some(0.1)]), None);
    }

    #[test]
    fn parts_of_a_value_have_one_place_and_a_layer_s_norms_have_two() {
        let mut places = Places::default();
        let numbers = ["embed", "embed", "0.norm", "0.q_proj", "0.norm", "embed"].map(|role| places.next(role).number);
        assert_eq!(numbers, [1, 1, 1, 1, 2, 2]);
        assert_eq!(places.numbers["0.norm"], 2);
    }

    #[test]
    fn every_kernel_but_the_running_one_is_tried() {
        let tuned = Choice { version: 1, winners: [(3, 0), (5, 2)].into() };
        let of_five = |own: &Choice| -> Vec<Option<u32>> {
            trials(own, 5, 3).iter().map(|choice| choice.winners.get(&5).copied()).collect()
        };
        assert_eq!(of_five(&tuned), [None, Some(0), Some(1)]);
        assert_eq!(of_five(&Choice::default()), [Some(0), Some(1), Some(2)]);
        assert!(trials(&tuned, 5, 3).iter().all(|choice| choice.version == 1 && choice.winners[&3] == 0));
        assert_eq!(trials(&tuned, 5, 9).len(), MAX_TRIALS);
    }

    #[test]
    fn values_of_another_form_are_not_compared() {
        let expected = [vec![1.0, 2.0]];
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(error(&expected, &[&bytes(&[1.0])]), None);
        assert_eq!(error(&expected, &[&bytes(&[1.0, 2.0])]), Some(0.0));
        let half = error(&expected, &[&bytes(&[1.0, 1.0])]).unwrap();
        assert!((half - (1.0f64 / 5.0).sqrt()).abs() < 1e-9);
        assert_eq!(role("3.q_proj+k_proj: norm+matmul 64×64"), "3.q_proj+k_proj");
    }
}
