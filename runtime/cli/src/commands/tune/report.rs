//! What `tune` prints.

use serde::Serialize;

use crate::files::tuning_file::TuningFile;
use crate::report::table::{Column, table};
use unicorn_runtime::{Choice, StepShape, TimedPipeline};

/// What `--json` prints.
#[derive(Serialize)]
pub struct TuneReport {
    /// Cached tokens that decode attended to.
    pub depth_tokens: u32,
    /// Whether Ctrl-C ended it, so that some shapes were not measured.
    pub interrupted: bool,
    #[serde(flatten)]
    pub file: TuningFile,
    pub measured: Vec<StepTimes>,
}

/// Medians of one shape of steps.
#[derive(Serialize)]
pub struct StepTimes {
    #[serde(skip)]
    pub shape: StepShape,
    /// Its name in the report.
    pub step: String,
    pub versions: Vec<VersionTimes>,
    #[serde(skip)]
    pub choices: Vec<Choice>,
    /// Times of whole steps, the compiler's choice first; `null`: nothing was chosen that could be compared with it.
    pub seconds: Vec<Option<f64>>,
}

/// Times of the kernels of one program.
#[derive(Serialize)]
pub struct VersionTimes {
    pub kernels: Vec<PipelineTimes>,
}

#[derive(Serialize)]
pub struct PipelineTimes {
    pub pipeline: u32,
    /// Names of the kernels, the compiler's choice first.
    pub names: Vec<String>,
    /// Time of all its dispatches in a step, one value a name.
    pub microseconds: Vec<f64>,
}

impl VersionTimes {
    pub fn new(kernels: &[TimedPipeline]) -> VersionTimes {
        let times = |timed: &TimedPipeline| PipelineTimes {
            pipeline: timed.pipeline,
            names: timed.candidates.iter().map(|one| one.name.clone()).collect(),
            microseconds: timed.candidates.iter().map(|one| 1e6 * one.seconds).collect(),
        };
        VersionTimes { kernels: kernels.iter().map(times).collect() }
    }
}

impl TuneReport {
    pub fn page(&self) -> String {
        let TuningFile { device, target, .. } = &self.file;
        let steps: String = self.measured.iter().map(StepTimes::page).collect();
        let depth = self.depth_tokens;
        format!("device {device}, target {target}; µs by its clock, decode after {depth} tokens\n{steps}")
    }
}

/// Which of a step's choices was fastest as a whole; the compiler's, where nothing was.
pub fn fastest(seconds: &[Option<f64>]) -> usize {
    let timed = (0..).zip(seconds).filter_map(|(number, seconds)| Some((number, (*seconds)?)));
    timed.min_by(|left, right| left.1.total_cmp(&right.1)).map_or(0, |(number, _)| number)
}

impl StepTimes {
    /// A line for each kernel with alternatives, and one for the whole step.
    fn page(&self) -> String {
        let columns = [Column::Left("kernel"), Column::Right("before"), Column::Right("after"), Column::Left("by")];
        let best = fastest(&self.seconds);
        let kept = &self.choices[best];
        let kernels = &self.versions[kept.version as usize].kernels;
        let rows: Vec<Vec<String>> = kernels.iter().map(|kernel| kernel.row(kept)).collect();
        let kernels = if rows.is_empty() { String::new() } else { table(&columns, &rows) };
        format!("\n{}\n{kernels}  {}\n", self.step, self.whole(best))
    }

    fn whole(&self, best: usize) -> String {
        let times: Option<Vec<f64>> = self.seconds.iter().copied().collect();
        let Some(times) = times.filter(|times| times.len() > 1) else {
            return "whole step: no alternative of a kernel is 2 % faster, nothing changes".into();
        };
        let others = times[1..].iter().map(|seconds| format!("{:.1}", 1e6 * seconds)).collect::<Vec<_>>().join(", ");
        if best == 0 {
            return format!(
                "whole step: {:.1}, with the winners {others}: not faster, nothing changes",
                1e6 * times[0]
            );
        }
        let program = if self.choices[best].version > 0 { ", with separate norms" } else { "" };
        let gain = 100.0 * (1.0 - times[best] / times[0]);
        let (before, after) = (1e6 * times[0], 1e6 * times[best]);
        format!("whole step: {before:.1} → {after:.1}, {gain:.1} % less{program}")
    }
}

impl PipelineTimes {
    fn row(&self, kept: &Choice) -> Vec<String> {
        let time = |number: usize| format!("{:.1}", self.microseconds[number]);
        let (after, by) = match kept.winners.get(&self.pipeline) {
            None => ("–".into(), String::new()),
            Some(&alternative) => {
                let number = alternative as usize + 1;
                let particular = self.names[number].strip_prefix(&self.names[0]).unwrap_or(&self.names[number]);
                (time(number), particular.trim_start_matches(", ").to_owned())
            }
        };
        vec![self.names[0].clone(), time(0), after, by]
    }
}
