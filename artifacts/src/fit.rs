//! Tiers for a model's memory: the one rule by which compiler, `replan` and `inspect` choose tiers and decide whether a machine
//! has enough memory. Data that a token reads most often per byte is placed first, in the fastest tier with enough room.
//!
//! Addresses within slices never change here: slices move as a whole.

use crate::account::{Account, size};
use crate::plan::{BufferPlan, KvGroupPlan, MachinePlan, Plan, Reader, Tier, TierPlan};
use crate::step;

/// Something that is placed in one tier as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Length in bytes.
    pub bytes: u64,
    /// The tiers where it may be placed, and the order in which they are tried.
    pub preference: Preference,
}

/// The order in which tiers are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Fastest first.
    Fastest,
    /// Slowest first, of the tiers from which a few rows of a table may be read: fast memory is left to other items.
    SparseRows,
    /// Slowest first, of the tiers that the host also reads.
    HostVisible,
}

/// The tier of an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The chosen tier.
    pub tier: Tier,
    /// The preferred tier, if it was full.
    pub full: Option<Tier>,
}

/// Something of a plan that has a tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    /// The arena and the logits.
    Activations,
    /// All other buffers except an NPU's: the host reads or writes them.
    HostBuffers,
    /// A KV group, by its index.
    KvGroup(usize),
    /// A slice of weights, by its index.
    Slice(usize),
}

/// The buffer that shares the activations' tier; all others are host buffers, or an NPU's.
pub const LOGITS: &str = "logits";
/// The host buffer whose size depends on the context.
pub const STEP: &str = "step";

/// A weight of which a token reads less than one part in this many is as fast in slow memory…
const SPARSE_PART: u64 = 100;
/// …if it is large enough to matter.
const SPARSE_BYTES: u64 = 16 << 20;

impl Preference {
    /// Preference of a weight of `len_bytes`, of which a token reads `bytes_read_per_token`.
    pub fn of_weight(bytes_read_per_token: u64, len_bytes: u64) -> Preference {
        let sparse = bytes_read_per_token < len_bytes / SPARSE_PART && len_bytes > SPARSE_BYTES;
        if sparse { Preference::SparseRows } else { Preference::Fastest }
    }

    /// Indices of the allowed tiers, the best first.
    fn order(self, tiers: &[(&TierPlan, u64)]) -> Vec<usize> {
        let all = 0..tiers.len();
        match self {
            Preference::Fastest => all.collect(),
            Preference::SparseRows => {
                let (last, others): (Vec<usize>, Vec<usize>) = all.partition(|&at| tiers[at].0.sparse_rows);
                last.into_iter().rev().chain(others).collect()
            }
            Preference::HostVisible => all.rev().filter(|&at| tiers[at].0.readers.contains(&Reader::Cpu)).collect(),
        }
    }
}

/// Text after a reason if a faster tier was full.
const NO_ROOM: &str = "; no room in ";

impl Choice {
    /// `reason`, followed by the name of a faster tier if it was full.
    pub fn explain(self, reason: &str) -> String {
        // An earlier plan may have found another tier full.
        let (reason, _) = reason.split_once(NO_ROOM).unwrap_or((reason, ""));
        match self.full {
            Some(full) => format!("{reason}{NO_ROOM}{}", full.name()),
            None => reason.into(),
        }
    }
}

/// A tier for each item, in this order.
///
/// # Errors
/// Bytes by which the slowest tier of the GPU is too small.
pub fn fill(machine: &MachinePlan, items: &[Item]) -> Result<Vec<Choice>, u64> {
    choose(machine, items, 0).ok_or_else(|| {
        // More memory never makes a fit much worse, so the least amount that is enough is found by bisection.
        // The sum of an untrusted plan may overflow.
        let (mut short, mut enough) = (0, items.iter().fold(0u64, |sum, item| sum.saturating_add(item.bytes)));
        while enough - short > 1 {
            let middle = short + (enough - short) / 2;
            match choose(machine, items, middle) {
                Some(_) => enough = middle,
                None => short = middle,
            }
        }
        enough
    })
}

