//! `tune`: times every alternative of the kernels that decode, on this device and this model's own buffers, and leaves the
//! winners beside the artifact for later starts.

use artifacts::header::hex;
use serde::Serialize;

use super::args::TuneArgs;
use super::error::CliError;
use super::load::load_candidates;
use super::output::{print, print_json};
use super::table::{Column, table};
use super::tuning_file::{TuningFile, Winner};
use crate::TimedPipeline;

/// A winner must be this much faster: below it, clocks and neighbours decide.
const LEAST_GAIN: f64 = 0.02;

pub fn run(args: &TuneArgs) -> Result<(), CliError> {
    let model = load_candidates(&args.artifact, &args.load, args.steps + 1)?;
    let timed = model.time_candidates(args.rounds, args.steps)?;
    let report = model.report();
    let file = TuningFile {
        key: hex(&report.tuning.key),
        device: model.device().name.clone(),
        driver: model.device().driver.clone(),
        target: report.target.clone(),
        winners: timed.iter().filter_map(winner).collect(),
    };
    let path = file.write(&args.artifact)?;
    let printed = TuneReport { pipelines: timed.iter().map(PipelineTimes::new).collect(), file };
    if args.json {
        return print_json(&printed);
    }
    print(&format!("{}written to {}\n", printed.page(), path.display()))
}

/// The fastest alternative, where it is worth while.
fn winner(timed: &TimedPipeline) -> Option<Winner> {
    let (own, others) = timed.candidates.split_first()?;
    let fastest = (0..).zip(others).min_by(|left, right| left.1.seconds.total_cmp(&right.1.seconds))?;
    let (alternative, fastest) = fastest;
    (fastest.seconds < (1.0 - LEAST_GAIN) * own.seconds).then(|| Winner {
        pipeline: timed.pipeline,
        alternative,
        name: fastest.name.clone(),
        microseconds_before: 1e6 * own.seconds,
        microseconds: 1e6 * fastest.seconds,
    })
}

/// What `--json` prints.
#[derive(Serialize)]
struct TuneReport {
    #[serde(flatten)]
    file: TuningFile,
    pipelines: Vec<PipelineTimes>,
}

/// Medians of one pipeline, in a step.
#[derive(Serialize)]
struct PipelineTimes {
    pipeline: u32,
    /// The compiler's choice first.
    names: Vec<String>,
    microseconds: Vec<f64>,
}

impl PipelineTimes {
    fn new(timed: &TimedPipeline) -> PipelineTimes {
        PipelineTimes {
            pipeline: timed.pipeline,
            names: timed.candidates.iter().map(|one| one.name.clone()).collect(),
            microseconds: timed.candidates.iter().map(|one| 1e6 * one.seconds).collect(),
        }
    }
}

impl TuneReport {
    fn page(&self) -> String {
        let columns = [Column::Left("kernel"), Column::Right("µs a step"), Column::Left("")];
        let mut rows = Vec::new();
        for PipelineTimes { pipeline, names, microseconds } in &self.pipelines {
            let won = self.file.winners.iter().find(|winner| winner.pipeline == *pipeline);
            let best = won.map_or(0, |winner| winner.alternative as usize + 1);
            for (number, (name, time)) in names.iter().zip(microseconds).enumerate() {
                let mark = if number == best { "←" } else { "" };
                rows.push(vec![name.clone(), format!("{time:.1}"), mark.into()]);
            }
        }
        let TuningFile { device, target, winners, .. } = &self.file;
        let of: f64 = winners.iter().map(|winner| winner.microseconds_before - winner.microseconds).sum();
        format!(
            "device {device}, target {target}\n\n{}\n{} of {} kernels are faster another way: {of:.1} µs less a step\n",
            table(&columns, &rows),
            winners.len(),
            self.pipelines.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TimedCandidate;

    #[test]
    fn an_alternative_wins_where_it_is_worth_while() {
        let timed = |seconds: &[f64]| TimedPipeline {
            pipeline: 4,
            candidates: seconds.iter().map(|&seconds| TimedCandidate { name: seconds.to_string(), seconds }).collect(),
        };
        let won = winner(&timed(&[1.0, 1.5, 0.5, 0.6])).unwrap();
        assert_eq!((won.pipeline, won.alternative, won.name.as_str()), (4, 1, "0.5"));
        assert_eq!((won.microseconds_before, won.microseconds), (1e6, 5e5));
        assert_eq!(winner(&timed(&[1.0, 0.99])), None);
        assert_eq!(winner(&timed(&[1.0])), None);
    }
}
