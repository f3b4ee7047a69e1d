//! What a person reads when a model does not fit: what it needs, what there is, and ways out with what each one saves.

use std::fmt::Write;

use unicorn_artifact::MachinePlan;
use unicorn_artifact::account::size;
use unicorn_kernels::KvFormat;

use super::PlaceRequest;
use super::tiers::Demand;
use crate::select::cache_layout;
use crate::weights::{FormatPolicy, PackedWeights, WeightsOption};

/// The message for a `demand` that `short_bytes` more of the slowest tier would satisfy.
pub fn refusal(request: &PlaceRequest, demand: &Demand, short_bytes: u64) -> String {
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
    let mut way = |line: String| write!(text, "\n  {line}").expect("writing to a String");
    way(shorter_context(machine, demand));
    way(smaller_cache(request, demand));
    way(smaller_weights(request, demand));
    if let Some((tier, budget_bytes)) = slowest(machine) {
        let enough = (budget_bytes + short_bytes).div_ceil(1 << 20);
        way(format!("more memory: --budget {tier}={enough}MiB is enough, if the machine can give it"));
    }
    text
}

/// `8.00 GiB of vram and 20.00 GiB of gtt`
pub fn budgets(machine: &MachinePlan) -> String {
    let budget = |bytes: Option<u64>| bytes.map_or("unlimited".to_owned(), size);
    let tiers: Vec<String> =
        machine.gpu_tiers().map(|tier| format!("{} of {}", budget(tier.budget_bytes), tier.tier.name())).collect();
    tiers.join(" and ")
}

/// Name and budget of the tier that is filled last.
fn slowest(machine: &MachinePlan) -> Option<(&'static str, u64)> {
    let tier = machine.gpu_tiers().next_back()?;
    tier.budget_bytes.map(|bytes| (tier.tier.name(), bytes))
}

fn shorter_context(machine: &MachinePlan, demand: &Demand) -> String {
    let with = |context_tokens| Demand { context_tokens, ..demand.clone() };
    let saved = |context_tokens| size(demand.bytes() - with(context_tokens).bytes());
    match longest_context(demand.context_tokens, |context_tokens| with(context_tokens).fill(machine).is_ok()) {
        0 => format!("a shorter context is not enough: even --context 1 saves only {}", saved(1)),
        fits => format!("a shorter context: --context {fits} fits and saves {}", saved(fits)),
    }
}

/// The longest context below `too_long` that fits; 0 if none does.
pub fn longest_context(mut too_long: u32, fits: impl Fn(u32) -> bool) -> u32 {
    // Need grows with the context, so the answer is where "fits" turns into "does not".
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

fn smaller_cache(request: &PlaceRequest, demand: &Demand) -> String {
    if request.kv == KvFormat::Int8 {
        return "a smaller KV cache: none, --kv int8 is as small as it gets".into();
    }
    let page_bytes = cache_layout(request.config, KvFormat::Int8).page_bytes() as u64;
    let mut smaller = demand.clone();
    smaller.kv_groups.iter_mut().for_each(|group| group.page_bytes = page_bytes);
    let saved = size(demand.bytes() - smaller.bytes());
    let verdict = if smaller.fill(request.machine).is_ok() { "fits" } else { "is not enough" };
    format!("a smaller KV cache: --kv int8 {verdict} and saves {saved}")
}

fn smaller_weights(request: &PlaceRequest, demand: &Demand) -> String {
    let (option, policy) = match request.policy {
        FormatPolicy { weights: WeightsOption::Int4, group: 128 } => {
            return "smaller weights: none, --weights int4 --group 128 is as small as they get; a smaller model".into();
        }
        FormatPolicy { weights: WeightsOption::Int4, .. } => {
            ("--group 128", FormatPolicy { weights: WeightsOption::Int4, group: 128 })
        }
        FormatPolicy { group, .. } => ("--weights int4", FormatPolicy { weights: WeightsOption::Int4, group }),
    };
    let weights = PackedWeights::of(request.graph, request.config, policy);
    let smaller = Demand { weights: &weights, ..demand.clone() };
    let saved = size(demand.bytes().saturating_sub(smaller.bytes()));
    let verdict = if smaller.fill(request.machine).is_ok() { "fits" } else { "is not enough" };
    format!("smaller weights: {option} {verdict} and saves {saved}")
}
