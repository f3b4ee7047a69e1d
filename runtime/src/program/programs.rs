//! A target's programs, recorded at load.

use std::sync::Arc;

use unicorn_artifact::{BufferRef, Dispatch, LogitsRows, Order, Plan, Program, TargetKernels};

use crate::error::LoadError;
use crate::memory::buffers::Buffers;
use crate::probe::profile::ProgramStamps;
use crate::program::chunks::ProgramShape;
use crate::program::counters::links;
use crate::program::multistep::STEPS_TOGETHER;
use crate::program::pace::{Pace, Piece, Work, cut};
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
    /// The same with `STEPS_TOGETHER` steps in one list, for one sequence's decode where they are foreseen to stay within the
    /// bound; else empty. Timers are those of `turns`.
    pub turns_together: Vec<Turn>,
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

/// Everything of a target's programs but where they are cut.
pub struct Prepared {
    pub programs: Vec<PreparedProgram>,
    timers: [Option<Arc<Stamps>>; 2],
}

/// A program whose dispatches are bound to their buffers.
pub struct PreparedProgram {
    pub shape: ProgramShape,
    /// Index into the target's programs.
    index: usize,
    dispatches: Vec<BoundDispatch>,
    /// Of each dispatch.
    orders: Vec<Order>,
    /// By the weights that each dispatch reads.
    pub weight_work: Vec<Work>,
    /// By what each reads at the longest context: its weights, or its layer's K and V.
    work: Vec<Work>,
    read_logits: Option<Command>,
}

struct BoundDispatch {
    pipeline: Arc<Pipeline>,
    set: BoundSet,
}

/// Binds every dispatch to its buffers; `barriers`: also where a dispatch could wait by itself for the one before.
///
/// # Errors
/// When the device cannot bind so much, or the plan has no room for a program's logits.
pub fn prepare(
    device: &Arc<Device>,
    plan: &Plan,
    target: &TargetKernels,
    pipelines: &[Arc<Pipeline>],
    buffers: &Buffers,
    context_tokens: u32,
    barriers: bool,
) -> Result<Prepared, LoadError> {
    let limit_bytes = device.facts().storage_range_bytes;
    let mut requests = Vec::new();
    for dispatch in target.programs.iter().flat_map(|program| &program.dispatches) {
        let layout = pipelines[dispatch.pipeline as usize].layout();
        let ranges = dispatch.bindings.iter().map(|binding| buffers.range(binding, limit_bytes));
        requests.push((layout.clone(), ranges.collect::<Result<Vec<_>, _>>()?));
    }
    let mut sets = BoundSet::create_all(device, &requests)?.into_iter();
    let one = |(index, program): (usize, &Program)| {
        let read_logits = match logits_rows(plan, program)? {
            0 => None,
            rows => Some(copy_logits(plan, buffers, rows)),
        };
        let &Program { rows, logits, samples, batch, from_tokens, .. } = program;
        let work = |bytes: fn(&Plan, &Dispatch, u32) -> u64| {
            let work = |dispatch: &Dispatch| Work {
                bytes: bytes(plan, dispatch, context_tokens),
                workgroups: dispatch.workgroups,
            };
            program.dispatches.iter().map(work).collect()
        };
        Ok(PreparedProgram {
            shape: ProgramShape { rows, logits, samples, batch, from_tokens },
            index,
            dispatches: bind(&program.dispatches, pipelines, &mut sets),
            orders: program.dispatches.iter().map(|dispatch| order(dispatch, barriers)).collect(),
            weight_work: work(|_, dispatch, _| dispatch.weight_bytes),
            work: work(|plan, dispatch, context_tokens| {
                dispatch.weight_bytes + kv_bytes_read(plan, dispatch, context_tokens)
            }),
            read_logits,
        })
    };
    let programs = target.programs.iter().enumerate().map(one).collect::<Result<_, LoadError>>()?;
    Ok(Prepared { programs, timers: [Stamps::create(device, 2)?, Stamps::create(device, 2)?] })
}

impl Prepared {
    /// One a program, before anything was measured.
    pub fn guessed_paces(&self) -> Vec<Pace> {
        self.programs.iter().map(|program| Pace::guess(program.shape.rows)).collect()
    }

