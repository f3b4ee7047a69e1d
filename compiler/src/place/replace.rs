//! Other tiers for an existing plan: slices stay as they were cut, and each is moved as a whole to a tier that has room.

use unicorn_artifact::account::size;
use unicorn_artifact::{MachinePlan, Plan, fit};

use super::refusal::budgets;
use crate::error::{CompileError, Remedy, Result};

/// `plan` with tiers chosen again, for `machine` and a sequence of `context_tokens`. Addresses within slices stay.
///
/// # Errors
/// [`CompileError::DoesNotFit`] when there is no room, with the sums, what is missing and what may help.
pub fn replace(plan: &Plan, machine: &MachinePlan, context_tokens: u32) -> Result<Plan> {
    fit::on(plan, machine, context_tokens)
        .map_err(|short_bytes| refusal(&fit::for_context(plan, context_tokens), machine, short_bytes))
}

fn refusal(plan: &Plan, machine: &MachinePlan, short_bytes: u64) -> CompileError {
    let all = |plan: &Plan| fit::parts(plan).iter().map(|(_, item)| item.bytes).sum::<u64>();
    let kv: u64 = plan.kv_groups.iter().map(|group| fit::kv_bytes(plan, group)).sum();
    let context = plan.planned_context_tokens;
    let longest = fit::longest_context(context, |tokens| fit::on(plan, machine, tokens).is_ok());
    let shorter = match longest {
        0 => "no shorter context is enough".to_owned(),
        fits => {
            let saved = all(plan) - all(&fit::for_context(plan, fits));
            format!("a context of {fits} tokens fits and saves {}", size(saved))
        }
    };
    let mut remedies: Vec<Remedy> = (longest > 0).then_some(Remedy::Context(longest)).into_iter().collect();
    let mut without_npu = plan.clone();
    without_npu.buffers.retain(|buffer| !fit::is_of_npu(buffer));
    if without_npu.buffers.len() < plan.buffers.len() && fit::on(&without_npu, machine, context).is_ok() {
        remedies.push(Remedy::NoNpu);
    }
    let npu: u64 = plan.buffers.iter().filter(|one| fit::is_of_npu(one)).map(|one| one.bytes).sum();
    let npu = match npu {
        0 => String::new(),
        bytes => format!(", besides {} of an NPU in system memory", size(bytes)),
    };
    let what = format!(
        "artifact does not fit {}: weights {}, KV cache of {context} tokens {}, {} in all{npu}, expected at most {}; {} are \
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
