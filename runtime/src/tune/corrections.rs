//! Kernels that a self-test found wrong on one device, and what runs in their place: pure functions of an artifact's kernels.
//!
//! A program of another target can replace a target's own, because all targets of an artifact read the same weights, write
//! the same KV cache and share one arena.

use std::collections::BTreeMap;

use unicorn_artifact::{LogitsRows, ModuleSet, Program, TargetKernels};

use crate::device::choice::choose_target;
use crate::device::facts::DeviceFacts;
use crate::tune::choices::{Choice, StepShape, Tuning, TuningReport, apply, assemble, choose, same_as, version_of};

/// What runs in place of wrong kernels, on one device for one artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corrections {
    /// Identifies artifact, target, device and driver, as the key of a tuning does.
    pub key: [u8; 32],
    /// Steps without an entry run as they would without corrections.
    pub steps: BTreeMap<StepShape, Correction>,
    /// The artifact's target whose programs make the rows of images; `None`: its own do.
    pub images: Option<String>,
}

/// How steps of one shape run instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Correction {
    /// The own programs with these alternatives.
    Alternatives(Choice),
    /// The programs of the artifact's target of this name.
    Target(String),
}

/// Result of applying corrections while a model was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorrectionsReport {
    /// Number of step shapes that were corrected, and one for images.
    pub corrected_steps: u32,
    /// Why they were not applied. This is never an error: they are for one device and driver, and a test finds them again.
    pub note: Option<String>,
}

/// Target `number` as it is loaded on a device under `key`: tuned, and then corrected.
pub fn apply_corrected(
    targets: &[TargetKernels],
    number: usize,
    device: &DeviceFacts,
    key: [u8; 32],
    tuning: Option<&Tuning>,
    corrections: Option<&Corrections>,
) -> (TargetKernels, TuningReport, CorrectionsReport) {
    let target = &targets[number];
    let (tuned, report) = apply(target, key, tuning);
    let Some(corrections) = corrections else { return (tuned, report, CorrectionsReport::default()) };
    let without = |tuned, note: &str| {
        let note = Some(note.to_owned());
        (tuned, report.clone(), CorrectionsReport { corrected_steps: 0, note })
    };
    if corrections.key != key {
        return without(tuned, "it belongs to another artifact, device or driver");
    }
    let is_tuned = report.tuned_steps > 0;
    let mut choices = tuning.filter(|_| is_tuned).map(|tuning| tuning.choices.clone()).unwrap_or_default();
    for (shape, correction) in &corrections.steps {
        match correction {
            Correction::Alternatives(choice) => choices.insert(*shape, choice.clone()),
            Correction::Target(_) => choices.remove(shape),
        };
    }
    let corrected =
        choose(target, &choices).and_then(|made| with_programs_of_others(made, targets, device, &corrections.steps));
    let corrected = match &corrections.images {
        None => corrected,
        Some(name) => corrected.and_then(|made| with_images_of(made, targets, device, name)),
    };
    match corrected {
        None => without(tuned, "it names kernels that the artifact does not hold or the device does not run"),
        Some(made) => {
            let corrected_steps = corrections.steps.len() as u32 + u32::from(corrections.images.is_some());
            (made, report, CorrectionsReport { corrected_steps, note: None })
        }
    }
}

/// `made`, with the programs of other targets where `steps` say so; `None` if one of them has none, or requires what the device
/// lacks.
fn with_programs_of_others(
    mut made: TargetKernels,
    targets: &[TargetKernels],
    device: &DeviceFacts,
    steps: &BTreeMap<StepShape, Correction>,
) -> Option<TargetKernels> {
    let mut shapes_of: BTreeMap<&str, Vec<StepShape>> = BTreeMap::new();
    for (shape, correction) in steps {
        if let Correction::Target(name) = correction {
            shapes_of.entry(name).or_default().push(*shape);
        }
    }
    for (name, shapes) in shapes_of {
        let other = choose_target(targets, device, Some(name)).ok()?;
        let is_replaced = |program: &Program| shapes.contains(&StepShape::of(program));
        let (replaced, kept): (Vec<_>, Vec<_>) = made.programs.into_iter().partition(is_replaced);
        made.programs = kept;
        let fresh = only(other, is_replaced, &Choice::default())?;
        let is_there = |shape: &StepShape| fresh.programs.iter().any(|program| StepShape::of(program) == *shape);
        let missing: Vec<StepShape> = shapes.iter().copied().filter(|shape| !is_there(shape)).collect();
        append(&mut made, fresh);
        for shape in missing {
            let of_shape = replaced.iter().filter(|program| StepShape::of(program) == shape);
            append(&mut made, for_long_contexts(other, shape, &of_shape.collect::<Vec<_>>())?);
        }
    }
    Some(made)
}

