//! Which alternatives a device runs: pure functions of an artifact's kernels and of an earlier tuning.
//!
//! ```text
//! artifact: pipelines with alternatives,  ──┬─ candidates: what a tuning measures, kernel by kernel and step by step
//!           programs with other versions    └─ apply:      what is loaded, with the choices of an earlier tuning
//! ```

use std::collections::BTreeMap;

use unicorn_artifact::hash::hash_parts;
use unicorn_artifact::{LogitsRows, Pipeline, Program, TargetKernels};

use crate::vk::pipeline_cache::DeviceIdentity;

/// The fastest alternatives found on one device for one artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Identifies artifact, target, device and driver.
    pub key: [u8; 32],
    /// Steps without an entry run as the compiler chose.
    pub choices: BTreeMap<StepShape, Choice>,
}

/// Steps that are tuned separately, since a kernel that is fastest for one row may not be for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepShape {
    /// Most rows of the step.
    pub rows: u32,
    /// Each row belongs to a sequence of its own; a single row never counts as a batch.
    pub batch: bool,
    /// Smallest number of cached tokens for these steps.
    pub from_tokens: u32,
}

/// How steps of one shape run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Index of the program among those with the same result; 0 is the compiler's.
    pub version: u32,
    /// Alternative of each pipeline; pipelines without an entry stay as the compiler chose.
    pub winners: BTreeMap<u32, u32>,
}

/// Result of applying a tuning while a model was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningReport {
    /// The key of a tuning for this artifact on this device.
    pub key: [u8; 32],
    /// Number of step shapes that differ from the compiler's choice.
    pub tuned_steps: u32,
    /// Why the tuning was not applied. This is never an error: the compiler's choices run then.
    pub note: Option<String>,
}

/// The key of a tuning for `target` of the artifact with this content hash, on one device with one driver.
pub fn key(identity: &DeviceIdentity, content_hash: &[u8; 32], target: &TargetKernels) -> [u8; 32] {
    let target_name = hash_parts([target.name.as_bytes()]);
    let parts = [&identity.device[..], &identity.driver[..], &content_hash[..], &target_name[..]];
    hash_parts(parts.map(|part| hash_parts([part])).iter().map(|hash| &hash[..]))
}

/// `target` as it is loaded under `key`: every program once, with the pipelines that they use.
pub fn apply(target: &TargetKernels, key: [u8; 32], tuning: Option<&Tuning>) -> (TargetKernels, TuningReport) {
    let unchanged = |note| {
        let chosen = choose(target, &BTreeMap::new()).expect("the compiler's choice exists");
        (chosen, TuningReport { key, tuned_steps: 0, note })
    };
    let Some(tuning) = tuning else { return unchanged(None) };
    if tuning.key != key {
        return unchanged(Some("it belongs to another artifact, device or driver".into()));
    }
    match choose(target, &tuning.choices) {
        Some(tuned) => (tuned, TuningReport { key, tuned_steps: tuning.choices.len() as u32, note: None }),
        None => unchanged(Some("it names an alternative that the artifact does not hold".into())),
    }
}

