//! `tune`: times every alternative of the kernels of every step, on this device and this model's own buffers, and leaves the
//! winners beside the artifact for later starts.
//!
//! ```text
//! shape of a step ─► kernels, in each version of its program ─► winners ─► whole steps with them ─► the fastest, if it is another
//! ```

mod decide;
mod report;

use indicatif::ProgressStyle;
use unicorn_artifact::header::hex;

use crate::args::TuneArgs;
use crate::error::CliError;
use crate::files::tuning_file::TuningFile;
use crate::load::{load_candidates, max_positions};
use crate::terminal::output::{print, print_json, progress_bar};
use decide::{choices, decided};
use report::{StepTimes, TuneReport, VersionTimes};
use unicorn_runtime::{Effort, Model, StepShape, TimedPipeline};

const ROUNDS: u32 = 5;
const QUICK_ROUNDS: u32 = 2;
/// Rows of the largest step: nothing is measured in a shorter context than its prefill, where the model has one.
const LEAST_CONTEXT_TOKENS: u32 = 512;
const MAX_SEQUENCES: u32 = 64;

pub fn run(args: &TuneArgs) -> Result<(), CliError> {
    let context_tokens = LEAST_CONTEXT_TOKENS.max(args.depth.saturating_add(1)).min(max_positions(&args.artifact)?);
    let effort = Effort {
        rounds: args.rounds.unwrap_or(if args.quick { QUICK_ROUNDS } else { ROUNDS }),
        steps: args.steps,
        depth_tokens: args.depth.min(context_tokens - 1),
    };
    let model = load(args, context_tokens)?;
    let mut shapes = model.tunable(effort.depth_tokens);
    if args.quick {
        let largest = shapes.iter().map(|(shape, _)| shape.rows).max();
        shapes.retain(|(shape, _)| shape.rows == 1 || Some(shape.rows) == largest);
    }
    let steps = shapes.into_iter().map(|(shape, versions)| measure(args, &model, shape, versions, effort));
    let steps = steps.collect::<Result<Vec<_>, _>>()?;
    let file = TuningFile {
        key: hex(&model.report().tuning.key),
        device: model.device().name.clone(),
        driver: model.device().driver.clone(),
        target: model.report().target.clone(),
        steps: steps.iter().filter_map(decided).collect(),
    };
    let path = file.write(&args.artifact)?;
    let report = TuneReport { depth_tokens: effort.depth_tokens, file, measured: steps };
    if args.json {
        return print_json(&report);
    }
    print(&format!("{}\nwritten to {}\n", report.page(), path.display()))
}

/// The model, loaded for as many sequences as were given or fit the memory.
fn load(args: &TuneArgs, context_tokens: u32) -> Result<Model, CliError> {
    let mut sequences = args.sequences.unwrap_or(if args.quick { 1 } else { MAX_SEQUENCES });
    loop {
        if let Some(model) = load_candidates(&args.artifact, &args.load, context_tokens, sequences)? {
            return Ok(model);
        }
        eprintln!("steps of {sequences} sequences are left out: their caches do not fit the memory");
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
) -> Result<StepTimes, CliError> {
    let name = report::step_name(shape);
    let bar = progress_bar().with_style(
        ProgressStyle::with_template("tuning {msg:44} {bar:30} {pos}/{len}").expect("the template is a constant"),
    );
    let mut progress = |done: u32, all: u32| {
        bar.set_length(all.into());
        bar.set_position(done.into());
    };
    let is_selected = |name: &str| args.only.as_deref().is_none_or(|part| name.contains(part));
    let mut timed: Vec<Vec<TimedPipeline>> = Vec::new();
    // Another version of the program changes all of its kernels, so it is not compared for some of them.
    let versions = if args.only.is_some() { 1 } else { versions };
    for version in 0..versions {
        bar.set_message(format!("{name}, kernels{}", if version > 0 { " of the other program" } else { "" }));
        let kernels = model.time_kernels(shape, version, effort, |pipeline| is_selected(&pipeline.name), &mut progress);
        timed.push(kernels.map_err(CliError::new)?);
    }
    let choices = choices(&timed);
    let mut seconds = vec![None; choices.len()];
    if choices.len() > 1 {
        bar.set_message(format!("{name}, whole steps"));
        let whole = model.time_steps(shape, &choices, effort, &mut progress).map_err(CliError::new)?;
        seconds = whole.into_iter().map(Some).collect();
    }
    bar.finish_and_clear();
    let versions = timed.iter().map(|kernels| VersionTimes::new(kernels)).collect();
    Ok(StepTimes { shape, step: name, versions, choices, seconds })
}
