//! Targets that contain a program in several variants, so that a tuning measures them in turn. Pure.

use std::collections::BTreeMap;

use unicorn_artifact::{Pipeline, TargetKernels};

use crate::tune::choices::{Choice, StepShape, assemble, shapes, versions};

/// A program as the compiler chose it, and once more for each index of alternatives, with all of its tuned pipelines replaced by
/// their alternative of that index.
pub struct Candidates {
    pub target: TargetKernels,
    /// The pipeline of each dispatch, as an index into the artifact's.
    pub pipelines: Vec<u32>,
    /// For each tuned pipeline, its own name and then its alternatives'.
    pub names: BTreeMap<u32, Vec<String>>,
}

/// Number of cached tokens at which steps of a shape are measured, where `requested` are requested: fewer where that many belong to
/// another shape. `None`: steps of this shape need more.
pub fn cached_tokens(target: &TargetKernels, shape: StepShape, requested: u32) -> Option<u32> {
    let longer = |other: &StepShape| {
        let as_this = StepShape { from_tokens: shape.from_tokens, ..*other };
        (as_this == shape && other.from_tokens > shape.from_tokens).then_some(other.from_tokens)
    };
    let next = shapes(target).iter().filter_map(longer).min().unwrap_or(u32::MAX);
    (shape.from_tokens <= requested).then_some(requested.min(next - 1))
}

/// The candidates of one program; only pipelines for which `is_tuned` holds are replaced.
pub fn candidates(target: &TargetKernels, program: usize, is_tuned: impl Fn(&Pipeline) -> bool) -> Candidates {
    let pipelines: Vec<u32> = target.programs[program].dispatches.iter().map(|dispatch| dispatch.pipeline).collect();
    let mut names: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for &number in &pipelines {
        let pipeline = &target.pipelines[number as usize];
        if !pipeline.alternatives.is_empty() && is_tuned(pipeline) {
            let others = pipeline.alternatives.iter().map(|other| other.name.clone());
            names.insert(number, [pipeline.name.clone()].into_iter().chain(others).collect());
        }
    }
    let count = names.values().map(Vec::len).max().unwrap_or(1);
    let nth = |candidate: usize| -> BTreeMap<u32, u32> {
        let holds = |names: &Vec<String>| candidate > 0 && names.len() > candidate;
        let holding = names.iter().filter(|(_, names)| holds(names));
        holding.map(|(&number, _)| (number, candidate as u32 - 1)).collect()
    };
    let winners: Vec<BTreeMap<u32, u32>> = (0..count).map(nth).collect();
    let programs: Vec<_> = winners.iter().map(|winners| (program, winners)).collect();
    let target = assemble(target, &programs).expect("alternatives were taken from the target");
    Candidates { target, pipelines, names }
}

/// The program of a shape, once for each choice; `None` if one of them does not exist in the target.
pub fn variants(target: &TargetKernels, shape: StepShape, choices: &[Choice]) -> Option<TargetKernels> {
    let versions = versions(target, shape);
    let program = |choice: &Choice| versions.get(choice.version as usize).copied();
    let programs = choices.iter().map(|choice| Some((program(choice)?, &choice.winners)));
    assemble(target, &programs.collect::<Option<Vec<_>>>()?)
}
