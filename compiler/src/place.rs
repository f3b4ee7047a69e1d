//! Where every byte is placed. The only code that chooses an address or a memory tier.

mod arena;
pub mod npu;
mod npu_schedule;
mod refusal;
pub mod replace;
pub mod tiers;

use rayon::prelude::*;
use unicorn_artifact::fit::{Choice, LOGITS, STEP, step_buffer_bytes};
use unicorn_artifact::hazards::Hazards;
use unicorn_artifact::header::MAX_SLICE_BYTES;
use unicorn_artifact::plan::BUFFER_ALIGN;
use unicorn_artifact::step::{MAX_OUTPUTS, Output};
use unicorn_artifact::{
    Binding, BufferPlan, BufferRef, Dispatch, KvGroupPlan, MachinePlan, NpuCommand, NpuSchedule, NpuSection, Order,
    Plan, Program, SlicePlan, Tier, WeightPlan,
};
use unicorn_kernels::completion::COMPLETION_COUNTERS;
use unicorn_kernels::{KvFormat, counter_sync};

use crate::error::Result;
use crate::format_policy::FormatPolicy;
use crate::fuse::FusedGraph;
use crate::import::ModelConfig;
use crate::select::{
    KernelDispatch, KvGroup, Operand, SelectedKernel, SelectedProgram, Selection, TargetSelection, image_section,
    kv_groups, stride,
};
use crate::weights::{PackedId, PackedWeights};
use arena::{Activation, Arena};
use tiers::{Demand, Tiers};

/// What is to be placed, and on which machine.
pub(crate) struct PlaceRequest<'a> {
    pub(crate) graph: &'a FusedGraph,
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a PackedWeights,
    /// The formats in which `weights` are packed.
    pub(crate) policy: FormatPolicy,
    pub(crate) kv: KvFormat,
    /// All dispatches of all programs.
    pub(crate) selection: &'a Selection,
    /// The same for steps in which an NPU computes products, and what it computes.
    pub(crate) npu: Option<(&'a Selection, &'a NpuSection)>,
    pub(crate) machine: &'a MachinePlan,
    /// Tokens of the sequence that must fit.
    pub(crate) context_tokens: u32,
}

/// Where everything is.
pub struct Placement {
    /// Budgets, slices and offsets, in bytes, as the artifact stores them.
    pub plan: Plan,
    /// The plan's weights by packed weight.
    pub weights: WeightPlacement,
    /// The programs of each target, in the order of the selection, with every operand bound.
    pub programs: Vec<Vec<Program>>,
    /// The same for steps in which an NPU computes products, with its commands.
    pub(crate) npu_programs: Vec<Vec<NpuStepProgram>>,
}

/// A program of a step in which an NPU computes products.
pub(crate) struct NpuStepProgram {
    pub(crate) program: Program,
    pub(crate) commands: Vec<NpuCommand>,
    /// The order of both.
    pub(crate) schedule: NpuSchedule,
}

/// Weights in slices: one run of slices a tier, weights in the order of `PackedWeights::list` within it.
pub struct WeightPlacement {
    pub(crate) slices: Vec<SlicePlan>,
    /// One a packed weight, by slice and offset; `ids` has its name.
    pub(crate) weights: Vec<WeightPlan>,
    /// The packed weight of each entry of the plan's `weights`.
    pub ids: Vec<PackedId>,
    /// The inverse: index into `weights` by packed weight.
    index_of: Vec<usize>,
}

/// One of two buffers that weights pass through where memory cannot be written in place.
const STAGING_BYTES: u64 = 64 << 20;