/// The shapes of the target's steps, small ones first. What makes rows of images is no step of tokens; steps that predict have no alternatives; steps beside a prompt are not
/// timed by themselves: they take the choices of a prompt's step of as many rows, if there is one.
pub fn shapes(target: &TargetKernels) -> Vec<StepShape> {
    let is_timed = |program: &&Program| {
        !matches!(program.logits, LogitsRows::Image | LogitsRows::Predicted) && program.logits.prompts_beside() == 0
    };
    let steps = target.programs.iter().filter(is_timed);
    let mut shapes: Vec<StepShape> = steps.map(StepShape::of).collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

/// Programs of a shape with the same result in all versions, the compiler's first: those that sample a token if there are any.
pub fn versions(target: &TargetKernels, shape: StepShape) -> Vec<usize> {
    let of_shape = || target.programs.iter().filter(|program| StepShape::of(program) == shape);
    let Some(first) = of_shape().find(|program| program.samples).or(of_shape().next()) else { return Vec::new() };
    same_as(target, first)
}

impl StepShape {
    /// The shape of a program's steps.
    pub fn of(program: &Program) -> StepShape {
        StepShape { rows: program.rows, batch: program.batch && program.rows > 1, from_tokens: program.from_tokens }
    }
}

/// Every program of the target once, with `choices` applied; `None` if one of them does not exist in the target.
pub(super) fn choose(target: &TargetKernels, choices: &BTreeMap<StepShape, Choice>) -> Option<TargetKernels> {
    let none = Choice::default();
    let exists = |(shape, choice): (&StepShape, &Choice)| (choice.version as usize) < versions(target, *shape).len();
    let firsts = target.programs.iter().enumerate();
    let firsts = firsts.filter(|(index, program)| same_as(target, program).first() == Some(index));
    let chosen = firsts.map(|(index, program)| {
        let choice = choices.get(&StepShape::of(program)).unwrap_or(&none);
        (version_of(target, program, choice).unwrap_or(index), &choice.winners)
    });
    choices.iter().all(exists).then(|| assemble(target, &chosen.collect::<Vec<_>>()))?
}

/// Programs with the same input and result as `program`, the compiler's choice first.
pub(super) fn same_as(target: &TargetKernels, program: &Program) -> Vec<usize> {
    let kind = |program: &Program| {
        let &Program { rows, logits, samples, batch, images, from_tokens, .. } = program;
        (rows, logits, samples, batch, images, from_tokens)
    };
    let programs = target.programs.iter().enumerate();
    programs.filter(|(_, other)| kind(other) == kind(program)).map(|(index, _)| index).collect()
}

/// The version of a program that `choice` names; `None`: programs of one shape may have different numbers of versions.
pub(super) fn version_of(target: &TargetKernels, program: &Program, choice: &Choice) -> Option<usize> {
    same_as(target, program).get(choice.version as usize).copied()
}

/// A target of these programs, each with its pipelines' alternatives, and of the pipelines that they use; `None` if a pipeline or
/// alternative does not exist.
pub(super) fn assemble(target: &TargetKernels, programs: &[(usize, &BTreeMap<u32, u32>)]) -> Option<TargetKernels> {
    let mut made = TargetKernels { pipelines: Vec::new(), programs: Vec::new(), ..target.clone() };
    let mut numbers: BTreeMap<(u32, Option<u32>), u32> = BTreeMap::new();
    let mut number_of = |pipelines: &mut Vec<Pipeline>, number: u32, alternative: Option<u32>| {
        let own = target.pipelines.get(number as usize)?;
        let (name, module) = match alternative {
            None => (&own.name, own.module),
            Some(alternative) => own.alternatives.get(alternative as usize).map(|other| (&other.name, other.module))?,
        };
        Some(*numbers.entry((number, alternative)).or_insert_with(|| {
            let alternatives = Vec::new();
            pipelines.push(Pipeline { name: name.clone(), module, bindings: own.bindings, alternatives });
            pipelines.len() as u32 - 1
        }))
    };
    for (index, winners) in programs {
        let mut program = target.programs[*index].clone();
        for (&pipeline, &alternative) in *winners {
            target.pipelines.get(pipeline as usize)?.alternatives.get(alternative as usize)?;
        }
        for dispatch in &mut program.dispatches {
            let alternative = winners.get(&dispatch.pipeline).copied();
            if let Some(alternative) = alternative {
                dispatch.workgroups = dispatch.alternatives[alternative as usize];
            }
            dispatch.alternatives.clear();
            dispatch.pipeline = number_of(&mut made.pipelines, dispatch.pipeline, alternative)?;
        }
        made.programs.push(program);
    }
    let of_runtime = [
        (&mut made.checksum, target.checksum),
        (&mut made.bandwidth_probe, target.bandwidth_probe),
        (&mut made.fragments, target.fragments),
    ];
    for (of_runtime, number) in of_runtime {
        if let Some(number) = number {
            *of_runtime = Some(number_of(&mut made.pipelines, number, None)?);
        }
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::{Alternative, Dispatch, Order, TargetMatch};

    use super::*;
    use crate::tune::candidates::{cached_tokens, candidates, variants};

    const ONE: StepShape = StepShape { rows: 1, batch: false, from_tokens: 0 };
    const EIGHT: StepShape = StepShape { rows: 8, batch: true, from_tokens: 0 };

    /// A norm and a matmul with two alternatives; the step of one row has a second version without the norm.
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
            order: Order::Free,
            label: String::new(),
            weight_bytes: 0,
        };
        let program = |rows, dispatches| Program {
            rows,
            logits: LogitsRows::One,
            samples: true,
            batch: true,
            images: false,
            from_tokens: 0,
            dispatches,
        };
        let matmul = || dispatch(1, vec![[2; 3], [3; 3]]);
        TargetKernels {
            name: "one".into(),
            matches: TargetMatch::default(),
            modules: Default::default(),
            pipelines: vec![
                pipeline("norm", vec![]),
                pipeline("matmul", vec![alternative("a", 5), alternative("b", 6)]),
                pipeline("checksum", vec![]),
            ],
            programs: vec![
                program(8, vec![dispatch(0, vec![]), matmul()]),
                program(1, vec![dispatch(0, vec![]), matmul()]),
                program(1, vec![matmul()]),
            ],
            checksum: Some(2),
            bandwidth_probe: None,
            fragments: None,
        }
    }

    fn choice(version: u32, winner: Option<(u32, u32)>) -> Choice {
        Choice { version, winners: winner.into_iter().collect() }
    }

    /// For each program: rows, and pipeline and workgroups of each dispatch.
    fn listed(target: &TargetKernels) -> Vec<(u32, Vec<(&str, u32)>)> {
        let name = |dispatch: &Dispatch| target.pipelines[dispatch.pipeline as usize].name.as_str();
        let one = |program: &Program| {
            let dispatches = program.dispatches.iter().map(|one| (name(one), one.workgroups[0]));
            (program.rows, dispatches.collect::<Vec<_>>())
        };
        target.programs.iter().map(one).collect()
    }

    #[test]
    fn chosen_alternatives_replace_the_compilers_in_steps_of_their_shape() {
        let choices = BTreeMap::from([(EIGHT, choice(0, Some((1, 1)))), (ONE, choice(1, Some((1, 0))))]);
        let (tuned, report) = apply(&target(), [7; 32], Some(&Tuning { key: [7; 32], choices }));
        assert_eq!(listed(&tuned), [(8, vec![("norm", 1), ("b", 3)]), (1, vec![("a", 2)])]);
        assert_eq!((report.tuned_steps, report.note), (2, None));
        assert_eq!(tuned.pipelines[tuned.checksum.unwrap() as usize].name, "checksum");
    }

    #[test]
    fn without_a_tuning_only_the_compilers_choice_is_loaded() {
        let (untuned, report) = apply(&target(), [7; 32], None);
        let matmul = ("matmul", 1);
        assert_eq!(listed(&untuned), [(8, vec![("norm", 1), matmul]), (1, vec![("norm", 1), matmul])]);
        assert_eq!((untuned.pipelines.len(), report.note), (3, None));
    }

    #[test]
    fn a_tuning_for_another_artifact_or_damaged_changes_nothing() {
        let of = |key, shape, choice| Tuning { key, choices: BTreeMap::from([(shape, choice)]) };
        let two = StepShape { rows: 2, batch: true, from_tokens: 0 };
        for tuning in [
            of([8; 32], ONE, choice(0, Some((1, 1)))),
            of([7; 32], ONE, choice(0, Some((1, 2)))),
            of([7; 32], ONE, choice(0, Some((0, 0)))),
            of([7; 32], ONE, choice(0, Some((9, 0)))),
            of([7; 32], ONE, choice(2, None)),
            of([7; 32], EIGHT, choice(1, None)),
            of([7; 32], two, choice(0, None)),
        ] {
            let (changed, report) = apply(&target(), [7; 32], Some(&tuning));
            assert_eq!((changed, report.tuned_steps), (apply(&target(), [7; 32], None).0, 0));
            assert!(report.note.is_some());
        }
    }

    #[test]
    fn a_program_for_long_contexts_is_a_shape_of_its_own() {
        let mut target = target();
        target.programs.push(Program { from_tokens: 100, ..target.programs[1].clone() });
        let long = StepShape { from_tokens: 100, ..ONE };
        assert_eq!((shapes(&target), versions(&target, long)), (vec![ONE, long, EIGHT], vec![3]));
        let depths = |shape| [50, 99, 100, 500].map(|requested| cached_tokens(&target, shape, requested));
        assert_eq!(depths(ONE), [Some(50), Some(99), Some(99), Some(99)]);
        assert_eq!(depths(long), [None, None, Some(100), Some(500)]);
        assert_eq!(depths(EIGHT), [50, 99, 100, 500].map(Some));

        let tuning = Tuning { key: [7; 32], choices: BTreeMap::from([(long, choice(0, Some((1, 0))))]) };
        let (tuned, _) = apply(&target, [7; 32], Some(&tuning));
        let norm = ("norm", 1);
        let matmul = ("matmul", 1);
        let programs = [(8, vec![norm, matmul]), (1, vec![norm, matmul]), (1, vec![norm, ("a", 2)])];
        assert_eq!(listed(&tuned), programs);
    }

    #[test]
    fn a_program_is_measured_in_all_variants() {
        let target = target();
        assert_eq!(shapes(&target), [ONE, EIGHT]);
        assert_eq!((versions(&target, ONE), versions(&target, EIGHT)), (vec![1, 2], vec![0]));
        let all = candidates(&target, 1, |_| true);
        let norm = ("norm", 1);
        let programs = [("matmul", 1), ("a", 2), ("b", 3)].map(|matmul| (1, vec![norm, matmul]));
        assert_eq!((listed(&all.target), all.pipelines), (programs.to_vec(), vec![0, 1]));
        assert_eq!(all.names, BTreeMap::from([(1, vec!["matmul".into(), "a".into(), "b".into()])]));
        let none = candidates(&target, 1, |pipeline| pipeline.name == "norm");
        assert_eq!((none.target.programs.len(), none.names.len()), (1, 0));
        let both = variants(&target, ONE, &[Choice::default(), choice(1, Some((1, 1)))]).expect("both exist");
        assert_eq!(listed(&both), [(1, vec![norm, ("matmul", 1)]), (1, vec![("b", 3)])]);
        assert_eq!(variants(&target, ONE, &[choice(2, None)]), None);
    }
}
