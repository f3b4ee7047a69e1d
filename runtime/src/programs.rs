//! A target's programs, recorded at load.

use std::sync::Arc;

use artifacts::{Dispatch, LogitsRows, Plan, Program, TargetKernels};

use crate::buffers::Buffers;
use crate::chunks::ProgramShape;
use crate::error::LoadError;
use crate::profile::ProgramStamps;
use crate::vk::device::Device;
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::record::{Command, CommandList};
use crate::vk::stamps::Stamps;

/// Ready to run.
pub struct Programs {
    pub shapes: Vec<ProgramShape>,
    pub recorded: Vec<RecordedProgram>,
}

pub struct RecordedProgram {
    /// The program once, or twice where its steps can follow one another without the host; each a list a submission.
    pub turns: Vec<Turn>,
    /// Where the first turn was recorded to be profiled.
    pub stamps: Option<ProgramStamps>,
    /// Copies the logits of all rows to the readback buffer; empty for programs without logits.
    pub read_logits: Vec<CommandList>,
}

pub struct Turn {
    pub lists: Vec<CommandList>,
    /// Around all of them; `None`: the device keeps no time.
    pub timer: Option<Arc<Stamps>>,
}

/// Weight bytes times rows that one submission works through: about 100 ms on an APU that does 2.5 TFLOP/s. Drivers
/// reset a device that spends seconds on one submission.
const SUBMISSION_BYTE_ROWS: u64 = 64 << 30;

/// Binds every dispatch to its buffers and records every program: the step's time goes to the two stamps of `timer`, and
/// with `profile` each dispatch's to stamps of its own.
pub fn record(
    device: &Arc<Device>,
    plan: &Plan,
    target: &TargetKernels,
    pipelines: &[Arc<Pipeline>],
    buffers: &Buffers,
    profile: bool,
) -> Result<Programs, LoadError> {
    let limit_bytes = device.facts().storage_range_bytes;
    let mut requests = Vec::new();
    for dispatch in target.programs.iter().flat_map(|program| &program.dispatches) {
        let layout = pipelines[dispatch.pipeline as usize].layout();
        let ranges = dispatch.bindings.iter().map(|binding| buffers.range(binding, limit_bytes));
        requests.push((layout.clone(), ranges.collect::<Result<Vec<_>, _>>()?));
    }
    let mut sets = BoundSet::create_all(device, &requests)?.into_iter();
    let mut programs = Programs { shapes: Vec::new(), recorded: Vec::new() };
    let timers = [Stamps::create(device, 2)?, Stamps::create(device, 2)?];
    for program in &target.programs {
        let logits_rows = logits_rows(plan, program)?;
        let mut parts: Vec<Vec<Command>> = submissions(&program.dispatches, program.rows)
            .map(|dispatches| commands(dispatches, pipelines, &mut sets))
            .collect();
        let stamps = profile.then(|| ProgramStamps::insert(device, target, program, &mut parts)).transpose()?;
        let turns = timers[..if program.batch { 2 } else { 1 }]
            .iter()
            .map(|timer| record_turn(device, parts.clone(), timer.clone()))
            .collect::<Result<_, _>>()?;
        let read_logits = match logits_rows {
            0 => Vec::new(),
            rows => vec![CommandList::record(device, vec![copy_logits(plan, buffers, rows)])?],
        };
        programs.recorded.push(RecordedProgram { turns, stamps, read_logits });
        let &Program { rows, logits, samples, batch, .. } = program;
        programs.shapes.push(ProgramShape { rows, logits, samples, batch });
    }
    Ok(programs)
}

fn record_turn(
    device: &Arc<Device>,
    mut parts: Vec<Vec<Command>>,
    timer: Option<Arc<Stamps>>,
) -> Result<Turn, LoadError> {
    if let Some(timer) = &timer {
        let first = parts.first_mut().into_iter();
        first.for_each(|first| {
            drop(first.splice(0..0, [Command::ResetStamps(timer.clone()), Command::Stamp(timer.clone(), 0)]))
        });
        parts.last_mut().into_iter().for_each(|last| last.push(Command::Stamp(timer.clone(), 1)));
    }
    let lists = parts.into_iter().map(|commands| CommandList::record(device, commands)).collect::<Result<_, _>>()?;
    Ok(Turn { lists, timer })
}

/// Cuts a program where [`SUBMISSION_BYTE_ROWS`] is reached; one dispatch is never cut.
fn submissions(dispatches: &[Dispatch], rows: u32) -> impl Iterator<Item = &[Dispatch]> {
    let mut rest = dispatches;
    std::iter::from_fn(move || {
        let mut work = 0u64;
        let fits = |dispatch: &&Dispatch| {
            work = work.saturating_add(dispatch.weight_bytes.saturating_mul(u64::from(rows)));
            work <= SUBMISSION_BYTE_ROWS
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at_checked(count)?;
        rest = later;
        Some(now)
    })
}

fn commands(
    dispatches: &[Dispatch],
    pipelines: &[Arc<Pipeline>],
    sets: &mut impl Iterator<Item = BoundSet>,
) -> Vec<Command> {
    let mut commands = Vec::new();
    for (dispatch, set) in dispatches.iter().zip(sets) {
        if dispatch.barrier_before {
            commands.push(Command::Barrier);
        }
        let pipeline = pipelines[dispatch.pipeline as usize].clone();
        commands.push(Command::Dispatch { pipeline, set, workgroups: dispatch.workgroups });
    }
    commands
}

fn logits_rows(plan: &Plan, program: &Program) -> Result<u32, LoadError> {
    let rows = match program.logits {
        LogitsRows::None => 0,
        LogitsRows::One => 1,
        LogitsRows::All => program.rows,
    };
    if rows > plan.logits_rows {
        let most = plan.logits_rows;
        return Err(LoadError::Unsupported {
            what: format!("program gives logits of {rows} rows, expected at most the plan's {most}"),
        });
    }
    Ok(rows)
}

fn copy_logits(plan: &Plan, buffers: &Buffers, rows: u32) -> Command {
    let bytes = 4 * u64::from(rows) * u64::from(plan.logits_stride);
    Command::Copy { from: buffers.logits.range(0, bytes), to: buffers.readback.range(0, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_cut_where_work_adds_up_but_never_inside_a_dispatch() {
        let dispatch = |weight_bytes| Dispatch {
            pipeline: 0,
            workgroups: [1; 3],
            alternatives: vec![],
            bindings: vec![],
            barrier_before: true,
            label: String::new(),
            weight_bytes,
        };
        let gib = 1 << 30;
        let dispatches = [10 * gib, 20 * gib, 0, 40 * gib, 70 * gib, 0].map(dispatch);
        let lens = |rows| submissions(&dispatches, rows).map(<[Dispatch]>::len).collect::<Vec<_>>();
        assert_eq!(lens(1), [3, 1, 1, 1]);
        assert_eq!(lens(64), [1, 1, 1, 1, 1, 1]);
        assert_eq!(submissions(&dispatches[..3], 2).map(<[Dispatch]>::len).collect::<Vec<_>>(), [3]);
        assert_eq!(submissions(&[], 1).count(), 0);
    }
}
