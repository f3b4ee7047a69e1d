//! `bench`: prefill, decode at some depths and decode of several sequences, measured separately with random tokens, as llama-bench
//! does (its `pp`, `tg`, `-d`).
//!
//! ```text
//! cases (pure): what to time, in which context ──► measure: runs, medians ──► report: rates and the floor
//!                                                                             └─► plot: the same as a chart
//! ```

mod cases;
mod measure;
mod plot;
mod report;

use crate::args::BenchArgs;
use crate::error::CliError;
use crate::files::output_file::write_whole;
use crate::load::{load_for, max_positions};
use crate::report::statistics::LoadStatistics;
use crate::terminal::output::{note, print, print_json, progress_bar};
use cases::Cases;
use measure::Bench;
use report::{BenchReport, LoadedFor};
use unicorn_runtime::Model;

pub use measure::{plain_image, random_tokens};

pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    if let Some(path) = &args.plot {
        plot::check(path)?;
    }
    let Cases { groups, notes } = Cases::new(args, max_positions(&args.artifact)?);
    notes.iter().for_each(note);
    let bar = progress_bar();
    bar.set_length(groups.iter().map(|group| group.cases.len() as u64).sum());
    let mut report = BenchReport::new(args.repetitions);
    for group in groups {
        let model = load_for(&args.artifact, &args.load, group.context_tokens, group.slots)?;
        check_sequences(&model, group.slots)?;
        let bench = Bench { model: &model, n_gen: args.n_gen, repetitions: args.repetitions };
        let measured = group.cases.iter().map(|case| {
            let measured = bench.measure(*case)?;
            bar.inc(1);
            Ok((*case, measured))
        });
        let measured = measured.collect::<Result<Vec<_>, CliError>>()?;
        let load = LoadStatistics::new(&model);
        let load = LoadedFor { sequences: group.slots, context_tokens: group.context_tokens, load };
        report.add(&model, load, &measured);
    }
    bar.finish_and_clear();
    if let Some(path) = &args.plot {
        write_whole(path, &plot::svg(&report)?)?;
    }
    if args.json { print_json(&report) } else { print(&report.page()) }
}

/// Whether the artifact decodes `requested` sequences in one step.
pub fn check_sequences(model: &Model, requested: u32) -> Result<(), CliError> {
    let most = model.batch_rows().max(1);
    if requested > most {
        return Err(CliError::new(format!(
            "artifact decodes at most {most} sequences in one step, found {requested} in -s"
        )));
    }
    Ok(())
}