/// A tier for each item; `None` if one does not fit even with `extra_bytes` more in the slowest tier.
fn choose(machine: &MachinePlan, items: &[Item], extra_bytes: u64) -> Option<Vec<Choice>> {
    let mut tiers: Vec<(&TierPlan, u64)> =
        machine.gpu_tiers().map(|tier| (tier, tier.budget_bytes.unwrap_or(u64::MAX))).collect();
    if let Some((_, free_bytes)) = tiers.last_mut() {
        *free_bytes = free_bytes.saturating_add(extra_bytes);
    }
    let mut choices = Vec::with_capacity(items.len());
    for item in items {
        let order = item.preference.order(&tiers);
        let at = *order.iter().find(|&&at| item.bytes <= tiers[at].1)?;
        // An unlimited tier stays unlimited.
        if tiers[at].0.budget_bytes.is_some() {
            tiers[at].1 -= item.bytes;
        }
        let first = tiers[order[0]].0.tier;
        let tier = tiers[at].0.tier;
        choices.push(Choice { tier, full: (first != tier).then_some(first) });
    }
    Some(choices)
}

/// Whether a buffer is an NPU's ([`crate::NpuSection::memory`]), which is always in system memory.
pub fn is_of_npu(buffer: &BufferPlan) -> bool {
    buffer.name.starts_with("NPU ")
}

/// Bytes by which system memory, of which GTT is a part, is too small for an NPU's memory in addition to the GPU's; 0 on a machine
/// where no NPU reads it.
pub fn npu_shortage(plan: &Plan) -> u64 {
    let system = plan.machine.tiers.iter().find(|tier| tier.tier == Tier::Host && tier.readers.contains(&Reader::Npu));
    let budget_bytes = system.and_then(|tier| tier.budget_bytes).filter(|_| plan.buffers.iter().any(is_of_npu));
    let Some(budget_bytes) = budget_bytes else { return 0 };
    let shared = Account::of(plan).tiers.into_iter().filter(|tier| matches!(tier.tier, Tier::Gtt | Tier::Host));
    shared.fold(0, |sum: u64, tier| sum.saturating_add(tier.bytes())).saturating_sub(budget_bytes)
}

/// `plan` for `machine` and a sequence of `context_tokens`, with tiers chosen again.
///
/// # Errors
/// Bytes by which the slowest tier of the GPU, or system memory for an NPU, is too small.
pub fn on(plan: &Plan, machine: &MachinePlan, context_tokens: u32) -> Result<Plan, u64> {
    let mut plan = Plan { machine: machine.clone(), ..for_context(plan, context_tokens) };
    let (parts, items): (Vec<Part>, Vec<Item>) = parts(&plan).into_iter().unzip();
    let choices = fill(machine, &items)?;
    for (part, choice) in parts.into_iter().zip(choices) {
        match part {
            Part::Activations => {
                plan.arena_tier = choice.tier;
                plan.buffers.iter_mut().filter(|one| one.name == LOGITS).for_each(|one| one.tier = choice.tier);
            }
            Part::HostBuffers => {
                let of_host = plan.buffers.iter_mut().filter(|one| one.name != LOGITS && !is_of_npu(one));
                of_host.for_each(|one| one.tier = choice.tier);
            }
            Part::KvGroup(index) => {
                let group = &mut plan.kv_groups[index];
                *group = KvGroupPlan { tier: choice.tier, reason: choice.explain(&group.reason), ..group.clone() };
            }
            Part::Slice(index) => {
                plan.slices[index].tier = choice.tier;
                let of_slice = plan.weights.iter_mut().filter(|weight| weight.slice as usize == index);
                of_slice.for_each(|weight| weight.reason = choice.explain(&weight.reason));
            }
        }
    }
    match npu_shortage(&plan) {
        0 => Ok(plan),
        short_bytes => Err(short_bytes),
    }
}

/// A draft that is resident together with its model.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Its plan.
    pub plan: &'a Plan,
    /// Longest context that it was made for, in tokens.
    pub max_positions: u32,
}

