//! Where every byte lives. The only code that chooses an address or a memory tier.

use std::collections::{BTreeMap, BTreeSet};

use artifacts::header::MAX_SLICE_BYTES;
use artifacts::plan::BUFFER_ALIGN;
use artifacts::step;
use artifacts::{
    ActivationPlan, Binding, BufferRef, Dispatch, KvGroupPlan, LogitsRows, Program, SlicePlan, Tier, WeightPlan,
};

use crate::fuse::FusedGraph;
use crate::import::ModelConfig;
use crate::select::{KvGroup, Operand, PAGE_TOKENS, ProgramKind, Step, stride};
use crate::weights::{PackedId, PackedWeights};

/// Weights in slices: one run of slices a tier, weights in the order of `PackedWeights::list` within it.
pub struct WeightPlacement {
    pub slices: Vec<SlicePlan>,
    /// One a packed weight, by slice and offset; `ids` says which.
    pub weights: Vec<WeightPlan>,
    pub ids: Vec<PackedId>,
}

/// Gives every weight a slice and an offset. What a token reads whole goes to VRAM; a table of which it reads one row may
/// stay in GTT.
pub fn place_weights(weights: &PackedWeights) -> WeightPlacement {
    let mut placement = WeightPlacement { slices: Vec::new(), weights: Vec::new(), ids: Vec::new() };
    for tier in [Tier::Vram, Tier::Gtt] {
        let mut open = false;
        for (index, weight) in weights.list.iter().enumerate() {
            if tier_of(weight.bytes_read_per_token, weight.len_bytes) != tier {
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
            placement.weights.push(WeightPlan {
                name: weight.name.clone(),
                slice: placement.slices.len() as u32 - 1,
                offset_bytes,
                len_bytes: weight.len_bytes,
                layer: weight.layer.map(|layer| layer as u32),
                bytes_read_per_token: weight.bytes_read_per_token,
                reason: weight.reason.clone(),
            });
        }
    }
    placement
}

/// A weight of which a token reads less than a hundredth is as well off in slow memory, if it is large enough to matter.
fn tier_of(bytes_read_per_token: u64, len_bytes: u64) -> Tier {
    let sparse = bytes_read_per_token < len_bytes / 100;
    if sparse && len_bytes > (16 << 20) { Tier::Gtt } else { Tier::Vram }
}

/// The KV groups' pages.
pub fn place_kv(groups: &[KvGroup], config: &ModelConfig) -> Vec<KvGroupPlan> {
    let page_bytes = (config.n_kv_heads * config.head_dim * PAGE_TOKENS * 2) as u64;
    let plan = |group: &KvGroup| KvGroupPlan {
        window_tokens: group.window.map(|window| window as u32),
        n_layers: group.layers.len() as u32,
        page_tokens: PAGE_TOKENS as u32,
        page_bytes,
        tier: Tier::Vram,
        reason: match group.window {
            Some(window) => format!("read whole for each token, {window} tokens at most"),
            None => "read whole for each token".into(),
        },
    };
    groups.iter().map(plan).collect()
}

/// Activations of one program in one arena: ranges of values that are alive at the same time never overlap.
pub fn place_activations(graph: &FusedGraph, steps: &[Step], rows: usize) -> BTreeMap<Operand, ActivationPlan> {
    let mut lives: BTreeMap<Operand, (usize, usize)> = BTreeMap::new();
    for (index, step) in steps.iter().enumerate() {
        for operand in &step.operands {
            if let Operand::Value(_) | Operand::Encoded(_) = operand {
                lives.entry(*operand).or_insert((index, index)).1 = index;
            }
        }
    }
    let mut wanted: Vec<(Operand, ActivationPlan)> = lives
        .into_iter()
        .map(|(operand, (first, last))| {
            let (id, encoded) = match operand {
                Operand::Encoded(id) => (id, " as integers"),
                Operand::Value(id) => (id, ""),
                other => unreachable!("{other:?} is no activation"),
            };
            let value = &graph.values[id.0];
            let plan = ActivationPlan {
                name: format!("{}{encoded}", value.name),
                offset_bytes: 0,
                len_bytes: (4 * rows * stride(value.width)) as u64,
                first_use: first as u32,
                last_use: last as u32,
            };
            (operand, plan)
        })
        .collect();
    // Large ones first, each at the lowest offset that is free for all of its life.
    wanted.sort_by_key(|(operand, plan)| (std::cmp::Reverse(plan.len_bytes), plan.first_use, *operand));
    let mut placed: Vec<ActivationPlan> = Vec::new();
    let mut by_operand = BTreeMap::new();
    for (operand, mut plan) in wanted {
        plan.offset_bytes = lowest_free(&placed, &plan);
        placed.push(plan.clone());
        by_operand.insert(operand, plan);
    }
    by_operand
}

fn lowest_free(placed: &[ActivationPlan], plan: &ActivationPlan) -> u64 {
    let mut taken: Vec<(u64, u64)> = placed
        .iter()
        .filter(|other| plan.first_use <= other.last_use && other.first_use <= plan.last_use)
        .map(|other| (other.offset_bytes, other.offset_bytes + other.len_bytes))
        .collect();
    taken.sort_unstable();
    let mut offset = 0u64;
    for (start, end) in taken {
        if offset + plan.len_bytes <= start {
            break;
        }
        offset = offset.max(end.next_multiple_of(BUFFER_ALIGN));
    }
    offset
}

/// Bytes that an arena for these activations needs.
pub fn arena_bytes<'a>(activations: impl IntoIterator<Item = &'a ActivationPlan>) -> u64 {
    activations.into_iter().map(|plan| plan.offset_bytes + plan.len_bytes).max().unwrap_or(0)
}