/// `made`, with another target's programs for the rows of images; `None` if it has none, or requires what the device lacks.
fn with_images_of(
    mut made: TargetKernels,
    targets: &[TargetKernels],
    device: &DeviceFacts,
    name: &str,
) -> Option<TargetKernels> {
    let other = choose_target(targets, device, Some(name)).ok()?;
    let is_of_images = |program: &Program| program.logits == LogitsRows::Image;
    let fresh = only(other, is_of_images, &Choice::default())?;
    made.programs.retain(|program| !is_of_images(program));
    let has_some = !fresh.programs.is_empty();
    append(&mut made, fresh);
    has_some.then_some(made)
}

/// Programs for all contexts, of a target that has none for long contexts alone; they are used from the same number of cached
/// tokens on as the programs that they replace. `None` if there are none.
fn for_long_contexts(other: &TargetKernels, shape: StepShape, replaced: &[&Program]) -> Option<TargetKernels> {
    let for_all = StepShape { from_tokens: 0, ..shape };
    let gives = |program: &Program| (program.logits, program.samples);
    let is_wanted = |program: &Program| {
        StepShape::of(program) == for_all && replaced.iter().any(|replaced| gives(replaced) == gives(program))
    };
    let mut made = only(other, is_wanted, &Choice::default())?;
    made.programs.iter_mut().for_each(|program| program.from_tokens = shape.from_tokens);
    (!made.programs.is_empty()).then_some(made)
}

/// The programs that `is_wanted` accepts, each once, as `choice` has them, and their pipelines.
pub(super) fn only(
    target: &TargetKernels,
    is_wanted: impl Fn(&Program) -> bool,
    choice: &Choice,
) -> Option<TargetKernels> {
    let programs = target.programs.iter().enumerate();
    let wanted = programs.filter(|(index, program)| is_wanted(program) && same_as(target, program)[0] == *index);
    let chosen = wanted.map(|(index, program)| (version_of(target, program, choice).unwrap_or(index), &choice.winners));
    assemble(target, &chosen.collect::<Vec<_>>())
}

