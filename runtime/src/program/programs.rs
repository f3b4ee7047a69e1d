//! A target's programs: dispatches bound to their buffers, and recorded into command lists at load, so that a step only
//! submits.

use std::sync::Arc;

use unicorn_artifact::step::MAX_SAMPLERS;
use unicorn_artifact::{BufferRef, Dispatch, LogitsRows, Order, Plan, Program, TargetKernels};

use crate::error::LoadError;
use crate::memory::buffers::Buffers;
use crate::parallel;
use crate::program::chunks::ProgramShape;
use crate::program::counters::counters;
use crate::program::multistep::STEPS_PER_SUBMISSION;
use crate::program::npu_queues::{BoundNpuWork, QueueEntry};
use crate::program::npu_steps::NpuWork;
use crate::program::profile::ProgramTimestamps;
use crate::program::sampler_apart::SamplerApart;
use crate::program::submissions::{CostModel, DispatchCost, DispatchRange, split, split_ranges};
use crate::vk::Failure;
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::timestamps::Timestamps;

/// Every program of a target, ready to be submitted.
#[derive(Default)]
pub struct RecordedPrograms {
    /// One a program.
    pub shapes: Vec<ProgramShape>,
    /// One a program.
    pub recorded: Vec<RecordedProgram>,
}

/// Command lists of one program.
pub struct RecordedProgram {
    /// One step of the program, recorded once for each step that can be in flight ([`ProgramShape::slots`]).
    pub slots: Vec<RecordedSlot>,
    /// The same with [`STEPS_PER_SUBMISSION`] steps in one list, for one sequence's decode where they are estimated to stay
    /// within the bound; else empty. Timers are those of `slots`.
    pub multistep_slots: Vec<RecordedSlot>,
    /// The steps of `slots` again, with a sampler that waits for masks: recorded before the first step that has some, because most users never
    /// have any.
    samplers_apart: Vec<SamplerApart>,
    /// Whether there can be such: the program has a sampler that takes masks, and is not profiled.
    can_be_apart: bool,
    /// Present where the first slot was recorded for profiling.
    pub timestamps: Option<ProgramTimestamps>,
    /// Copies the logits of all rows to the readback buffer; empty for programs without logits.
    pub read_logits: Vec<CommandList>,
    /// Elements between the rows that are read.
    pub logits_stride: u32,
    /// What is submitted to GPU and NPU, in order; empty: all lists to the GPU.
    pub npu: Vec<QueueEntry>,
}

/// Command lists that are in flight together.
pub struct RecordedSlot {
    /// One a submission.
    pub lists: Vec<CommandList>,
    /// Timestamps at the start of the first list (0) and the end of the last (1); `None`: the device has no timestamps.
    pub timer: Option<Arc<Timestamps>>,
}

/// Programs that are bound to buffers and not recorded yet.
pub struct PreparedPrograms {
    /// One a program of the target.
    pub programs: Vec<PreparedProgram>,
    timers: [Option<Arc<Timestamps>>; 2],
}

/// A program whose dispatches are bound to their buffers.
pub struct PreparedProgram {
    pub shape: ProgramShape,
    /// Index into the target's programs.
    index: usize,
    takes_masks: bool,
    dispatches: Vec<BoundDispatch>,
    /// One a dispatch.
    orders: Vec<Order>,
    /// Cost of each dispatch by the weights that it is declared to read, at most all that it is bound to.
    pub weight_costs: Vec<DispatchCost>,
    /// Cost of each dispatch at the longest context: its weights, or its layer's K and V.
    costs: Vec<DispatchCost>,
    /// The same, with at least the weights that [`foreseen_weight_bytes`] gives.
    pub foreseen_costs: Vec<DispatchCost>,
    read_logits: Option<Command>,
    logits_stride: u32,
    npu: Option<BoundNpuWork>,
}

struct BoundDispatch {
    pipeline: Arc<Pipeline>,
    set: BoundSet,
}

impl PreparedPrograms {
    /// The same programs with an NPU, which has a part in some of them.
    pub fn with_npu(mut self, work: &[Option<NpuWork>], buffers: &Buffers) -> PreparedPrograms {
        for program in &mut self.programs {
            let work = work.get(program.index).and_then(Option::as_ref);
            program.npu = work.map(|work| BoundNpuWork::bind(work, buffers));
        }
        self
    }
}