/// Gives everything a tier and an offset.
///
/// # Errors
/// [`crate::CompileError::DoesNotFit`] when the machine has no room for it, with the sums, what is missing and remedies.
pub(crate) fn place(request: &PlaceRequest) -> Result<Placement> {
    let logits_stride = stride(request.config.vocab_size);
    let logits_bytes = 4 * (request.selection.logits_rows * logits_stride) as u64;
    let arenas = arena::arenas(request, request.selection);
    let npu_arenas = request.npu.map_or(Vec::new(), |(selection, _)| arena::arenas(request, selection));
    let of_npu = request.npu.map(|(selection, _)| (selection, &npu_arenas));
    let largest = arena::largest([(request.selection, &arenas)].into_iter().chain(of_npu));
    let arena_bytes = largest.map_or(0, |(_, arena)| arena::bytes(arena));
    let groups = kv_groups(request.config);
    let demand = Demand {
        weights: request.weights,
        kv_groups: unplaced_kv(&groups, request.config, request.kv),
        context_tokens: request.context_tokens,
        chunk_tokens: request.selection.chunk_tokens as u32,
        activation_bytes: arena_bytes + logits_bytes,
        host_buffer_bytes: host_buffers(request, logits_bytes, Tier::Gtt).iter().map(|buffer| buffer.bytes).sum(),
    };
    let tiers = demand.fill(request.machine).map_err(|short_bytes| refusal::refusal(request, &demand, short_bytes))?;
    let weights = place_weights(request.weights, &tiers);
    let activations = largest.map_or(Vec::new(), |(program, arena)| arena::plans(request.graph, program, arena));
    let mut buffers = host_buffers(request, logits_bytes, tiers.host_buffers);
    buffers.insert(
        0,
        BufferPlan {
            name: LOGITS.into(),
            bytes: logits_bytes,
            tier: tiers.activations,
            reason: "written by the output head, read by the sampler".into(),
        },
    );
    buffers.extend(request.npu.iter().flat_map(|(selection, section)| npu::buffers(section, selection.npu_parts())));
    let plan = Plan {
        machine: request.machine.clone(),
        slices: weights.slices.clone(),
        weights: weights.weights.clone(),
        kv_groups: place_kv(demand.kv_groups, &tiers.kv_groups),
        arena_bytes,
        activations,
        arena_tier: tiers.activations,
        logits_rows: request.selection.logits_rows as u32,
        logits_stride: logits_stride as u32,
        buffers,
        planned_context_tokens: request.context_tokens,
        planned_chunk_tokens: request.selection.chunk_tokens as u32,
    };
    let programs = place_programs(request.selection, &weights, &arenas);
    let npu_programs =
        request.npu.map_or(Vec::new(), |(selection, _)| place_npu_programs(selection, &weights, &npu_arenas));
    Ok(Placement { plan, weights, programs, npu_programs })
}

/// Gives every weight a slice and an offset in its tier.
fn place_weights(weights: &PackedWeights, tiers: &Tiers) -> WeightPlacement {
    let (slices, ids) = (Vec::new(), Vec::new());
    let mut placement = WeightPlacement { slices, weights: Vec::new(), ids, index_of: vec![0; weights.list.len()] };
    for tier in [Tier::Npu, Tier::Vram, Tier::Gtt, Tier::Host] {
        let mut open = false;
        for (index, weight) in weights.list.iter().enumerate() {
            let choice = tiers.weights[index];
            if choice.tier != tier {
                continue;
            }
            let offset = placement.slices.last().map_or(0, |slice| slice.bytes.next_multiple_of(BUFFER_ALIGN));
            if !open || offset + weight.len_bytes > MAX_SLICE_BYTES {
                placement.slices.push(SlicePlan { bytes: 0, tier });
                open = true;
            }
            let slice = placement.slices.last_mut().expect("just opened");
            let offset_bytes = slice.bytes.next_multiple_of(BUFFER_ALIGN);
            slice.bytes = offset_bytes + weight.len_bytes;
            placement.ids.push(PackedId(index));
            placement.index_of[index] = placement.weights.len();
            placement.weights.push(WeightPlan {
                name: weight.name.clone(),
                slice: placement.slices.len() as u32 - 1,
                offset_bytes,
                len_bytes: weight.len_bytes,
                layer: weight.layer.map(|layer| layer as u32),
                bytes_read_per_token: weight.bytes_read_per_token,
                reason: choice.explain(&weight.reason),
            });
        }
    }
    placement
}

