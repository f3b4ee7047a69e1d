//! `tune`: times every alternative of the kernels of every step, on this device and this model's own buffers, and writes the
//! winners to a file in the artifact's folder for later starts.
//!
//! ```text
//! shape of a step ─► kernels, in each version of its program ─► winners ─► whole steps with them ─► the fastest, if it is another
//! ```
//!
//! The file is written after each shape, so that an interrupted tuning keeps what it has measured.

mod decide;
mod progress;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use unicorn_artifact::Pipeline;
use unicorn_artifact::header::hex;
use unicorn_compiler::targets;

use crate::args::TuneArgs;
use crate::error::CliError;
use crate::files::tuning_file::{TunedStep, TuningFile, earlier_steps, path_for};
use crate::load::{load_candidates, max_positions};
use crate::report::steps::step_name;
use crate::terminal::interrupt;
use crate::terminal::output::{note, print, print_json};
use decide::{choices, decided};
use progress::Progress;
use report::{StepTimes, TuneReport, VersionTimes};
use unicorn_runtime::{Effort, Model, RunError, StepShape, TimedPipeline, TuneError};

const ROUNDS: u32 = 5;
const QUICK_ROUNDS: u32 = 2;
/// Time for all measurements of a quick tuning. Loading and compiling take additional time, less than a minute on a GPU.
const QUICK_TIME: Duration = Duration::from_secs(40);
/// Rows of the largest step: nothing is measured in a shorter context than its prefill, where the model has one.
const MIN_CONTEXT_TOKENS: u32 = 512;
const MAX_SEQUENCES: u32 = 64;

pub fn run(args: &TuneArgs) -> Result<(), CliError> {
    let context_tokens = MIN_CONTEXT_TOKENS.max(args.depth.saturating_add(1)).min(max_positions(&args.artifact)?);
    let model = load(args, context_tokens)?;
    check_alternatives(args, &model)?;
    interrupt::catch()?;
    let depth_tokens = args.depth.min(context_tokens - 1);
    let shapes = shapes(args, &model, depth_tokens);
    // Kernels of each version, and whole steps.
    let phases: u32 = shapes.iter().map(|(_, versions)| versions + 1).sum();
    let effort = Effort {
        rounds: args.rounds.unwrap_or(if args.quick { QUICK_ROUNDS } else { ROUNDS }),
        steps: args.steps,
        depth_tokens,
        max_time: args.quick.then(|| QUICK_TIME / phases.max(1)),
    };
    let mut tuning = Tuning::new(args, &model, depth_tokens);
    let mut progress = Progress::new(phases);
    for (shape, versions) in shapes.iter().copied() {
        match measure(args, &model, shape, versions, effort, &mut progress) {
            Ok(step) => tuning.add(step)?,
            Err(TuneError::Run(RunError::Cancelled)) => {
                progress.finish();
                tuning.report.interrupted = true;
                tuning.print(args)?;
                tuning.explain_interruption(shapes.len());
                return Err(CliError::Interrupted);
            }
            Err(error) => return Err(CliError::new(error)),
        }
    }
    progress.finish();
    tuning.write()?;
    tuning.print(args)
}

/// Refuses an artifact without the alternatives that a compile for its target can make.
fn check_alternatives(args: &TuneArgs, model: &Model) -> Result<(), CliError> {
    let name = &model.report().target;
    let mut pipelines =
        model.targets().iter().filter(|target| target.name == *name).flat_map(|target| &target.pipelines);
    let is_measured = targets().iter().any(|target| target.name == *name && target.is_measured);
    if is_measured || pipelines.any(|pipeline| !pipeline.alternatives.is_empty()) {
        return Ok(());
    }
    let artifact = args.artifact.display();
    let tunable = args.artifact.with_extension("tunable.unicorn");
    let tunable = tunable.file_name().unwrap_or_default().display();
    Err(CliError::new(format!(
        "{artifact} has one kernel for each piece of work on {name}, expected others to choose from; add them, and tune the new \
         artifact: unicorn-compile retarget {artifact} --alternatives -o {tunable}"
    )))
}

/// Shapes of steps to tune, and how many versions of their program are compared.
fn shapes(args: &TuneArgs, model: &Model, depth_tokens: u32) -> Vec<(StepShape, u32)> {
    let mut shapes = model.tunable(depth_tokens);
    if args.quick {
        let largest = shapes.iter().map(|(shape, _)| shape.rows).max();
        shapes.retain(|(shape, _)| shape.rows == 1 || Some(shape.rows) == largest);
    }
    // Another version of the program changes all of its kernels, so it is not compared for some of them.
    let versions = |versions| if args.only.is_some() { 1 } else { versions };
    shapes.into_iter().map(|(shape, all)| (shape, versions(all))).collect()
}

/// What was measured so far, and the file of winners that results.
struct Tuning<'a> {
    args: &'a TuneArgs,
    /// Steps of an earlier tuning on this device. Those whose shapes are not measured now are kept.
    earlier: Vec<TunedStep>,
    report: TuneReport,
}