/// Binds every dispatch to its buffers. `barriers`: use barriers also where the artifact has counter synchronisation.
///
/// # Errors
/// [`LoadError::BindingTooLarge`] where the device cannot bind a range, [`LoadError::Unsupported`] where the plan has too few rows
/// for a program's logits.
pub fn prepare(
    device: &Arc<Device>,
    plan: &Plan,
    target: &TargetKernels,
    pipelines: &[Arc<Pipeline>],
    buffers: &Buffers,
    context_tokens: u32,
    barriers: bool,
) -> Result<PreparedPrograms, LoadError> {
    let limit_bytes = device.facts().storage_range_bytes;
    let mut requests = Vec::new();
    for dispatch in target.programs.iter().flat_map(|program| &program.dispatches) {
        let layout = pipelines[dispatch.pipeline as usize].layout();
        let ranges = dispatch.bindings.iter().map(|binding| buffers.range(binding, limit_bytes));
        requests.push((layout.clone(), ranges.collect::<Result<Vec<_>, _>>()?));
    }
    let mut sets = BoundSet::create_all(device, &requests)?.into_iter();
    let one = |(index, program): (usize, &Program)| {
        let logits_stride = program.hidden_stride().unwrap_or(plan.logits_stride);
        let read_logits = match logits_rows(plan, program)? {
            0 => None,
            rows => Some(copy_logits(buffers, rows, logits_stride)),
        };
        let &Program { rows, logits, samples, batch, images, from_tokens, .. } = program;
        let kv_bytes = |dispatch: &Dispatch| kv_bytes_read(plan, dispatch, context_tokens);
        let costs = |bytes: &dyn Fn(&Dispatch) -> u64| {
            let cost = |dispatch: &Dispatch| DispatchCost { bytes: bytes(dispatch), grid: dispatch.workgroups };
            program.dispatches.iter().map(cost).collect()
        };
        Ok(PreparedProgram {
            shape: ProgramShape { rows, logits, samples, batch, images, from_tokens },
            index,
            takes_masks: program.takes_masks(),
            dispatches: bind(&program.dispatches, pipelines, &mut sets),
            orders: program.dispatches.iter().map(|dispatch| order(dispatch, barriers)).collect(),
            weight_costs: costs(&|dispatch| dispatch.weight_bytes.min(bound_weight_bytes(plan, dispatch))),
            costs: costs(&|dispatch| dispatch.weight_bytes + kv_bytes(dispatch)),
            foreseen_costs: costs(&|dispatch| {
                dispatch.weight_bytes.max(foreseen_weight_bytes(plan, dispatch)) + kv_bytes(dispatch)
            }),
            read_logits,
            logits_stride,
            npu: None,
        })
    };
    let programs = target.programs.iter().enumerate().map(one).collect::<Result<_, LoadError>>()?;
    Ok(PreparedPrograms { programs, timers: [Timestamps::create(device, 2)?, Timestamps::create(device, 2)?] })
}

/// Programs of fewer rows are not split on a software device: their steps are short, and submissions cost time, too.
const MIN_SOFTWARE_ROWS: u32 = 64;

impl PreparedPrograms {
    /// Cost models before any measurement, one a program.
    pub fn estimated_costs(&self, is_software: bool) -> Vec<CostModel> {
        let estimate = |program: &PreparedProgram| match program.shape {
            ProgramShape { rows, batch: false, .. } if is_software && rows >= MIN_SOFTWARE_ROWS => {
                CostModel::estimate_software_prefill(rows, parallel::cores())
            }
            ProgramShape { rows, .. } => CostModel::estimate(rows),
        };
        self.programs.iter().map(estimate).collect()
    }

    /// Records every program, split so that no submission is estimated to take longer than `bound_seconds`. Each slot is timed as a
    /// whole; given the target in `profile`, each dispatch is timed, too. Profiled programs must be prepared with barriers, and
    /// have no multi-step slots.
    ///
    /// # Errors
    /// When the device fails, or has no timestamps for a profile.
    pub fn record(
        &self,
        device: &Arc<Device>,
        cost_models: &[CostModel],
        bound_seconds: f64,
        profile: Option<&TargetKernels>,
    ) -> Result<RecordedPrograms, LoadError> {
        let mut programs = RecordedPrograms { shapes: Vec::new(), recorded: Vec::new() };
        for (program, cost_model) in self.programs.iter().zip(cost_models) {
            let (mut lists, npu) = match &program.npu {
                Some(work) => {
                    let costs = &program.foreseen_costs;
                    let split = |ranges| split_ranges(ranges, costs, *cost_model, bound_seconds);
                    work.lists(|dispatch| costs[dispatch].grid, |ranges| program.commands(&split(ranges)))
                }
                None => (program.commands(&program.submissions(*cost_model, bound_seconds)), Vec::new()),
            };
            let multistep = program.multistep(&lists, *cost_model, bound_seconds).filter(|_| profile.is_none());
            let timestamps = profile
                .map(|target| ProgramTimestamps::insert(device, target, &target.programs[program.index], &mut lists))
                .transpose()?;
            let timers = &self.timers[..program.shape.slots()];
            let record_slots = |lists: &[Vec<Command>]| {
                timers.iter().map(|timer| record_slot(device, lists.to_vec(), timer.clone())).collect::<Result<_, _>>()
            };
            let slots = record_slots(&lists)?;
            let multistep_slots = multistep.map_or(Ok(Vec::new()), |list| record_slots(&[list]))?;
            let read_logits = program.read_logits.iter().map(|copy| CommandList::record(device, vec![copy.clone()]));
            let read_logits = read_logits.collect::<Result<_, _>>()?;
            let logits_stride = program.logits_stride;
            let recorded = RecordedProgram {
                slots,
                multistep_slots,
                samplers_apart: Vec::new(),
                can_be_apart: program.takes_masks && profile.is_none(),
                timestamps,
                read_logits,
                logits_stride,
                npu,
            };
            programs.recorded.push(recorded);
            programs.shapes.push(program.shape);
        }
        Ok(programs)
    }
}