/// The KV groups' pages, before they have a tier.
fn unplaced_kv(groups: &[KvGroup], config: &ModelConfig, format: KvFormat) -> Vec<KvGroupPlan> {
    let plan = |group: &KvGroup| KvGroupPlan {
        window_tokens: group.window.map(|window| window as u32),
        n_layers: group.layers.len() as u32,
        page_tokens: group.page_tokens(),
        page_bytes: group.page_bytes(config, format),
        tier: Tier::Host,
        reason: match group.window {
            _ if group.is_recurrent => "recurrent state, read and written for each token".into(),
            Some(window) => format!("read whole for each token, {window} tokens at most"),
            None => "read whole for each token".into(),
        },
    };
    groups.iter().map(plan).collect()
}

fn place_kv(groups: Vec<KvGroupPlan>, choices: &[Choice]) -> Vec<KvGroupPlan> {
    let place = |(group, choice): (KvGroupPlan, &Choice)| {
        let reason = choice.explain(&group.reason);
        KvGroupPlan { tier: choice.tier, reason, ..group }
    };
    groups.into_iter().zip(choices).map(place).collect()
}

/// Buffers that both host and GPU access.
fn host_buffers(request: &PlaceRequest, logits_bytes: u64, tier: Tier) -> Vec<BufferPlan> {
    let page_tokens = kv_groups(request.config).into_iter().map(|group| group.page_tokens());
    let step_bytes = step_buffer_bytes(page_tokens, request.context_tokens);
    let images = image_section(request.config)
        .map(|section| ("images", section.input_bytes(), "patches of an image, or rows of images"));
    [
        ("logits read-back", logits_bytes, "copied to only when a tool requires logits"),
        (STEP, step_bytes, "what the host writes each step: rows, block tables, sampling"),
        (
            "samples",
            4 * (MAX_OUTPUTS * Output::WORDS) as u64,
            "the tokens that the last steps sampled, read by the host",
        ),
        ("staging", 2 * STAGING_BYTES, "while loading, where memory cannot be written in place"),
    ]
    .into_iter()
    .chain(images)
    .map(|(name, bytes, reason)| BufferPlan { name: name.into(), bytes, tier, reason: reason.into() })
    .collect()
}

/// Every program with every operand bound.
fn place_programs(selection: &Selection, weights: &WeightPlacement, arenas: &[Vec<Arena>]) -> Vec<Vec<Program>> {
    let targets = selection.targets.par_iter().zip(arenas);
    let of_target = targets.map(|(target, arenas)| {
        let programs = target.programs.par_iter().zip(arenas);
        programs.map(|(program, arena)| place_program(weights, arena, program, &target.kernels)).collect()
    });
    of_target.collect()
}

/// The same with the NPU's commands: each runs before the dispatch that reads its outputs.
fn place_npu_programs(
    selection: &Selection,
    weights: &WeightPlacement,
    arenas: &[Vec<Arena>],
) -> Vec<Vec<NpuStepProgram>> {
    let commands = |program: &SelectedProgram, arena: &Arena| {
        let place = |wanted: &dyn Fn(&Operand) -> bool| {
            arena.iter().find(|(operand, _)| wanted(operand)).expect("both operands of a product").1.offset_bytes
        };
        let of_dispatch = |(index, dispatch): (usize, &KernelDispatch)| {
            let outputs = dispatch.operands.iter().find_map(|operand| match *operand {
                Operand::NpuOutput { product, .. } => Some((*operand, product)),
                _ => None,
            });
            let (outputs, product) = outputs?;
            Some(NpuCommand {
                before_dispatch: index as u32,
                product: product as u32,
                activations_offset_bytes: place(
                    &|operand| matches!(*operand, Operand::NpuInput { product: of, .. } if of == product),
                ),
                outputs_offset_bytes: arena[&outputs].offset_bytes,
            })
        };
        program.dispatches.iter().enumerate().filter_map(of_dispatch).collect()
    };
    let of_target = |(target, arenas): (&TargetSelection, &Vec<Arena>)| {
        let one = |(selected, arena)| {
            let program = place_program(weights, arena, selected, &target.kernels);
            let commands: Vec<NpuCommand> = commands(selected, arena);
            let schedule = npu_schedule::schedule(selected, &program, &commands);
            NpuStepProgram { program, commands, schedule }
        };
        target.programs.iter().zip(arenas).map(one).collect()
    };
    selection.targets.iter().zip(arenas).map(of_target).collect()
}