/// One program with every operand bound and the fewest barriers that keep its order.
pub fn place_program(
    graph: &FusedGraph,
    weights: &WeightPlacement,
    kind: ProgramKind,
    steps: &[Step],
    pipelines: &[u32],
) -> Program {
    let activations = place_activations(graph, steps, kind.rows);
    let mut hazards = Hazards::default();
    let dispatches = steps
        .iter()
        .zip(pipelines)
        .map(|(step, &pipeline)| {
            let bindings: Vec<Binding> = step
                .operands
                .iter()
                .zip(step.spec.bindings())
                .map(|(operand, binding)| bind(weights, &activations, *operand, binding.writes))
                .collect();
            Dispatch {
                pipeline,
                workgroups: step.workgroups.map(|count| count as u32),
                barrier_before: hazards.barrier_before(&bindings),
                bindings,
                label: step.label.clone(),
                weight_bytes: step.weight_bytes,
            }
        })
        .collect();
    Program { rows: kind.rows as u32, logits: kind.logits, samples: kind.logits == LogitsRows::One, dispatches }
}

fn bind(
    weights: &WeightPlacement,
    activations: &BTreeMap<Operand, ActivationPlan>,
    operand: Operand,
    writes: bool,
) -> Binding {
    let whole = |buffer| Binding { buffer, offset_bytes: 0, len_bytes: 0, writes };
    match operand {
        Operand::StepBuffer => whole(BufferRef::Step),
        Operand::Logits => whole(BufferRef::Logits),
        Operand::Drawn => whole(BufferRef::Output),
        Operand::Keys { group, layer } => whole(BufferRef::Keys { group: group as u32, layer: layer as u32 }),
        Operand::Values { group, layer } => whole(BufferRef::Values { group: group as u32, layer: layer as u32 }),
        Operand::Value(_) | Operand::Encoded(_) => {
            let plan = &activations[&operand];
            Binding { buffer: BufferRef::Arena, offset_bytes: plan.offset_bytes, len_bytes: plan.len_bytes, writes }
        }
        Operand::Weight(id) => {
            let index = weights.ids.iter().position(|&one| one == id).expect("every weight is placed");
            let plan = &weights.weights[index];
            let buffer = BufferRef::Weights { slice: plan.slice };
            Binding { buffer, offset_bytes: plan.offset_bytes, len_bytes: plan.len_bytes, writes }
        }
    }
}

/// What was read and written since the last barrier.
#[derive(Default)]
struct Hazards {
    reads: BTreeSet<Range>,
    writes: BTreeSet<Range>,
}

/// (buffer, start, end); whole buffers end at the greatest number.
type Range = ((u8, u32, u32), u64, u64);

impl Hazards {
    /// Whether a dispatch must wait: it reads what was written, or writes what was read or written.
    fn barrier_before(&mut self, bindings: &[Binding]) -> bool {
        let touches = |set: &BTreeSet<Range>, range: &Range| {
            set.iter().any(|other| other.0 == range.0 && other.1 < range.2 && range.1 < other.2)
        };
        let ranges: Vec<(Range, bool)> = bindings.iter().map(|binding| (range_of(binding), binding.writes)).collect();
        let must_wait = ranges
            .iter()
            .any(|(range, writes)| touches(&self.writes, range) || (*writes && touches(&self.reads, range)));
        if must_wait {
            self.reads.clear();
            self.writes.clear();
        }
        for (range, writes) in ranges {
            if writes { &mut self.writes } else { &mut self.reads }.insert(range);
        }
        must_wait
    }
}

fn range_of(binding: &Binding) -> Range {
    let key = match binding.buffer {
        BufferRef::Weights { slice } => (0, slice, 0),
        BufferRef::Arena => (1, 0, 0),
        BufferRef::Keys { group, layer } => (2, group, layer),
        BufferRef::Values { group, layer } => (3, group, layer),
        BufferRef::Step => (4, 0, 0),
        BufferRef::Logits => (5, 0, 0),
        BufferRef::Output => (6, 0, 0),
    };
    let end = if binding.len_bytes == 0 { u64::MAX } else { binding.offset_bytes + binding.len_bytes };
    (key, binding.offset_bytes, end)
}

/// Bytes of the step buffer for one sequence of `context_tokens`.
pub fn step_buffer_bytes(n_groups: usize, context_tokens: usize) -> u64 {
    4 * (step::TABLES_AT + n_groups * context_tokens.div_ceil(PAGE_TOKENS)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_alive_together_never_overlap(lives in prop::collection::vec((0u32..40, 0u32..10, 1u64..5000), 1..40)) {
            let mut placed: Vec<ActivationPlan> = Vec::new();
            for (first_use, length, len_bytes) in lives {
                let last_use = first_use + length;
                let mut plan = ActivationPlan { name: String::new(), offset_bytes: 0, len_bytes, first_use, last_use };
                plan.offset_bytes = lowest_free(&placed, &plan);
                prop_assert!(plan.offset_bytes.is_multiple_of(BUFFER_ALIGN));
                for other in &placed {
                    let together = plan.first_use <= other.last_use && other.first_use <= plan.last_use;
                    let apart = plan.offset_bytes >= other.offset_bytes + other.len_bytes
                        || other.offset_bytes >= plan.offset_bytes + plan.len_bytes;
                    prop_assert!(!together || apart);
                }
                placed.push(plan);
            }
        }
    }
}
