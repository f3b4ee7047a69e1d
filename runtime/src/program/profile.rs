//! Time of each dispatch of a step: programs recorded with a timestamp after every dispatch, and what is read from them.

use std::sync::Arc;
use std::time::Instant;

use unicorn_artifact::{BufferRef, LogitsRows, Program, TargetKernels};

use crate::error::LoadError;
use crate::vk::command_list::Command;
use crate::vk::device::Device;
use crate::vk::timestamps::Timestamps;

/// Times of one step.
#[derive(Clone, Debug)]
pub struct StepProfile {
    /// Rows (tokens) in use.
    pub rows: u32,
    /// When the host submitted the step.
    pub begin: Instant,
    /// Seconds from then until the host had the result.
    pub wall_seconds: f64,
    /// The step's dispatches in order of execution.
    pub dispatches: Arc<[ProfiledDispatch]>,
    /// Device time of each dispatch: from the end of the one before (or the start of its submission) to its own end. A dispatch
    /// in several ranges has their sum.
    pub seconds: Vec<f64>,
}

/// A dispatch as the artifact describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfiledDispatch {
    /// Name of the pipeline.
    pub kernel: String,
    /// Layer and role.
    pub label: String,
    /// Weight bytes that it reads.
    pub weight_bytes: u64,
    /// Floating-point operations of a matrix product for one row, two a multiply-add; `None` where the name has no shape.
    pub flops_per_row: Option<u64>,
    /// It works on one row, however many rows the step has.
    pub one_row: bool,
}

/// Timestamps of one recorded program.
pub struct ProgramTimestamps {
    timestamps: Arc<Timestamps>,
    /// For each dispatch, the timestamps before and after each of its ranges.
    spans: Vec<Vec<(u32, u32)>>,
    dispatches: Arc<[ProfiledDispatch]>,
}

impl ProgramTimestamps {
    /// Inserts timestamps into a program that will be recorded: one at the start of each submission, and one after each
    /// dispatch range.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] when the device has no timestamps.
    pub fn insert(
        device: &Arc<Device>,
        target: &TargetKernels,
        program: &Program,
        submissions: &mut [Vec<Command>],
    ) -> Result<ProgramTimestamps, LoadError> {
        let ranges = submissions.iter().flatten().filter(|command| matches!(command, Command::Dispatch { .. })).count();
        let count = (ranges + submissions.len()).max(1) as u32;
        let timestamps = Timestamps::create(device, count)?.ok_or_else(|| LoadError::Unsupported {
            what: format!("{} cannot be profiled: its queue has no timestamps", device.facts().name),
        })?;
        let mut next = 0;
        let mut timestamp = || {
            next += 1;
            (next - 1, Command::WriteTimestamp(timestamps.clone(), next - 1))
        };
        let mut spans: Vec<Vec<(u32, u32)>> = Vec::new();
        for (index, commands) in submissions.iter_mut().enumerate() {
            let reset = (index == 0).then(|| Command::ResetTimestamps(timestamps.clone()));
            let (mut before, first) = timestamp();
            let mut with_timestamps: Vec<Command> = reset.into_iter().chain([first]).collect();
            for command in commands.drain(..) {
                let workgroups = match &command {
                    Command::Dispatch { workgroups, .. } => Some(*workgroups),
                    _ => None,
                };
                with_timestamps.push(command);
                let Some(workgroups) = workgroups else { continue };
                let (after, command) = timestamp();
                with_timestamps.push(command);
                match spans.last_mut() {
                    Some(spans) if workgroups.continues => spans.push((before, after)),
                    _ => spans.push(vec![(before, after)]),
                }
                before = after;
            }
            *commands = with_timestamps;
        }
        assert_eq!(spans.len(), program.dispatches.len(), "spans of every dispatch");
        Ok(ProgramTimestamps { timestamps, spans, dispatches: describe(target, program) })
    }

    /// The profile of the step that has just run; `None` if the device wrote no timestamp for a dispatch.
    pub fn read(&self, rows: u32, begin: Instant, wall_seconds: f64) -> Option<StepProfile> {
        let of_span = |&(before, after): &(u32, u32)| self.timestamps.seconds_between(before, after);
        let seconds = self.spans.iter().map(|spans| spans.iter().map(of_span).sum::<Option<f64>>());
        let seconds = seconds.collect::<Option<Vec<f64>>>()?;
        Some(StepProfile { rows, begin, wall_seconds, dispatches: self.dispatches.clone(), seconds })
    }
}

fn describe(target: &TargetKernels, program: &Program) -> Arc<[ProfiledDispatch]> {
    let describe = |dispatch: &unicorn_artifact::Dispatch| {
        let kernel = target.pipelines[dispatch.pipeline as usize].name.clone();
        let writes_logits = dispatch.bindings.iter().any(|one| one.writes && one.buffer == BufferRef::Logits);
        ProfiledDispatch {
            flops_per_row: weights_of(&kernel).map(|weights| 2 * weights).filter(|_| dispatch.weight_bytes > 0),
            kernel,
            label: dispatch.label.clone(),
            weight_bytes: dispatch.weight_bytes,
            one_row: writes_logits && program.logits == LogitsRows::One,
        }
    };
    program.dispatches.iter().map(describe).collect()
}

/// Number of weights of the matrices in a kernel's name: words such as `4096×14336`, and `+4096×64` for a second matmul. A row of a
/// step takes two operations for each.
pub fn weights_of(kernel: &str) -> Option<u64> {
    let of_word = |word: &str| {
        let (rows, cols) = word.split_once('×')?;
        Some(rows.parse::<u64>().ok()? * cols.parse::<u64>().ok()?)
    };
    kernel.split(' ').filter_map(of_word).reduce(|sum, weights| sum + weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_weights_is_read_from_the_kernels_name() {
        assert_eq!(weights_of("norm+matmul 6144×4096 int4/32 ×1"), Some(6144 * 4096));
        assert_eq!(weights_of("matmul 64×32 int4/32 a8 ×1 +8×16 int8"), Some(64 * 32 + 8 * 16));
        assert_eq!(weights_of("attention ×4"), None);
        assert_eq!(weights_of("heads"), None);
    }
}