/// Plans of a model and of its draft for `machine` and a sequence of `context_tokens`, of which the draft has as many as it was made for. The
/// draft is placed first: a token of the text reads all of it several times, and the model's weights once at most.
///
/// # Errors
/// As [`on`], for the first of both that does not fit.
pub fn on_both(
    plan: &Plan,
    draft: Option<Draft>,
    machine: &MachinePlan,
    context_tokens: u32,
) -> Result<(Plan, Option<Plan>), u64> {
    let Some(Draft { plan: of_draft, max_positions }) = draft else {
        return on(plan, machine, context_tokens).map(|plan| (plan, None));
    };
    let of_draft = on(of_draft, machine, context_tokens.min(max_positions))?;
    Ok((on(plan, &beside(machine, &of_draft), context_tokens)?, Some(of_draft)))
}

/// `machine` with the memory that `draft`, a plan for it, leaves.
pub fn beside(machine: &MachinePlan, draft: &Plan) -> MachinePlan {
    let taken = Account::of(draft).tiers;
    let mut machine = machine.clone();
    for tier in &mut machine.tiers {
        let taken_bytes = taken.iter().filter(|one| one.tier == tier.tier).map(|one| one.bytes()).sum();
        if let Some(budget_bytes) = tier.budget_bytes.as_mut().filter(|_| taken_bytes > 0) {
            *budget_bytes = budget_bytes.saturating_sub(taken_bytes);
            tier.source += &format!(", less {} of the draft", size(taken_bytes));
        }
    }
    machine
}

/// `plan` for a sequence of `context_tokens`, with the tiers that it has.
pub fn for_context(plan: &Plan, context_tokens: u32) -> Plan {
    let mut plan = Plan { planned_context_tokens: context_tokens, ..plan.clone() };
    let page_tokens = plan.kv_groups.iter().map(|group| group.page_tokens);
    let step_bytes = step_buffer_bytes(page_tokens, context_tokens);
    plan.buffers.iter_mut().filter(|buffer| buffer.name == STEP).for_each(|buffer| buffer.bytes = step_bytes);
    plan
}

/// Bytes of the step buffer for one sequence of `context_tokens`, of KV groups with pages of `page_tokens` tokens.
pub fn step_buffer_bytes(page_tokens: impl IntoIterator<Item = u32>, context_tokens: u32) -> u64 {
    let pages = page_tokens.into_iter().map(|tokens| u64::from(context_tokens.div_ceil(tokens.max(1))));
    4 * (step::TABLES_AT as u64 + pages.sum::<u64>())
}

/// Everything that needs memory of the GPU, in the order in which it is placed: that of a compile, as far as slices, which may hold
/// weights of all kinds, allow it.
pub fn parts(plan: &Plan) -> Vec<(Part, Item)> {
    let mut read = vec![0u64; plan.slices.len()];
    for weight in &plan.weights {
        if let Some(read) = read.get_mut(weight.slice as usize) {
            *read += weight.bytes_read_per_token;
        }
    }
    let mut slices: Vec<usize> = (0..plan.slices.len()).collect();
    // Traffic per byte, compared without dividing; sorting keeps the order of equals.
    let per_byte = |slice: usize| (u128::from(read[slice]), u128::from(plan.slices[slice].bytes));
    slices.sort_by(|&one, &other| {
        let ((one_read, one_bytes), (other_read, other_bytes)) = (per_byte(one), per_byte(other));
        (other_read * one_bytes).cmp(&(one_read * other_bytes))
    });
    let buffers = |with_activations| -> u64 {
        let of_gpu = plan.buffers.iter().filter(|buffer| !is_of_npu(buffer));
        let of = of_gpu.filter(|buffer| (buffer.name == LOGITS) == with_activations);
        of.map(|buffer| buffer.bytes).sum()
    };
    let fastest = |bytes| Item { bytes, preference: Preference::Fastest };
    let first = [
        (Part::Activations, fastest(plan.arena_bytes + buffers(true))),
        (Part::HostBuffers, Item { bytes: buffers(false), preference: Preference::HostVisible }),
    ];
    let groups = plan.kv_groups.iter().enumerate();
    let groups = groups.map(|(index, group)| (Part::KvGroup(index), fastest(kv_bytes(plan, group))));
    let slices = slices.into_iter().map(|index| {
        let bytes = plan.slices[index].bytes;
        (Part::Slice(index), Item { bytes, preference: Preference::of_weight(read[index], bytes) })
    });
    first.into_iter().chain(groups).chain(slices).collect()
}

