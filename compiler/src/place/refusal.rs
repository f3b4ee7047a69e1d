//! The message for a model that does not fit: what it needs, what there is, and remedies with what each one saves.

use std::fmt::Write;

use unicorn_artifact::account::size;
use unicorn_artifact::amount::at_least;
use unicorn_artifact::fit::longest_context;
use unicorn_artifact::{MachinePlan, Tier};
use unicorn_kernels::KvFormat;

use super::PlaceRequest;
use super::tiers::Demand;
use crate::error::{CompileError, Remedy};
use crate::format_policy::{FormatPolicy, WeightsOption};
use crate::select::kv_groups;
use crate::weights::PackedWeights;

/// The error for a `demand` that `short_bytes` more of the slowest tier would satisfy.
pub fn refusal(request: &PlaceRequest, demand: &Demand, short_bytes: u64) -> CompileError {
    let machine = &request.machine;
    let mut text = format!(
        "model does not fit {}: weights {}, KV cache of {} tokens {}, activations and buffers {}, {} in all, expected at \
         most {}; {} are missing",
        machine.name,
        size(demand.weight_bytes()),
        demand.context_tokens,
        size(demand.kv_bytes()),
        size(demand.bytes() - demand.weight_bytes() - demand.kv_bytes()),
        size(demand.bytes()),
        budgets(machine),
        size(short_bytes),
    );
    let mut remedies = Vec::new();
    let possible = [shorter_context(machine, demand), smaller_cache(request, demand), smaller_weights(request, demand)];
    for (line, remedy) in possible.into_iter().chain(more_memory(machine, short_bytes)) {
        write!(text, "\n  {line}").expect("writing to a String");
        remedies.extend(remedy);
    }
    CompileError::DoesNotFit { what: text, remedies }
}

/// A line about a remedy, and the remedy if it is enough.
type RemedyLine = (String, Option<Remedy>);

/// Text such as `8.00 GiB of vram and 20.00 GiB of gtt`.
pub fn budgets(machine: &MachinePlan) -> String {
    let budget = |bytes: Option<u64>| bytes.map_or("unlimited".to_owned(), size);
    let tiers: Vec<String> =
        machine.gpu_tiers().map(|tier| format!("{} of {}", budget(tier.budget_bytes), tier.tier.name())).collect();
    tiers.join(" and ")
}

/// The tier that is filled last, and its budget.
fn slowest(machine: &MachinePlan) -> Option<(Tier, u64)> {
    let tier = machine.gpu_tiers().next_back()?;
    tier.budget_bytes.map(|bytes| (tier.tier, bytes))
}

fn more_memory(machine: &MachinePlan, short_bytes: u64) -> Option<RemedyLine> {
    let (tier, budget_bytes) = slowest(machine)?;
    let bytes = budget_bytes + short_bytes;
    let line = format!("more memory: {} of {} are enough, if the machine can give them", at_least(bytes), tier.name());
    Some((line, Some(Remedy::Memory { tier, bytes })))
}

fn shorter_context(machine: &MachinePlan, demand: &Demand) -> RemedyLine {
    let with = |context_tokens| Demand { context_tokens, ..demand.clone() };
    let saved = |context_tokens| size(demand.bytes() - with(context_tokens).bytes());
    match longest_context(demand.context_tokens, |context_tokens| with(context_tokens).fill(machine).is_ok()) {
        0 => (format!("a shorter context is not enough: even 1 token saves only {}", saved(1)), None),
        fits => {
            let line = format!("a shorter context: {fits} tokens fit and save {}", saved(fits));
            (line, Some(Remedy::Context(fits)))
        }
    }
}

fn smaller_cache(request: &PlaceRequest, demand: &Demand) -> RemedyLine {
    if request.kv == KvFormat::Int8 {
        return ("a smaller KV cache: none, int8 is as small as it gets".into(), None);
    }
    let mut smaller = demand.clone();
    for (plan, group) in smaller.kv_groups.iter_mut().zip(kv_groups(request.config)) {
        plan.page_bytes = group.page_bytes(request.config, KvFormat::Int8);
    }
    let saved = size(demand.bytes() - smaller.bytes());
    let fits = smaller.fill(request.machine).is_ok();
    let verdict = if fits { "fits" } else { "is not enough" };
    (format!("a smaller KV cache: int8 {verdict} and saves {saved}"), fits.then_some(Remedy::Kv(KvFormat::Int8)))
}

fn smaller_weights(request: &PlaceRequest, demand: &Demand) -> RemedyLine {
    let (option, policy) = match request.policy {
        FormatPolicy { weights: WeightsOption::Int4, group: 128 } => {
            let line = "smaller weights: none, int4 in groups of 128 is as small as they get; a smaller model".into();
            return (line, None);
        }
        FormatPolicy { weights: WeightsOption::Int4, .. } => {
            ("int4 in groups of 128", FormatPolicy { weights: WeightsOption::Int4, group: 128 })
        }
        FormatPolicy { group, .. } => ("int4", FormatPolicy { weights: WeightsOption::Int4, group }),
    };
    let weights = PackedWeights::of(request.graph, request.config, policy);
    let smaller = Demand { weights: &weights, ..demand.clone() };
    let saved = size(demand.bytes().saturating_sub(smaller.bytes()));
    let fits = smaller.fill(request.machine).is_ok();
    let verdict = if fits { "fits" } else { "is not enough" };
    (format!("smaller weights: {option} {verdict} and saves {saved}"), fits.then_some(Remedy::Weights(policy)))
}
