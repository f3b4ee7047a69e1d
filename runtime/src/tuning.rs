//! Which of a pipeline's alternatives a device runs: pure functions of an artifact's kernels and of what was measured.
//!
//! ```text
//! artifact: pipelines with alternatives ──┬─ one_token: what `tune` measures, once an alternative
//!                                         └─ tuned: what is loaded, with the winners of an earlier `tune`
//! ```

use std::collections::BTreeMap;

use artifacts::hash::hash_parts;
use artifacts::{Pipeline, TargetKernels};

use crate::vk::cache::Identity;

/// What was found best on one device for one artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Whose it is: artifact, target, device and driver in one.
    pub key: [u8; 32],
    /// Alternative by pipeline; pipelines that are not named stay as the compiler chose them.
    pub winners: BTreeMap<u32, u32>,
}

/// What became of a tuning while a model was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningReport {
    /// The key that a tuning of this artifact on this device has.
    pub key: [u8; 32],
    /// Pipelines that are not the compiler's choice.
    pub winners: u32,
    /// Why the tuning was not used. Everything else goes on as if it had never been.
    pub note: Option<String>,
}

/// Of a target of the artifact with this content, on one device with one driver.
pub fn key(identity: &Identity, content_hash: &[u8; 32], target: &TargetKernels) -> [u8; 32] {
    let target_name = hash_parts([target.name.as_bytes()]);
    let parts = [&identity.device[..], &identity.driver[..], &content_hash[..], &target_name[..]];
    hash_parts(parts.map(|part| hash_parts([part])).iter().map(|hash| &hash[..]))
}

/// `target` as it is to be loaded under `key`.
pub fn tuned(target: &TargetKernels, key: [u8; 32], tuning: Option<&Tuning>) -> (TargetKernels, TuningReport) {
    let untuned = |note| (target.clone(), TuningReport { key, winners: 0, note });
    let Some(tuning) = tuning else { return untuned(None) };
    if tuning.key != key {
        return untuned(Some("it is of another artifact, device or driver".into()));
    }
    match with_alternatives(target, &tuning.winners) {
        Some(tuned) => (tuned, TuningReport { key, winners: tuning.winners.len() as u32, note: None }),
        None => untuned(Some("it names an alternative that the artifact does not hold".into())),
    }
}

/// The target with its pipelines' alternatives number `alternative`, where they have as many.
pub fn with_alternative(target: &TargetKernels, alternative: u32) -> TargetKernels {
    let holds = |pipeline: &Pipeline| pipeline.alternatives.len() > alternative as usize;
    let numbers = (0..).zip(&target.pipelines).filter(|(_, pipeline)| holds(pipeline)).map(|(number, _)| number);
    let winners = numbers.map(|number| (number, alternative)).collect();
    with_alternatives(target, &winners).expect("only alternatives that are there were asked for")
}

/// Most alternatives that a pipeline has.
pub fn most_alternatives(target: &TargetKernels) -> u32 {
    target.pipelines.iter().map(|pipeline| pipeline.alternatives.len() as u32).max().unwrap_or(0)
}

/// The program that draws a token from one row, and its pipelines alone; dispatches keep their order. With the number that
/// each dispatch's pipeline had before.
pub fn one_token(target: &TargetKernels) -> (TargetKernels, Vec<u32>) {
    let fits = |program: &&artifacts::Program| program.rows == 1 && program.batch && program.samples;
    let mut programs: Vec<_> = target.programs.iter().find(fits).cloned().into_iter().collect();
    let mut pipelines = Vec::new();
    let mut renumbered: BTreeMap<u32, u32> = BTreeMap::new();
    let mut before = Vec::new();
    for dispatch in programs.iter_mut().flat_map(|program| &mut program.dispatches) {
        before.push(dispatch.pipeline);
        dispatch.pipeline = *renumbered.entry(dispatch.pipeline).or_insert_with_key(|&old| {
            pipelines.push(target.pipelines[old as usize].clone());
            pipelines.len() as u32 - 1
        });
    }
    (TargetKernels { pipelines, programs, ..target.clone() }, before)
}

