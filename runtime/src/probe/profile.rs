//! Where the time of a step goes: programs recorded with a look at the device's clock after every dispatch.

use std::sync::Arc;
use std::time::Instant;

use unicorn_artifact::{BufferRef, LogitsRows, Program, TargetKernels};

use crate::error::LoadError;
use crate::vk::device::Device;
use crate::vk::record::Command;
use crate::vk::stamps::Stamps;

/// One step that ran.
#[derive(Clone, Debug)]
pub struct StepProfile {
    /// Rows in use.
    pub rows: u32,
    /// When the host began it.
    pub begin: Instant,
    /// From then until the host had its end.
    pub wall_seconds: f64,
    /// In the order in which they ran, with their times.
    pub dispatches: Arc<[ProfiledDispatch]>,
    /// One a dispatch: from the end of the one before (or the list's begin) to its own end; of one in bands, their sum.
    pub seconds: Vec<f64>,
}

/// What an artifact says of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfiledDispatch {
    /// The pipeline's name.
    pub kernel: String,
    /// Layer and role.
    pub label: String,
    pub weight_bytes: u64,
    /// Multiply-adds of a matrix, two each, for one row; `None` where the artifact does not say.
    pub flops_per_row: Option<u64>,
    /// It works on one row of a step, whatever the step has.
    pub one_row: bool,
}

/// The stamps of one program, and what lies between them.
pub struct ProgramStamps {
    stamps: Arc<Stamps>,
    /// Stamps before and after each dispatch, or each of its bands.
    spans: Vec<Vec<(u32, u32)>>,
    dispatches: Arc<[ProfiledDispatch]>,
}

impl ProgramStamps {
    /// Puts stamps into a program that is about to be recorded: one at the begin of each submission, one behind each
    /// dispatch, or each band of one.
    ///
    /// # Errors
    /// When the device keeps no time.
    pub fn insert(
        device: &Arc<Device>,
        target: &TargetKernels,
        program: &Program,
        submissions: &mut [Vec<Command>],
    ) -> Result<ProgramStamps, LoadError> {
        let pieces = submissions.iter().flatten().filter(|command| matches!(command, Command::Dispatch { .. })).count();
        let count = (pieces + submissions.len()).max(1) as u32;
        let stamps = Stamps::create(device, count)?.ok_or_else(|| LoadError::Unsupported {
            what: format!("{} cannot be profiled: its queue keeps no time", device.facts().name),
        })?;
        let mut next = 0;
        let mut stamp = || {
            next += 1;
            (next - 1, Command::Stamp(stamps.clone(), next - 1))
        };
        let mut spans: Vec<Vec<(u32, u32)>> = Vec::new();
        for (index, commands) in submissions.iter_mut().enumerate() {
            let reset = (index == 0).then(|| Command::ResetStamps(stamps.clone()));
            let (mut before, first) = stamp();
            let mut stamped: Vec<Command> = reset.into_iter().chain([first]).collect();
            for command in commands.drain(..) {
                let band = match &command {
                    Command::Dispatch { band, .. } => Some(*band),
                    _ => None,
                };
                stamped.push(command);
                let Some(band) = band else { continue };
                let (after, command) = stamp();
                stamped.push(command);
                match spans.last_mut() {
                    Some(spans) if band.continues() => spans.push((before, after)),
                    _ => spans.push(vec![(before, after)]),
                }
                before = after;
            }
            *commands = stamped;
        }
        assert_eq!(spans.len(), program.dispatches.len(), "spans of every dispatch");
        Ok(ProgramStamps { stamps, spans, dispatches: describe(target, program) })
    }

    /// The step that has just run; `None` if the device lost the time of a dispatch.
    pub fn read(&self, rows: u32, begin: Instant, wall_seconds: f64) -> Option<StepProfile> {
        let of_span = |&(before, after): &(u32, u32)| self.stamps.seconds_between(before, after);
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

/// Weights of the matrices that a kernel multiplies by, from its name: words like `4096×14336`, and of a matmul behind `+4096×64`.
fn weights_of(kernel: &str) -> Option<u64> {
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
    fn a_matrix_is_known_by_its_kernels_name() {
        assert_eq!(weights_of("norm+matmul 6144×4096 int4/32 ×1"), Some(6144 * 4096));
        assert_eq!(weights_of("matmul 64×32 int4/32 a8 ×1 +8×16 int8"), Some(64 * 32 + 8 * 16));
        assert_eq!(weights_of("attention ×4"), None);
        assert_eq!(weights_of("heads"), None);
    }
}