/// One program with every operand bound and the fewest barriers that keep its order. `kernels` are those of its target.
fn place_program(
    weights: &WeightPlacement,
    arena: &Arena,
    program: &SelectedProgram,
    kernels: &[SelectedKernel],
) -> Program {
    let kind = program.kind;
    let mut hazards = Hazards::default();
    let dispatches = program.dispatches.iter().zip(&program.kernels).map(|(dispatch, &kernel)| {
        let operands = dispatch.operands.iter().zip(dispatch.spec.bindings());
        let bindings: Vec<Binding> =
            operands.map(|(operand, binding)| bind(weights, arena, *operand, binding.writes)).collect();
        let alternatives = kernels[kernel].alternatives.iter().map(|other| other.workgroups(dispatch.rows));
        let order = match hazards.must_wait(&bindings, dispatch.is_next_part) {
            _ if dispatch.is_counted => Order::CounterSync,
            true => Order::Barrier,
            false => Order::Free,
        };
        hazards.record(&bindings, order);
        Dispatch {
            pipeline: kernel as u32,
            workgroups: dispatch.workgroups.map(|count| count as u32),
            alternatives: alternatives.map(|other| other.map(|count| count as u32)).collect(),
            order,
            bindings,
            label: dispatch.label.clone(),
            weight_bytes: dispatch.weight_bytes,
        }
    });
    let dispatches = dispatches.collect();
    Program {
        rows: kind.rows as u32,
        logits: kind.logits,
        samples: kind.samples(),
        batch: kind.batch,
        images: kind.images,
        from_tokens: kind.from_tokens as u32,
        dispatches,
    }
}

fn bind(weights: &WeightPlacement, arena: &Arena, operand: Operand, writes: bool) -> Binding {
    let whole = |buffer| Binding { buffer, offset_bytes: 0, len_bytes: 0, writes };
    let words = |first: usize, count: usize| Binding {
        buffer: BufferRef::Arena,
        offset_bytes: 4 * first as u64,
        len_bytes: 4 * count as u64,
        writes,
    };
    let slot = |number| COMPLETION_COUNTERS + counter_sync::SLOT_WORDS * number;
    match operand {
        Operand::StepBuffer => whole(BufferRef::Step),
        Operand::Logits => whole(BufferRef::Logits),
        Operand::Hidden { len } => {
            Binding { buffer: BufferRef::Logits, offset_bytes: 0, len_bytes: 4 * len as u64, writes }
        }
        Operand::HostRows { len } => {
            Binding { buffer: BufferRef::Input, offset_bytes: 0, len_bytes: 4 * len as u64, writes }
        }
        Operand::Samples => whole(BufferRef::Output),
        Operand::CompletionCounters => words(0, COMPLETION_COUNTERS),
        Operand::SyncCounters { dispatch } => words(slot(dispatch - 1), 2 * counter_sync::SLOT_WORDS),
        Operand::SyncCounterSlots => words(slot(0), counter_sync::SLOTS * counter_sync::SLOT_WORDS),
        Operand::Keys { group, layer } => whole(BufferRef::Keys { group: group as u32, layer: layer as u32 }),
        Operand::Values { group, layer } => whole(BufferRef::Values { group: group as u32, layer: layer as u32 }),
        Operand::Weight(id) => {
            let plan = &weights.weights[weights.index_of[id.0]];
            let buffer = BufferRef::Weights { slice: plan.slice };
            Binding { buffer, offset_bytes: plan.offset_bytes, len_bytes: plan.len_bytes, writes }
        }
        // The others are activations ([`Operand::is_activation`]): the arena has a place for each.
        activation => {
            let Activation { offset_bytes, len_bytes, .. } = arena[&activation];
            Binding { buffer: BufferRef::Arena, offset_bytes, len_bytes, writes }
        }
    }
}
