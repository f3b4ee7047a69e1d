//! Other tiers for a plan that exists: slices stay as they were cut, and each goes as a whole where there is room.

use unicorn_artifact::account::size;
use unicorn_artifact::{KvGroupPlan, MachinePlan, Plan, SlicePlan, Tier, WeightPlan};

use super::refusal::{budgets, longest_context};
use super::tiers::{Item, Seat, Wants, fill, wants};
use super::{LOGITS, STEP, place_kv, step_buffer_bytes};
use crate::error::{CompileError, Remedy, Result};

/// `plan` with tiers chosen anew, for `machine` and a sequence of `context_tokens`. Addresses within slices stay.
///
/// # Errors
/// [`CompileError::DoesNotFit`] when there is no room, with the sums, what is missing and what may help.
pub fn replace(plan: &Plan, machine: &MachinePlan, context_tokens: u32) -> Result<Plan> {
    let mut plan = Plan { machine: machine.clone(), ..for_context(plan, context_tokens) };
    let order = order(&plan);
    let seats = seats(&plan, machine, &order).map_err(|short_bytes| refusal(&plan, machine, &order, short_bytes))?;
    let mut kv_seats = vec![Seat { tier: Tier::Host, rather: None }; plan.kv_groups.len()];
    let mut slice_seats = vec![Seat { tier: Tier::Host, rather: None }; plan.slices.len()];
    for (what, seat) in order.iter().zip(seats) {
        match *what {
            What::Activations => {
                plan.arena_tier = seat.tier;
                plan.buffers.iter_mut().filter(|one| one.name == LOGITS).for_each(|one| one.tier = seat.tier);
            }
            What::HostBuffers => {
                plan.buffers.iter_mut().filter(|one| one.name != LOGITS).for_each(|one| one.tier = seat.tier);
            }
            What::KvGroup(index) => kv_seats[index] = seat,
            What::Slice(index) => slice_seats[index] = seat,
        }
    }
    let slice = |(slice, seat): (&SlicePlan, &Seat)| SlicePlan { tier: seat.tier, ..slice.clone() };
    plan.slices = plan.slices.iter().zip(&slice_seats).map(slice).collect();
    let weight = |weight: WeightPlan| {
        let reason = slice_seats[weight.slice as usize].explain(&weight.reason);
        WeightPlan { reason, ..weight }
    };
    plan.weights = plan.weights.into_iter().map(weight).collect();
    plan.kv_groups = place_kv(plan.kv_groups, &kv_seats);
    Ok(plan)
}

#[derive(Clone, Copy)]
enum What {
    Activations,
    HostBuffers,
    KvGroup(usize),
    Slice(usize),
}

/// The same line as when a model is compiled, as far as slices allow, which may hold weights of all kinds.
fn order(plan: &Plan) -> Vec<What> {
    let mut slices: Vec<usize> = (0..plan.slices.len()).collect();
    // Traffic per byte, compared without dividing; sorting keeps the order of equals.
    let per_byte = |slice: usize| (u128::from(read_per_token(plan, slice)), u128::from(plan.slices[slice].bytes));
    slices.sort_by(|&one, &other| {
        let ((one_read, one_bytes), (other_read, other_bytes)) = (per_byte(one), per_byte(other));
        (other_read * one_bytes).cmp(&(one_read * other_bytes))
    });
    let groups = (0..plan.kv_groups.len()).map(What::KvGroup);
    let first = [What::Activations, What::HostBuffers];
    first.into_iter().chain(groups).chain(slices.into_iter().map(What::Slice)).collect()
}

fn seats(plan: &Plan, machine: &MachinePlan, order: &[What]) -> std::result::Result<Vec<Seat>, u64> {
    let items: Vec<Item> = order.iter().map(|what| item(plan, *what)).collect();
    fill(machine, &items)
}

fn item(plan: &Plan, what: What) -> Item {
    let buffers = |with_activations| -> u64 {
        let of = plan.buffers.iter().filter(|buffer| (buffer.name == LOGITS) == with_activations);
        of.map(|buffer| buffer.bytes).sum()
    };
    match what {
        What::Activations => Item { bytes: plan.arena_bytes + buffers(true), wants: Wants::Fast },
        What::HostBuffers => Item { bytes: buffers(false), wants: Wants::Host },
        What::KvGroup(index) => Item { bytes: kv_bytes(plan, &plan.kv_groups[index]), wants: Wants::Fast },
        What::Slice(index) => {
            let bytes = plan.slices[index].bytes;
            Item { bytes, wants: wants(read_per_token(plan, index), bytes) }
        }
    }
}

fn read_per_token(plan: &Plan, slice: usize) -> u64 {
    let of_slice = plan.weights.iter().filter(|weight| weight.slice as usize == slice);
    of_slice.map(|weight| weight.bytes_read_per_token).sum()
}

fn kv_bytes(plan: &Plan, group: &KvGroupPlan) -> u64 {
    group.bytes(group.pages_per_sequence(plan.planned_context_tokens, plan.planned_chunk_tokens))
}

fn for_context(plan: &Plan, context_tokens: u32) -> Plan {
    let mut plan = Plan { planned_context_tokens: context_tokens, ..plan.clone() };
    let step_bytes = step_buffer_bytes(plan.kv_groups.len(), context_tokens as usize);
    plan.buffers.iter_mut().filter(|buffer| buffer.name == STEP).for_each(|buffer| buffer.bytes = step_bytes);
    plan
}

fn refusal(plan: &Plan, machine: &MachinePlan, order: &[What], short_bytes: u64) -> CompileError {
    let all = |plan: &Plan| order.iter().map(|what| item(plan, *what).bytes).sum::<u64>();
    let kv: u64 = plan.kv_groups.iter().map(|group| kv_bytes(plan, group)).sum();
    let context = plan.planned_context_tokens;
    let longest = longest_context(context, |tokens| seats(&for_context(plan, tokens), machine, order).is_ok());
    let shorter = match longest {
        0 => "no shorter context is enough".to_owned(),
        fits => {
            format!("a context of {fits} tokens fits and saves {}", size(all(plan) - all(&for_context(plan, fits))))
        }
    };
    let remedies = (longest > 0).then_some(Remedy::Context(longest)).into_iter().collect();
    let what = format!(
        "artifact does not fit {}: weights {}, KV cache of {context} tokens {}, {} in all, expected at most {}; {} are \
         missing; {shorter}; a compile with this budget may fit, for weights then need not move a slice at a time",
        machine.name,
        size(plan.slices.iter().map(|slice| slice.bytes).sum()),
        size(kv),
        size(all(plan)),
        budgets(machine),
        size(short_bytes),
    );
    CompileError::DoesNotFit { what, remedies }
}