impl PreparedProgram {
    /// Records only these ranges, with a timestamp before (0) and after (1); `None`: the device has no timestamps.
    pub fn record_alone(
        &self,
        device: &Arc<Device>,
        ranges: &[DispatchRange],
    ) -> Result<Option<(CommandList, Arc<Timestamps>)>, LoadError> {
        let Some(timer) = Timestamps::create(device, 2)? else { return Ok(None) };
        let mut slot = record_slot(device, self.commands(&[ranges.to_vec()]), Some(timer.clone()))?;
        Ok(slot.lists.pop().map(|list| (list, timer)))
    }

    /// The dispatch ranges of each submission.
    pub fn submissions(&self, cost_model: CostModel, bound_seconds: f64) -> Vec<Vec<DispatchRange>> {
        let submissions = split(&self.foreseen_costs, cost_model, bound_seconds);
        if self.shape.logits == LogitsRows::Image {
            // Their time follows from the patches, not from the weights by which costs are estimated.
            let ranges: Vec<DispatchRange> = submissions.into_iter().flatten().collect();
            return ranges.chunks(IMAGE_DISPATCHES).map(<[_]>::to_vec).collect();
        }
        submissions
    }

    /// The commands of each submission.
    pub fn commands(&self, submissions: &[Vec<DispatchRange>]) -> Vec<Vec<Command>> {
        let counters = counters(&self.orders, submissions.iter().flatten());
        let one = |range: &DispatchRange| {
            let BoundDispatch { pipeline, set } = &self.dispatches[range.dispatch];
            // The barrier before a dispatch's first range serves its other ranges, too.
            let has_barrier = self.orders[range.dispatch] == Order::Barrier && !range.workgroups.continues;
            let (pipeline, set, counter) = (pipeline.clone(), set.clone(), counters[&range.dispatch]);
            let dispatch = Command::Dispatch { pipeline, set, workgroups: range.workgroups, counter };
            has_barrier.then_some(Command::Barrier).into_iter().chain([dispatch])
        };
        submissions.iter().map(|ranges| ranges.iter().flat_map(one).collect()).collect()
    }

    /// The commands of several steps in one submission, given those of one step; `None`: the program is not for one
    /// sequence's decode, or the steps would exceed the bound.
    fn multistep(
        &self,
        submissions: &[Vec<Command>],
        cost_model: CostModel,
        bound_seconds: f64,
    ) -> Option<Vec<Command>> {
        let [step] = submissions else { return None };
        let seconds: f64 = self.costs.iter().map(|cost| cost.seconds(cost_model)).sum();
        let fits = f64::from(STEPS_PER_SUBMISSION) * seconds <= bound_seconds;
        // Barriers between steps: each reads the token, K and V of the one before.
        (self.shape.decodes_one_sequence() && fits)
            .then(|| [step.as_slice(); STEPS_PER_SUBMISSION as usize].join(&Command::Barrier))
    }
}

impl RecordedProgram {
    /// Makes [`RecordedProgram::sampler_apart`] possible, if the program has such a sampler; returns whether it has.
    ///
    /// # Errors
    /// When the device fails.
    pub fn record_samplers_apart(&mut self, device: &Arc<Device>) -> Result<bool, Failure> {
        if self.can_be_apart && self.samplers_apart.is_empty() {
            let each = self.slots.iter().map(|slot| SamplerApart::record(device, &slot.lists));
            self.samplers_apart = each.collect::<Result<_, _>>()?;
        }
        Ok(self.can_be_apart)
    }