impl<'a> Tuning<'a> {
    fn new(args: &'a TuneArgs, model: &Model, depth_tokens: u32) -> Tuning<'a> {
        let file = TuningFile {
            key: hex(&model.report().tuning.key),
            device: model.device().name.clone(),
            driver: model.device().driver.clone(),
            target: model.report().target.clone(),
            steps: Vec::new(),
        };
        let earlier = earlier_steps(&args.artifact, &file.key);
        Tuning { args, earlier, report: TuneReport { depth_tokens, interrupted: false, file, measured: Vec::new() } }
    }

    fn add(&mut self, step: StepTimes) -> Result<(), CliError> {
        self.report.measured.push(step);
        self.write().map(drop)
    }

    fn write(&mut self) -> Result<PathBuf, CliError> {
        self.report.file.steps = merged(&self.earlier, &self.report.measured);
        self.report.file.write(&self.args.artifact)
    }

    fn print(&self, args: &TuneArgs) -> Result<(), CliError> {
        if args.json {
            return print_json(&self.report);
        }
        let written = match self.report.measured.is_empty() {
            true => String::new(),
            false => format!("\nwritten to {}\n", path_for(&args.artifact).display()),
        };
        print(&(self.report.page() + &written))
    }

    fn explain_interruption(&self, shapes: usize) {
        match self.report.measured.len() {
            0 => note("interrupted before the first kind of step was measured: nothing is written"),
            measured => note(format_args!(
                "interrupted: {measured} of {shapes} kinds of steps were measured and their winners are kept; the same \
                 command measures all of them again"
            )),
        }
    }
}

/// What is decided for the measured shapes, and what was decided earlier for all others.
fn merged(earlier: &[TunedStep], measured: &[StepTimes]) -> Vec<TunedStep> {
    let is_new = |step: &&TunedStep| measured.iter().all(|one| one.shape != step.shape());
    let mut steps: Vec<TunedStep> = earlier.iter().filter(is_new).cloned().collect();
    steps.extend(measured.iter().filter_map(decided));
    steps.sort_by_key(TunedStep::shape);
    steps
}

/// The model, loaded for as many sequences as were given or fit the memory.
fn load(args: &TuneArgs, context_tokens: u32) -> Result<Model, CliError> {
    let mut sequences = args.sequences.unwrap_or(if args.quick { 1 } else { MAX_SEQUENCES });
    loop {
        if let Some(model) = load_candidates(&args.artifact, &args.load, context_tokens, sequences)? {
            return Ok(model);
        }
        note(format_args!("steps of {sequences} sequences are left out: their caches do not fit the memory"));
        sequences /= 2;
    }
}

/// Measures one kernel after another, then whole steps.
fn measure(
    args: &TuneArgs,
    model: &Model,
    shape: StepShape,
    versions: u32,
    effort: Effort,
    progress: &mut Progress,
) -> Result<StepTimes, TuneError> {
    let name = step_name(shape);
    let is_selected = |name: &str| args.only.as_deref().is_none_or(|part| name.contains(part));
    let mut timed: Vec<Vec<TimedPipeline>> = Vec::new();
    for version in 0..versions {
        progress.begin(format!("{name}, kernels{}", if version > 0 { " of the other program" } else { "" }));
        let is_tuned = |pipeline: &Pipeline| is_selected(&pipeline.name);
        timed.push(model.time_kernels(shape, version, effort, is_tuned, &mut |done, all| progress.at(done, all))?);
    }
    let choices = choices(&timed);
    let mut seconds = vec![None; choices.len()];
    progress.begin(format!("{name}, whole steps"));
    if choices.len() > 1 {
        let whole = model.time_steps(shape, &choices, effort, &mut |done, all| progress.at(done, all))?;
        seconds = whole.into_iter().map(Some).collect();
    }
    let versions = timed.iter().map(|kernels| VersionTimes::new(kernels)).collect();
    Ok(StepTimes { shape, step: name, versions, choices, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicorn_runtime::Choice;

    #[test]
    fn shapes_that_are_not_measured_keep_what_was_found_earlier() {
        let earlier = |rows| TunedStep {
            rows,
            batch: false,
            from_tokens: 0,
            version: 1,
            microseconds_before: 2.0,
            microseconds: 1.0,
            winners: Vec::new(),
        };
        let measured = |rows, seconds: [f64; 2]| StepTimes {
            shape: StepShape { rows, batch: false, from_tokens: 0 },
            step: String::new(),
            versions: vec![VersionTimes::new(&[]), VersionTimes::new(&[])],
            choices: vec![Choice::default(), Choice { version: 1, ..Choice::default() }],
            seconds: seconds.map(Some).to_vec(),
        };
        let found = merged(&[earlier(64), earlier(8), earlier(1)], &[measured(1, [1.0, 2.0]), measured(8, [4.0, 3.0])]);
        // One row is as fast as compiled, eight rows were measured again, 64 were not.
        assert_eq!(found.iter().map(|step| (step.rows, step.microseconds)).collect::<Vec<_>>(), [(8, 3e6), (64, 1.0)]);
    }
}