/// The longest context below `too_long` that fits; 0 if none does.
pub fn longest_context(mut too_long: u32, fits: impl Fn(u32) -> bool) -> u32 {
    // The need grows with the context, so the answer is found by bisection.
    let mut longest = 0;
    while too_long - longest > 1 {
        let middle = longest + (too_long - longest) / 2;
        if fits(middle) {
            longest = middle;
        } else {
            too_long = middle;
        }
    }
    longest
}

/// Bytes of K and V of a group, for one sequence of the planned context.
pub fn kv_bytes(plan: &Plan, group: &KvGroupPlan) -> u64 {
    group.bytes(group.pages_per_sequence(plan.planned_context_tokens, plan.planned_chunk_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(budgets: [Option<u64>; 2]) -> MachinePlan {
        let tier = |tier, budget_bytes, readers: &[Reader]| TierPlan {
            tier,
            budget_bytes,
            bytes_per_s: None,
            readers: readers.to_vec(),
            sparse_rows: tier == Tier::Gtt,
            source: String::new(),
        };
        let tiers = vec![
            tier(Tier::Vram, budgets[0], &[Reader::Gpu]),
            tier(Tier::Gtt, budgets[1], &[Reader::Gpu, Reader::Cpu]),
            tier(Tier::Host, None, &[Reader::Cpu]),
        ];
        MachinePlan { name: "m".into(), tiers }
    }

    fn tiers(budgets: [Option<u64>; 2], items: &[(u64, Preference)]) -> Result<Vec<Tier>, u64> {
        let items: Vec<Item> = items.iter().map(|&(bytes, preference)| Item { bytes, preference }).collect();
        fill(&machine(budgets), &items).map(|choices| choices.iter().map(|choice| choice.tier).collect())
    }

    #[test]
    fn the_first_in_line_has_the_fast_memory_and_gaps_are_filled() {
        let fast = |bytes| (bytes, Preference::Fastest);
        let filled = tiers([Some(100), Some(100)], &[fast(60), fast(50), fast(40), fast(50)]);
        assert_eq!(filled, Ok(vec![Tier::Vram, Tier::Gtt, Tier::Vram, Tier::Gtt]));
    }

    #[test]
    fn tables_leave_fast_memory_to_others_while_there_is_other() {
        let table = (80, Preference::SparseRows);
        assert_eq!(tiers([Some(100), Some(100)], &[table, table]), Ok(vec![Tier::Gtt, Tier::Vram]));
        assert_eq!(tiers([None, None], &[table, (80, Preference::HostVisible)]), Ok(vec![Tier::Gtt, Tier::Gtt]));
        // Buffers of the host have no other place.
        assert_eq!(tiers([Some(100), Some(100)], &[(101, Preference::HostVisible)]), Err(1));
    }

    #[test]
    fn more_than_a_number_holds_does_not_fit() {
        let all = (u64::MAX, Preference::Fastest);
        assert_eq!(tiers([Some(100), Some(100)], &[all, all]), Err(u64::MAX));
    }

    #[test]
    fn what_is_short_is_what_would_be_enough() {
        let items = [(90, Preference::Fastest), (90, Preference::Fastest), (50, Preference::Fastest)];
        assert_eq!(tiers([Some(100), Some(100)], &items), Err(40));
        assert!(tiers([Some(100), Some(140)], &items).is_ok());
        assert!(tiers([Some(100), Some(139)], &items).is_err());
    }
}