    /// A slot's step, with the sampler apart, which was recorded.
    pub fn sampler_apart(&self, step_slot: usize) -> &SamplerApart {
        &self.samplers_apart[step_slot]
    }
}

impl RecordedPrograms {
    /// Submissions of one step of each program.
    pub fn submissions(&self) -> Vec<u32> {
        self.recorded.iter().map(|program| program.slots[0].lists.len() as u32).collect()
    }
}

/// Dispatches of a submission that makes rows of an image: the longest, attention of 4096 patches, takes 0.1 s on a GPU of 1 TFLOP/s.
const IMAGE_DISPATCHES: usize = 4;

/// Bytes of weights that a workgroup reads in most kernels: a tile of 8 rows, INT4, of a matrix of 6144 columns.
const WORKGROUP_WEIGHT_BYTES: u64 = 32 << 10;

/// Bytes of weights that a dispatch may be expected to read whatever its plan declares, by its workgroups and bindings. A row of a
/// table of embeddings, or some experts of a mixture, take few workgroups for what they are bound to.
fn foreseen_weight_bytes(plan: &Plan, dispatch: &Dispatch) -> u64 {
    let workgroups: u64 = dispatch.workgroups.into_iter().map(u64::from).product();
    bound_weight_bytes(plan, dispatch).min(workgroups.saturating_mul(WORKGROUP_WEIGHT_BYTES))
}

/// Bytes of all weights that a dispatch can read.
fn bound_weight_bytes(plan: &Plan, dispatch: &Dispatch) -> u64 {
    let bound = dispatch.bindings.iter().filter_map(|binding| match (binding.buffer, binding.len_bytes) {
        (BufferRef::Weights { slice }, 0) => Some(plan.slices[slice as usize].bytes),
        (BufferRef::Weights { .. }, len_bytes) => Some(len_bytes),
        _ => None,
    });
    bound.sum()
}

/// Bytes of K and V that a dispatch reads at the longest context.
fn kv_bytes_read(plan: &Plan, dispatch: &Dispatch, context_tokens: u32) -> u64 {
    let read = dispatch.bindings.iter().filter(|binding| !binding.writes).filter_map(|binding| match binding.buffer {
        BufferRef::Keys { group, .. } | BufferRef::Values { group, .. } => Some(&plan.kv_groups[group as usize]),
        _ => None,
    });
    read.map(|group| group.bytes_read_per_token(context_tokens) / (2 * u64::from(group.n_layers.max(1)))).sum()
}

fn record_slot(
    device: &Arc<Device>,
    mut submissions: Vec<Vec<Command>>,
    timer: Option<Arc<Timestamps>>,
) -> Result<RecordedSlot, LoadError> {
    if let Some(timer) = &timer {
        let first = submissions.first_mut().into_iter();
        first.for_each(|first| {
            drop(
                first
                    .splice(0..0, [Command::ResetTimestamps(timer.clone()), Command::WriteTimestamp(timer.clone(), 0)]),
            )
        });
        submissions.last_mut().into_iter().for_each(|last| last.push(Command::WriteTimestamp(timer.clone(), 1)));
    }
    let lists =
        submissions.into_iter().map(|commands| CommandList::record(device, commands)).collect::<Result<_, _>>()?;
    Ok(RecordedSlot { lists, timer })
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

/// A barrier instead of counter synchronisation gives the same results, and no overlap of dispatches, whose times are then their own.
fn order(dispatch: &Dispatch, barriers: bool) -> Order {
    match dispatch.order {
        Order::CounterSync if barriers => Order::Barrier,
        order => order,
    }
}

fn logits_rows(plan: &Plan, program: &Program) -> Result<u32, LoadError> {
    let rows = match program.logits {
        LogitsRows::None => 0,
        LogitsRows::One | LogitsRows::Predicted => 1,
        LogitsRows::All => program.rows,
        LogitsRows::Samplers | LogitsRows::SamplersBesideTwo => program.rows.min(MAX_SAMPLERS as u32),
        // The artifact's check found that the buffer has room for them.
        LogitsRows::Hidden | LogitsRows::Image => return Ok(program.rows),
    };
    if rows > plan.logits_rows {
        let max = plan.logits_rows;
        return Err(LoadError::Unsupported {
            what: format!("program writes logits of {rows} rows, expected at most the plan's {max}"),
        });
    }
    Ok(rows)
}

fn copy_logits(buffers: &Buffers, rows: u32, stride: u32) -> Command {
    let bytes = 4 * u64::from(rows) * u64::from(stride);
    Command::Copy { from: buffers.logits.range(0, bytes), to: buffers.readback.range(0, bytes) }
}
