//! Which of its alternatives a device runs: pure functions of an artifact's kernels and of what was measured.
//!
//! ```text
//! artifact: pipelines with alternatives,  ──┬─ candidates: what `tune` measures, kernel by kernel
//!           programs with other versions    ├─ together:   what it measures then, step by step
//!                                           └─ tuned:      what is loaded, with the winners of an earlier `tune`
//! ```

use std::collections::BTreeMap;

use unicorn_artifact::hash::hash_parts;
use unicorn_artifact::{Pipeline, Program, TargetKernels};

use crate::vk::cache::Identity;

/// What was found best on one device for one artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Whose it is: artifact, target, device and driver in one.
    pub key: [u8; 32],
    /// Steps that are not named stay as the compiler made them.
    pub choices: BTreeMap<StepShape, Choice>,
}

/// Steps that are tuned apart: a kernel that is best for one row need not be for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepShape {
    /// Most rows of the step.
    pub rows: u32,
    /// Each is of a sequence of its own; a single row never counts as a batch.
    pub batch: bool,
    /// Cached tokens from which on they are this and no other.
    pub from_tokens: u32,
}

/// How steps of one shape run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Which of the programs that give the same; 0: the compiler's.
    pub version: u32,
    /// Alternative by pipeline; pipelines that are not named stay as the compiler chose them.
    pub winners: BTreeMap<u32, u32>,
}

/// What became of a tuning while a model was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningReport {
    /// The key that a tuning of this artifact on this device has.
    pub key: [u8; 32],
    /// Shapes whose steps are not the compiler's choice.
    pub tuned_steps: u32,
    /// Why the tuning was not used. Everything else goes on as if it had never been.
    pub note: Option<String>,
}

/// Of a target of the artifact with this content, on one device with one driver.
pub fn key(identity: &Identity, content_hash: &[u8; 32], target: &TargetKernels) -> [u8; 32] {
    let target_name = hash_parts([target.name.as_bytes()]);
    let parts = [&identity.device[..], &identity.driver[..], &content_hash[..], &target_name[..]];
    hash_parts(parts.map(|part| hash_parts([part])).iter().map(|hash| &hash[..]))
}

/// `target` as it is to be loaded under `key`: every program once, and the pipelines that they use.
pub fn tuned(target: &TargetKernels, key: [u8; 32], tuning: Option<&Tuning>) -> (TargetKernels, TuningReport) {
    let untuned = |note| {
        let chosen = choose(target, &BTreeMap::new()).expect("the compiler's choice is there");
        (chosen, TuningReport { key, tuned_steps: 0, note })
    };
    let Some(tuning) = tuning else { return untuned(None) };
    if tuning.key != key {
        return untuned(Some("it is of another artifact, device or driver".into()));
    }
    match choose(target, &tuning.choices) {
        Some(tuned) => (tuned, TuningReport { key, tuned_steps: tuning.choices.len() as u32, note: None }),
        None => untuned(Some("it names an alternative that the artifact does not hold".into())),
    }
}