    /// Records every program, cut so that no submission takes longer than `bound_seconds` at its pace. The step's time goes
    /// to the two stamps of a timer; given the target in `profile`, each dispatch's goes to stamps of its own, for which
    /// programs are to be prepared with barriers, and there are no steps together.
    ///
    /// # Errors
    /// When the device fails, or is to be profiled and keeps no time.
    pub fn record(
        &self,
        device: &Arc<Device>,
        paces: &[Pace],
        bound_seconds: f64,
        profile: Option<&TargetKernels>,
    ) -> Result<Programs, LoadError> {
        let mut programs = Programs { shapes: Vec::new(), recorded: Vec::new() };
        for (program, pace) in self.programs.iter().zip(paces) {
            let cuts = program.cuts(*pace, bound_seconds);
            let mut parts = program.commands(&cuts);
            let together = program.steps_together(&parts, *pace, bound_seconds).filter(|_| profile.is_none());
            let stamps = profile
                .map(|target| ProgramStamps::insert(device, target, &target.programs[program.index], &mut parts))
                .transpose()?;
            let timers = &self.timers[..program.shape.turns()];
            let record_turns = |parts: &[Vec<Command>]| {
                timers.iter().map(|timer| record_turn(device, parts.to_vec(), timer.clone())).collect::<Result<_, _>>()
            };
            let turns = record_turns(&parts)?;
            let turns_together = together.map_or(Ok(Vec::new()), |steps| record_turns(&[steps]))?;
            let read_logits = program.read_logits.iter().map(|copy| CommandList::record(device, vec![copy.clone()]));
            let read_logits = read_logits.collect::<Result<_, _>>()?;
            programs.recorded.push(RecordedProgram { turns, turns_together, stamps, read_logits });
            programs.shapes.push(program.shape);
        }
        Ok(programs)
    }
}

impl PreparedProgram {
    /// These pieces by themselves, and the two stamps around them; `None`: the device keeps no time.
    pub fn record_alone(
        &self,
        device: &Arc<Device>,
        pieces: &[Piece],
    ) -> Result<Option<(CommandList, Arc<Stamps>)>, LoadError> {
        let Some(timer) = Stamps::create(device, 2)? else { return Ok(None) };
        let mut turn = record_turn(device, self.commands(&[pieces.to_vec()]), Some(timer.clone()))?;
        Ok(turn.lists.pop().map(|list| (list, timer)))
    }

    /// What goes into each submission.
    pub fn cuts(&self, pace: Pace, bound_seconds: f64) -> Vec<Vec<Piece>> {
        cut(&self.work, pace, bound_seconds)
    }

    /// What is recorded for each submission.
    pub fn commands(&self, submissions: &[Vec<Piece>]) -> Vec<Vec<Command>> {
        let links = links(&self.orders, submissions.iter().flatten());
        let one = |piece: &Piece| {
            let BoundDispatch { pipeline, set } = &self.dispatches[piece.dispatch];
            // What a dispatch waits for, its first band has waited for.
            let waits = self.orders[piece.dispatch] == Order::Barrier && !piece.band.continues();
            let (pipeline, set, link) = (pipeline.clone(), set.clone(), links[&piece.dispatch]);
            let work = Command::Dispatch { pipeline, set, band: piece.band, link };
            waits.then_some(Command::Barrier).into_iter().chain([work])
        };
        submissions.iter().map(|pieces| pieces.iter().flat_map(one).collect()).collect()
    }

    /// What is recorded for several steps in one submission, given what is for one step; `None`: nobody wants that, or it would
    /// be too long.
    fn steps_together(&self, submissions: &[Vec<Command>], pace: Pace, bound_seconds: f64) -> Option<Vec<Command>> {
        let [step] = submissions else { return None };
        let seconds = pace.seconds(self.work.iter().map(|work| work.bytes).sum());
        let are_short = f64::from(STEPS_TOGETHER) * seconds <= bound_seconds;
        let are_wanted = self.shape.decodes_one_sequence() && are_short;
        // Each step reads the row that the one before has drawn, and its keys and values.
        are_wanted.then(|| [step.as_slice(); STEPS_TOGETHER as usize].join(&Command::Barrier))
    }
}

impl Programs {
    /// Submissions of a step of each program.
    pub fn submissions(&self) -> Vec<u32> {
        self.recorded.iter().map(|program| program.turns[0].lists.len() as u32).collect()
    }
}

/// K and V of the layers that a dispatch reads, at the longest context.
fn kv_bytes_read(plan: &Plan, dispatch: &Dispatch, context_tokens: u32) -> u64 {
    let read = dispatch.bindings.iter().filter(|binding| !binding.writes).filter_map(|binding| match binding.buffer {
        BufferRef::Keys { group, .. } | BufferRef::Values { group, .. } => Some(&plan.kv_groups[group as usize]),
        _ => None,
    });
    read.map(|group| group.bytes_read_per_token(context_tokens) / (2 * u64::from(group.n_layers.max(1)))).sum()
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

fn bind(
    dispatches: &[Dispatch],
    pipelines: &[Arc<Pipeline>],
    sets: &mut impl Iterator<Item = BoundSet>,
) -> Vec<BoundDispatch> {
    let one = |(dispatch, set): (&Dispatch, BoundSet)| BoundDispatch {
        pipeline: pipelines[dispatch.pipeline as usize].clone(),
        set,
    };
    dispatches.iter().zip(sets).map(one).collect()
}

/// A barrier takes the place of waiting, with the same results; a dispatch's time by itself is one without the next.
fn order(dispatch: &Dispatch, barriers: bool) -> Order {
    match dispatch.order {
        Order::Counted if barriers => Order::Barrier,
        order => order,
    }
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