/// Adds the programs of `other` with their pipelines and modules behind those of `target`.
fn append(target: &mut TargetKernels, other: TargetKernels) {
    let (modules, pipelines) = (target.modules.records.len() as u32, target.pipelines.len() as u32);
    let ModuleSet { records, frames } = other.modules;
    target.modules.records.extend(records);
    target.modules.frames.extend(frames);
    target.pipelines.extend(other.pipelines.into_iter().map(|mut pipeline| {
        pipeline.module += modules;
        pipeline
    }));
    target.programs.extend(other.programs.into_iter().map(|mut program| {
        program.dispatches.iter_mut().for_each(|dispatch| dispatch.pipeline += pipelines);
        program
    }));
    let (own, others) = (&mut target.matches, &other.matches);
    own.shared_memory_bytes = own.shared_memory_bytes.max(others.shared_memory_bytes);
    own.workgroup_invocations = own.workgroup_invocations.max(others.workgroup_invocations);
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::modules::ModuleFrame;
    use unicorn_artifact::{Alternative, Dispatch, ModuleRecord, Order, Pipeline, TargetMatch};

    use super::*;
    use crate::device::facts::DeviceKind;
    use crate::device::facts::tests::facts;

    /// A target whose programs have one dispatch each, of a pipeline with one alternative.
    fn target(name: &str, rows: &[u32]) -> TargetKernels {
        let pipeline = |module| Pipeline {
            name: format!("{name} kernel {module}"),
            module,
            bindings: 1,
            alternatives: vec![Alternative { name: format!("{name} other"), module: 0 }],
        };
        let program = |(pipeline, &rows): (u32, &u32)| Program {
            rows,
            logits: LogitsRows::All,
            samples: false,
            batch: false,
            images: false,
            from_tokens: 0,
            dispatches: vec![Dispatch {
                pipeline,
                workgroups: [1, 1, 1],
                alternatives: vec![[2, 1, 1]],
                bindings: Vec::new(),
                order: Order::Free,
                label: "0.norm: norm".into(),
                weight_bytes: 0,
            }],
        };
        let count = rows.len() as u32;
        let records = vec![ModuleRecord::default(); rows.len()];
        TargetKernels {
            name: name.into(),
            matches: TargetMatch { shared_memory_bytes: rows.len() as u32, ..TargetMatch::default() },
            modules: ModuleSet { records, frames: vec![ModuleFrame { modules: count, zstd: vec![] }] },
            pipelines: (0..count).map(pipeline).collect(),
            programs: (0..).zip(rows).map(program).collect(),
            checksum: None,
            bandwidth_probe: None,
            fragments: None,
        }
    }

    const fn shape(rows: u32) -> StepShape {
        StepShape { rows, batch: false, from_tokens: 0 }
    }

    fn corrected(steps: &[(StepShape, Correction)]) -> (TargetKernels, CorrectionsReport) {
        correct(&[target("own", &[1, 8]), target("generic", &[1, 8, 64])], [1; 32], steps)
    }

    /// Corrects the first target, on a device with subgroups of 64.
    fn correct(
        targets: &[TargetKernels],
        key: [u8; 32],
        steps: &[(StepShape, Correction)],
    ) -> (TargetKernels, CorrectionsReport) {
        let device = facts(0, "a device", DeviceKind::Discrete);
        let corrections = Corrections { key, steps: steps.iter().cloned().collect(), images: None };
        let (made, _, report) = apply_corrected(targets, 0, &device, [1; 32], None, Some(&corrections));
        (made, report)
    }

    fn kernel_of(target: &TargetKernels, rows: u32) -> (&str, u32) {
        let program = target.programs.iter().find(|program| program.rows == rows).unwrap();
        let pipeline = &target.pipelines[program.dispatches[0].pipeline as usize];
        (&pipeline.name, pipeline.module)
    }

    #[test]
    fn programs_of_another_target_take_the_place_of_wrong_ones() {
        let (made, report) = corrected(&[(shape(8), Correction::Target("generic".into()))]);
        assert_eq!(report, CorrectionsReport { corrected_steps: 1, note: None });
        assert_eq!(kernel_of(&made, 1), ("own kernel 0", 0));
        // Behind the two modules of the target itself.
        assert_eq!(kernel_of(&made, 8), ("generic kernel 1", 2 + 1));
        assert_eq!((made.programs.len(), made.modules.records.len(), made.modules.frames.len()), (2, 5, 2));
        assert_eq!(made.matches.shared_memory_bytes, 3);
    }

    #[test]
    fn another_targets_program_for_all_contexts_takes_the_place_of_a_wrong_one_for_long_ones() {
        let mut own = target("own", &[1, 1]);
        own.programs[1].from_tokens = 1024;
        let long = StepShape { from_tokens: 1024, ..shape(1) };
        let steps = [(long, Correction::Target("generic".into()))];
        let (made, report) = correct(&[own, target("generic", &[1])], [1; 32], &steps);
        assert_eq!((report.corrected_steps, report.note), (1, None));
        let name = |program: &Program| &made.pipelines[program.dispatches[0].pipeline as usize].name;
        let names: Vec<_> = made.programs.iter().map(|program| (program.from_tokens, name(program).as_str())).collect();
        assert_eq!(names, [(0, "own kernel 0"), (1024, "generic kernel 0")]);
    }

    #[test]
    fn another_target_makes_the_rows_of_images() {
        let mut targets = [target("own", &[1, 8]), target("generic", &[1, 8]), target("blind", &[1, 8])];
        targets[..2].iter_mut().for_each(|target| target.programs[1].logits = LogitsRows::Image);
        let device = facts(0, "a device", DeviceKind::Discrete);
        let corrected = |name: &str| {
            let corrections = Corrections { key: [1; 32], steps: BTreeMap::new(), images: Some(name.into()) };
            let (made, _, report) = apply_corrected(&targets, 0, &device, [1; 32], None, Some(&corrections));
            (made, report)
        };
        let (made, report) = corrected("generic");
        assert_eq!(report, CorrectionsReport { corrected_steps: 1, note: None });
        assert_eq!((kernel_of(&made, 1).0, kernel_of(&made, 8).0), ("own kernel 0", "generic kernel 1"));
        let (made, report) = corrected("blind");
        assert_eq!((kernel_of(&made, 8).0, report.note.is_some()), ("own kernel 1", true));
    }

    #[test]
    fn an_alternative_takes_the_place_of_a_wrong_kernel() {
        let choice = Choice { version: 0, winners: [(0, 0)].into() };
        let (made, report) = corrected(&[(shape(1), Correction::Alternatives(choice))]);
        assert_eq!(report.corrected_steps, 1);
        assert_eq!((kernel_of(&made, 1).0, kernel_of(&made, 8).0), ("own other", "own kernel 1"));
    }

    #[test]
    fn what_does_not_fit_is_reported_and_not_applied() {
        let note = |steps: &[(StepShape, Correction)]| corrected(steps).1.note.unwrap();
        let missing = "it names kernels that the artifact does not hold or the device does not run";
        assert_eq!(note(&[(shape(8), Correction::Target("absent".into()))]), missing);
        assert_eq!(note(&[(shape(128), Correction::Target("generic".into()))]), missing);
        let choice = Choice { version: 0, winners: [(0, 7)].into() };
        assert_eq!(note(&[(shape(1), Correction::Alternatives(choice))]), missing);
        let (_, report) = correct(&[target("own", &[1])], [2; 32], &[]);
        assert_eq!(report.note.unwrap(), "it belongs to another artifact, device or driver");
        // A file may name any target, and a driver does not check what it cannot run.
        let mut other = target("other", &[1]);
        other.matches.subgroup_size = 48;
        let targets = [target("own", &[1]), other];
        let (_, report) = correct(&targets, [1; 32], &[(shape(1), Correction::Target("other".into()))]);
        assert_eq!(report.note.unwrap(), missing);
    }
}