/// The shapes of the target's steps, small ones first.
pub fn shapes(target: &TargetKernels) -> Vec<StepShape> {
    let mut shapes: Vec<StepShape> = target.programs.iter().map(StepShape::of).collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

/// How deep steps of a shape are measured, where `asked` tokens are cached: not so deep that they would be of another shape.
/// `None`: they are never of this one.
pub fn depth(target: &TargetKernels, shape: StepShape, asked: u32) -> Option<u32> {
    let deeper = |other: &StepShape| {
        let of_both = StepShape { from_tokens: shape.from_tokens, ..*other };
        (of_both == shape && other.from_tokens > shape.from_tokens).then_some(other.from_tokens)
    };
    let before = shapes(target).iter().filter_map(deeper).min().unwrap_or(u32::MAX);
    (shape.from_tokens <= asked).then_some(asked.min(before - 1))
}

/// Of the programs of a shape, the one that stands for them (it draws a token, where one does) in all its versions.
pub fn versions(target: &TargetKernels, shape: StepShape) -> Vec<usize> {
    let of_shape = || target.programs.iter().filter(|program| StepShape::of(program) == shape);
    let Some(standing) = of_shape().find(|program| program.samples).or(of_shape().next()) else { return Vec::new() };
    same_as(target, standing)
}

/// A program as the compiler chose it, and again with all of its pipelines' alternatives number 0, 1 and so on. Only
/// pipelines that are `wanted` change.
pub struct Candidates {
    pub target: TargetKernels,
    /// Number of each dispatch's pipeline in the artifact.
    pub pipelines: Vec<u32>,
    /// Of each pipeline that changes: its own name, then its alternatives'.
    pub names: BTreeMap<u32, Vec<String>>,
}

pub fn candidates(target: &TargetKernels, program: usize, wanted: impl Fn(&Pipeline) -> bool) -> Candidates {
    let pipelines: Vec<u32> = target.programs[program].dispatches.iter().map(|dispatch| dispatch.pipeline).collect();
    let mut names: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for &number in &pipelines {
        let pipeline = &target.pipelines[number as usize];
        if !pipeline.alternatives.is_empty() && wanted(pipeline) {
            let others = pipeline.alternatives.iter().map(|other| other.name.clone());
            names.insert(number, [pipeline.name.clone()].into_iter().chain(others).collect());
        }
    }
    let most = names.values().map(Vec::len).max().unwrap_or(1);
    let nth = |candidate: usize| -> BTreeMap<u32, u32> {
        let holds = |names: &Vec<String>| candidate > 0 && names.len() > candidate;
        let holding = names.iter().filter(|(_, names)| holds(names));
        holding.map(|(&number, _)| (number, candidate as u32 - 1)).collect()
    };
    let winners: Vec<BTreeMap<u32, u32>> = (0..most).map(nth).collect();
    let programs: Vec<_> = winners.iter().map(|winners| (program, winners)).collect();
    let target = assemble(target, &programs).expect("only alternatives that are there were asked for");
    Candidates { target, pipelines, names }
}

/// The program that stands for a shape, once for each choice; `None` if the artifact does not hold one.
pub fn together(target: &TargetKernels, shape: StepShape, choices: &[Choice]) -> Option<TargetKernels> {
    let versions = versions(target, shape);
    let program = |choice: &Choice| versions.get(choice.version as usize).copied();
    let programs = choices.iter().map(|choice| Some((program(choice)?, &choice.winners)));
    assemble(target, &programs.collect::<Option<Vec<_>>>()?)
}

impl StepShape {
    fn of(program: &Program) -> StepShape {
        StepShape { rows: program.rows, batch: program.batch && program.rows > 1, from_tokens: program.from_tokens }
    }
}

/// Every program of the target once, as `choices` say; `None` if they ask for what is not there.
fn choose(target: &TargetKernels, choices: &BTreeMap<StepShape, Choice>) -> Option<TargetKernels> {
    let none = Choice::default();
    let is_there = |(shape, choice): (&StepShape, &Choice)| (choice.version as usize) < versions(target, *shape).len();
    let firsts = target.programs.iter().enumerate();
    let firsts = firsts.filter(|(index, program)| same_as(target, program).first() == Some(index));
    let chosen = firsts.map(|(index, program)| {
        let choice = choices.get(&StepShape::of(program)).unwrap_or(&none);
        // Not every program of a shape comes in as many versions.
        (same_as(target, program).get(choice.version as usize).copied().unwrap_or(index), &choice.winners)
    });
    choices.iter().all(is_there).then(|| assemble(target, &chosen.collect::<Vec<_>>()))?
}

/// Programs that take and give the same as `program`, the compiler's choice first.
fn same_as(target: &TargetKernels, program: &Program) -> Vec<usize> {
    let kind = |program: &Program| (program.rows, program.logits, program.samples, program.batch, program.from_tokens);
    let programs = target.programs.iter().enumerate();
    programs.filter(|(_, other)| kind(other) == kind(program)).map(|(index, _)| index).collect()
}

/// A target of these programs, each with its pipelines' winners, and of the pipelines that they use; `None` if a pipeline or
/// alternative is not there.
fn assemble(target: &TargetKernels, programs: &[(usize, &BTreeMap<u32, u32>)]) -> Option<TargetKernels> {
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
        (&mut made.reads, target.reads),
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
    use unicorn_artifact::{Alternative, Dispatch, LogitsRows, Order, TargetMatch};

    use super::*;

    const ONE: StepShape = StepShape { rows: 1, batch: false, from_tokens: 0 };
    const EIGHT: StepShape = StepShape { rows: 8, batch: true, from_tokens: 0 };

    /// Norms and matmuls, of which the latter have two alternatives; the step of one row also comes without its norm.
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
            from_tokens: 0,
            dispatches,
        };
        let matmul = || dispatch(1, vec![[2; 3], [3; 3]]);
        TargetKernels {
            name: "one".into(),
            matches: TargetMatch::default(),
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
            reads: None,
            fragments: None,
        }
    }

    fn choice(version: u32, winner: Option<(u32, u32)>) -> Choice {
        Choice { version, winners: winner.into_iter().collect() }
    }

    /// Of each program: rows, and pipeline and workgroups of each dispatch.
    fn listed(target: &TargetKernels) -> Vec<(u32, Vec<(&str, u32)>)> {
        let name = |dispatch: &Dispatch| target.pipelines[dispatch.pipeline as usize].name.as_str();
        let one = |program: &Program| {
            let dispatches = program.dispatches.iter().map(|one| (name(one), one.workgroups[0]));
            (program.rows, dispatches.collect::<Vec<_>>())
        };
        target.programs.iter().map(one).collect()
    }

    #[test]
    fn winners_take_the_place_of_what_they_beat_in_steps_of_their_shape() {
        let choices = BTreeMap::from([(EIGHT, choice(0, Some((1, 1)))), (ONE, choice(1, Some((1, 0))))]);
        let (tuned, report) = tuned(&target(), [7; 32], Some(&Tuning { key: [7; 32], choices }));
        assert_eq!(listed(&tuned), [(8, vec![("norm", 1), ("b", 3)]), (1, vec![("a", 2)])]);
        assert_eq!((report.tuned_steps, report.note), (2, None));
        assert_eq!(tuned.pipelines[tuned.checksum.unwrap() as usize].name, "checksum");
    }

    #[test]
    fn without_a_tuning_nothing_but_the_compilers_choice_is_loaded() {
        let (untuned, report) = tuned(&target(), [7; 32], None);
        let matmul = ("matmul", 1);
        assert_eq!(listed(&untuned), [(8, vec![("norm", 1), matmul]), (1, vec![("norm", 1), matmul])]);
        assert_eq!((untuned.pipelines.len(), report.note), (3, None));
    }

    #[test]
    fn a_foreign_or_broken_tuning_changes_nothing() {
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
            let (changed, report) = tuned(&target(), [7; 32], Some(&tuning));
            assert_eq!((changed, report.tuned_steps), (tuned(&target(), [7; 32], None).0, 0));
            assert!(report.note.is_some());
        }
    }

    #[test]
    fn a_program_for_long_sequences_is_a_shape_of_its_own_and_each_is_measured_where_it_runs() {
        let mut target = target();
        target.programs.push(Program { from_tokens: 100, ..target.programs[1].clone() });
        let deep = StepShape { from_tokens: 100, ..ONE };
        assert_eq!((shapes(&target), versions(&target, deep)), (vec![ONE, deep, EIGHT], vec![3]));
        let depths = |shape| [50, 99, 100, 500].map(|asked| depth(&target, shape, asked));
        assert_eq!(depths(ONE), [Some(50), Some(99), Some(99), Some(99)]);
        assert_eq!(depths(deep), [None, None, Some(100), Some(500)]);
        assert_eq!(depths(EIGHT), [50, 99, 100, 500].map(Some));

        let tuning = Tuning { key: [7; 32], choices: BTreeMap::from([(deep, choice(0, Some((1, 0))))]) };
        let (tuned, _) = tuned(&target, [7; 32], Some(&tuning));
        let norm = ("norm", 1);
        let matmul = ("matmul", 1);
        let programs = [(8, vec![norm, matmul]), (1, vec![norm, matmul]), (1, vec![norm, ("a", 2)])];
        assert_eq!(listed(&tuned), programs);
    }

    #[test]
    fn what_is_measured_is_one_program_in_every_way() {
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
        let both = together(&target, ONE, &[Choice::default(), choice(1, Some((1, 1)))]).expect("both are there");
        assert_eq!(listed(&both), [(1, vec![norm, ("matmul", 1)]), (1, vec![("b", 3)])]);
        assert_eq!(together(&target, ONE, &[choice(2, None)]), None);
    }
}
