//! A target's pipelines and programs, compiled and recorded at load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use artifacts::{Dispatch, Kernels, LogitsRows, Plan, Program, TargetKernels};

use crate::buffers::Buffers;
use crate::chunks::ProgramShape;
use crate::error::LoadError;
use crate::vk::Failure;
use crate::vk::device::Device;
use crate::vk::pipeline::{BoundSet, Pipeline, SetLayout};
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Timer;

/// Ready to run.
pub struct Programs {
    pub shapes: Vec<ProgramShape>,
    pub recorded: Vec<RecordedProgram>,
}

pub struct RecordedProgram {
    pub list: CommandList,
    /// Copies the logits of all rows to the readback buffer; programs without logits have none.
    pub read_logits: Option<CommandList>,
}

/// Compiles the target's pipelines on all cores: drivers take their time.
pub fn compile(
    device: &Arc<Device>,
    kernels: &Kernels,
    target: &TargetKernels,
) -> Result<Vec<Arc<Pipeline>>, LoadError> {
    let facts = device.facts();
    let varies = facts.min_subgroup_size != facts.max_subgroup_size;
    let subgroup_size = Some(target.matches.subgroup_size).filter(|&size| size > 0 && varies);
    let bindings: BTreeSet<u32> = target.pipelines.iter().map(|pipeline| pipeline.bindings).collect();
    let layouts = bindings.into_iter().map(|bindings| Ok((bindings, SetLayout::create(device, bindings)?)));
    let layouts: BTreeMap<u32, Arc<SetLayout>> = layouts.collect::<Result<_, LoadError>>()?;
    let compile_one = |pipeline: &artifacts::Pipeline| {
        let words = &kernels.modules[pipeline.module as usize];
        Pipeline::create(device, words, &layouts[&pipeline.bindings], subgroup_size)
            .map_err(|failure| LoadError::Pipeline { name: pipeline.name.clone(), source: Box::new(failure.into()) })
    };
    let next = AtomicUsize::new(0);
    let compile_some = || {
        let mut made = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(pipeline) = target.pipelines.get(index) else { return made };
            made.push((index, compile_one(pipeline)));
        }
    };
    let mut made = Vec::new();
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(target.pipelines.len());
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(compile_some)).collect();
        for worker in workers {
            made.extend(worker.join().expect("compiling does not panic"));
        }
    });
    made.sort_by_key(|(index, _)| *index);
    made.into_iter().map(|(_, pipeline)| pipeline).collect()
}

/// Binds every dispatch to its buffers and records every program.
pub fn record(
    device: &Arc<Device>,
    plan: &Plan,
    target: &TargetKernels,
    pipelines: &[Arc<Pipeline>],
    buffers: &Buffers,
    timer: Option<&Arc<Timer>>,
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
    for program in &target.programs {
        let logits_rows = logits_rows(plan, program)?;
        let commands = commands(&program.dispatches, pipelines, &mut sets, timer);
        let list = CommandList::record(device, commands)?;
        let read_logits = (logits_rows > 0).then(|| copy_logits(device, plan, buffers, logits_rows)).transpose()?;
        programs.recorded.push(RecordedProgram { list, read_logits });
        programs.shapes.push(ProgramShape { rows: program.rows, logits: program.logits, samples: program.samples });
    }
    Ok(programs)
}

fn commands(
    dispatches: &[Dispatch],
    pipelines: &[Arc<Pipeline>],
    sets: &mut impl Iterator<Item = BoundSet>,
    timer: Option<&Arc<Timer>>,
) -> Vec<Command> {
    let mut commands: Vec<Command> = timer.cloned().map(Command::StartTimer).into_iter().collect();
    for (dispatch, set) in dispatches.iter().zip(sets) {
        if dispatch.barrier_before {
            commands.push(Command::Barrier);
        }
        let pipeline = pipelines[dispatch.pipeline as usize].clone();
        commands.push(Command::Dispatch { pipeline, set, workgroups: dispatch.workgroups });
    }
    commands.extend(timer.cloned().map(Command::StopTimer));
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

fn copy_logits(device: &Arc<Device>, plan: &Plan, buffers: &Buffers, rows: u32) -> Result<CommandList, Failure> {
    let bytes = 4 * u64::from(rows) * u64::from(plan.logits_stride);
    let copy = Command::Copy { from: buffers.logits.range(0, bytes), to: buffers.readback.range(0, bytes) };
    CommandList::record(device, vec![copy])
}