/// `None` if a pipeline or alternative is not there.
fn with_alternatives(target: &TargetKernels, winners: &BTreeMap<u32, u32>) -> Option<TargetKernels> {
    let mut changed = target.clone();
    for (&pipeline, &alternative) in winners {
        let pipeline = changed.pipelines.get_mut(pipeline as usize)?;
        let other = pipeline.alternatives.get(alternative as usize)?.clone();
        (pipeline.name, pipeline.module) = (other.name, other.module);
    }
    for dispatch in changed.programs.iter_mut().flat_map(|program| &mut program.dispatches) {
        if let Some(&alternative) = winners.get(&dispatch.pipeline) {
            dispatch.workgroups = dispatch.alternatives[alternative as usize];
        }
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use artifacts::{Alternative, Dispatch, LogitsRows, Program, TargetMatch};

    use super::*;

    /// Two pipelines, of which the second has two alternatives; it is the first that the one-token program uses.
    fn target() -> TargetKernels {
        let alternative = |name: &str, module| Alternative { name: name.into(), module };
        let pipeline = |name: &str, alternatives: Vec<Alternative>| Pipeline {
            name: name.into(),
            module: 0,
            bindings: 1,
            alternatives,
        };
        let dispatch = |pipeline: u32, alternatives: Vec<[u32; 3]>| Dispatch {
            pipeline,
            workgroups: [1; 3],
            alternatives,
            bindings: vec![],
            barrier_before: false,
            label: String::new(),
            weight_bytes: 0,
        };
        let program =
            |rows, dispatches| Program { rows, logits: LogitsRows::One, samples: true, batch: true, dispatches };
        let matmul = || dispatch(1, vec![[2; 3], [3; 3]]);
        TargetKernels {
            name: "one".into(),
            matches: TargetMatch::default(),
            pipelines: vec![
                pipeline("norm", vec![]),
                pipeline("matmul", vec![alternative("a", 5), alternative("b", 6)]),
            ],
            programs: vec![program(8, vec![dispatch(0, vec![]), matmul()]), program(1, vec![matmul()])],
            checksum: None,
        }
    }

    #[test]
    fn winners_take_the_place_of_what_they_beat() {
        let tuning = Tuning { key: [7; 32], winners: BTreeMap::from([(1, 1)]) };
        let (tuned, report) = tuned(&target(), [7; 32], Some(&tuning));
        assert_eq!((tuned.pipelines[1].name.as_str(), tuned.pipelines[1].module), ("b", 6));
        assert_eq!(tuned.programs[0].dispatches.iter().map(|one| one.workgroups).collect::<Vec<_>>(), [[1; 3], [3; 3]]);
        assert_eq!((report.winners, report.note), (1, None));
    }

    #[test]
    fn a_foreign_or_broken_tuning_changes_nothing() {
        let of = |key, winner| Tuning { key, winners: BTreeMap::from([winner]) };
        for tuning in [of([8; 32], (1, 1)), of([7; 32], (1, 2)), of([7; 32], (0, 0)), of([7; 32], (9, 0))] {
            let (tuned, report) = tuned(&target(), [7; 32], Some(&tuning));
            assert_eq!((tuned, report.winners), (target(), 0));
            assert!(report.note.is_some());
        }
        assert_eq!(tuned(&target(), [7; 32], None).1.note, None);
    }

    #[test]
    fn what_is_measured_is_the_one_token_program_by_itself() {
        let (one, before) = one_token(&with_alternative(&target(), 0));
        assert_eq!((one.programs.len(), one.pipelines.len(), before), (1, 1, vec![1]));
        assert_eq!((one.pipelines[0].name.as_str(), one.programs[0].dispatches[0].workgroups), ("a", [2; 3]));
        assert_eq!(one.programs[0].dispatches[0].pipeline, 0);
        assert_eq!(most_alternatives(&target()), 2);
    }
}
