//! How long a context a model is loaded for, and how much KV cache for all sequences: the caller's, or what memory allows. Pure.

use unicorn_artifact::Plan;
use unicorn_artifact::account::size;

use crate::device::facts::DeviceKind;
use crate::error::LoadError;
use crate::memory::budget::{AvailableMemory, largest_that_fits};
use crate::memory::requirements::{ContextRequest, KvCapacity, group_pages};

/// Part of the memory left by the weights that a default context may take; other processes need memory, too.
const DEFAULT_KV_SHARE: f64 = 0.8;
/// A default context is a multiple of this.
const DEFAULT_CONTEXT_STEP_TOKENS: u32 = 256;
/// Default on software devices, which are for tests: a longer context would only take memory.
const SOFTWARE_CONTEXT_TOKENS: u32 = 4096;

/// The context to load for, in tokens: the requested one, or by default the model's own length, shortened to what memory holds.
///
/// # Errors
/// [`LoadError::Context`] when the requested context is longer than the model's or than a buffer binding allows;
/// [`LoadError::InsufficientMemory`] when memory does not hold it, or not even a short default.
pub fn choose_context(plan: &Plan, memory: &AvailableMemory<'_>, request: &ContextRequest) -> Result<u32, LoadError> {
    let max_positions = request.max_positions;
    let fitting = |limit, kv_share| largest_that_fits(limit, |context| fits(plan, memory, request, context, kv_share));
    if let Some(requested) = request.requested_tokens {
        if requested == 0 || requested > max_positions {
            return Err(LoadError::Context {
                detail: format!("context must be 1 to {max_positions} tokens, the model's limit, found {requested}"),
            });
        }
        let fitting = fitting(requested, 1.0);
        if fitting < requested {
            return Err(does_not_fit(plan, memory, request, requested, fitting));
        }
        return Ok(requested);
    }
    let is_software = memory.facts.kind == DeviceKind::Cpu;
    let preferred = if is_software { max_positions.min(SOFTWARE_CONTEXT_TOKENS) } else { max_positions };
    let longest = fitting(preferred, DEFAULT_KV_SHARE);
    if longest == preferred {
        return Ok(preferred);
    }
    let min_tokens = request.min_tokens.min(preferred);
    let context = (longest / DEFAULT_CONTEXT_STEP_TOKENS * DEFAULT_CONTEXT_STEP_TOKENS).max(longest.min(min_tokens));
    if context < min_tokens {
        return Err(does_not_fit(plan, memory, request, min_tokens, fitting(min_tokens, 1.0)));
    }
    Ok(context)
}

/// How many tokens of all sequences the cache holds where each can have `context`: the caller's choice, or what memory holds. A part of the
/// memory is left as for a default context, unless the caller's context fits for each sequence.
pub fn choose_capacity(
    plan: &Plan,
    memory: &AvailableMemory<'_>,
    request: &ContextRequest,
    context: u32,
) -> KvCapacity {
    if request.kv_capacity != KvCapacity::Fitting {
        return request.kv_capacity;
    }
    let fits = |kv_capacity, share| fits(plan, memory, &ContextRequest { kv_capacity, ..*request }, context, share);
    let share_of_each = if request.requested_tokens.is_some() { 1.0 } else { DEFAULT_KV_SHARE };
    if fits(KvCapacity::Each, share_of_each) {
        return KvCapacity::Each;
    }
    let tokens_of_each = request.slots.saturating_mul(context);
    let fitting = largest_that_fits(tokens_of_each, |tokens| fits(KvCapacity::Tokens(tokens), DEFAULT_KV_SHARE));
    KvCapacity::Tokens(fitting.max(context))
}

/// The longest context of the model that memory holds, in tokens.
pub fn longest_context(plan: &Plan, memory: &AvailableMemory<'_>, request: &ContextRequest) -> u32 {
    largest_that_fits(request.max_positions, |context| fits(plan, memory, request, context, 1.0))
}

/// Whether the KV cache fits the bindings, and takes at most `kv_share` of what the rest of the model leaves in its memory.
fn fits(plan: &Plan, memory: &AvailableMemory<'_>, request: &ContextRequest, context: u32, kv_share: f64) -> bool {
    fits_bindings(plan, memory, request, context)
        && memory.budgets(plan, context, request).iter().all(|budget| budget.fits(kv_share))
}

/// Whether one binding covers a layer's whole pool.
fn fits_bindings(plan: &Plan, memory: &AvailableMemory<'_>, request: &ContextRequest, context: u32) -> bool {
    plan.kv_groups.iter().all(|group| {
        let pages = group_pages(group, context, request);
        pages <= u64::from(u32::MAX) && pages.saturating_mul(group.page_bytes) <= memory.facts.storage_range_bytes
    })
}

fn does_not_fit(
    plan: &Plan,
    memory: &AvailableMemory<'_>,
    request: &ContextRequest,
    requested: u32,
    fitting: u32,
) -> LoadError {
    if fits_bindings(plan, memory, request, requested) {
        return LoadError::InsufficientMemory(Box::new(memory.insufficient(plan, requested, fitting, request)));
    }
    LoadError::Context {
        detail: format!(
            "context of {requested} tokens in {} slots does not fit: a layer's keys exceed the device's largest buffer \
             binding, {}; {fitting} tokens would fit",
            request.whole_sequences(),
            size(memory.facts.storage_range_bytes)
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use unicorn_artifact::Budget;
    use unicorn_artifact::fit::Draft;

    use super::*;
    use crate::device::facts::tests::facts;
    use crate::device::facts::{DeviceFacts, Heap};
    use crate::device::memory_types::tests::card;
    use crate::memory::requirements::tests::{plan, request};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn choose(plan: &Plan, facts: &DeviceFacts, request: &ContextRequest) -> Result<u32, LoadError> {
        let (artifact, budget) = (Path::new("m.unicorn"), Budget::default());
        choose_context(plan, &AvailableMemory { artifact, facts, amdgpu: None, budget: &budget, beside: None }, request)
    }

    #[test]
    fn the_default_context_is_the_models_unless_memory_or_a_software_device_limits_it() {
        assert_eq!(choose(&plan(None), &card(), &request(None)).unwrap(), 131_072);
        let software = facts(0, "llvmpipe", DeviceKind::Cpu);
        assert_eq!(choose(&plan(None), &software, &request(None)).unwrap(), 4096);
        // 8 KiB a token: 80 % of what 1 GiB of weights leave of 1.25 GiB is about 26,000 tokens.
        let heap = Heap { bytes: 5 * GIB / 4, budget_bytes: None, used_bytes: 0, device_local: true };
        let tight = DeviceFacts { heaps: vec![heap], ..facts(0, "tight", DeviceKind::Integrated) };
        let context = choose(&plan(None), &tight, &request(None)).unwrap();
        assert!(context.is_multiple_of(256) && (25_000..26_300).contains(&context), "{context}");
        let at_least = |min_tokens| ContextRequest { min_tokens, ..request(None) };
        assert_eq!(choose(&plan(None), &tight, &at_least(8192)).unwrap(), context);
        let refused = choose(&plan(None), &tight, &at_least(32_768)).unwrap_err();
        assert!(matches!(refused, LoadError::InsufficientMemory(_)), "{refused}");
        // A model that has fewer tokens needs no more.
        let short = ContextRequest { max_positions: 4096, ..at_least(32_768) };
        assert_eq!(choose(&plan(None), &tight, &short).unwrap(), 4096);
    }

    /// 8 KiB a token in 256 MiB, of which a default takes 80 %.
    #[test]
    fn sequences_share_what_does_not_hold_the_context_of_each() {
        let heap = Heap { bytes: 5 * GIB / 4, budget_bytes: None, used_bytes: 0, device_local: true };
        let tight = DeviceFacts { heaps: vec![heap], ..facts(0, "tight", DeviceKind::Integrated) };
        let chosen = |requested, kv_capacity, facts: &DeviceFacts| {
            let request = ContextRequest { slots: 4, kv_capacity, ..request(requested) };
            let (artifact, budget) = (Path::new("m.unicorn"), Budget::default());
            let memory = AvailableMemory { artifact, facts, amdgpu: None, budget: &budget, beside: None };
            let context = choose_context(&plan(None), &memory, &request)?;
            Ok::<_, LoadError>((context, choose_capacity(&plan(None), &memory, &request, context)))
        };
        // One sequence may take all that four have together.
        let (each, _) = chosen(None, KvCapacity::Each, &tight).unwrap();
        let (one, capacity) = chosen(None, KvCapacity::Fitting, &tight).unwrap();
        assert!((each * 4).abs_diff(one) <= 1024 && one > 25_000, "{each}, {one}");
        let KvCapacity::Tokens(tokens) = capacity else { panic!("{capacity:?}") };
        assert!(tokens <= one + 256, "{tokens} of {one}");
        // What is asked for is not shortened, where one sequence has room.
        assert!(chosen(Some(16_384), KvCapacity::Each, &tight).is_err());
        let (context, capacity) = chosen(Some(16_384), KvCapacity::Fitting, &tight).unwrap();
        let KvCapacity::Tokens(tokens) = capacity else { panic!("{capacity:?}") };
        assert!(context == 16_384 && (25_000..26_300).contains(&tokens), "{context}, {tokens}");
        assert!(chosen(Some(65_536), KvCapacity::Fitting, &tight).is_err());
        // Where there is room for each, nothing is shared.
        assert_eq!(chosen(Some(4096), KvCapacity::Fitting, &tight).unwrap(), (4096, KvCapacity::Each));
        // A binding of 128 MiB holds the keys of 262,144 tokens, of which each sequence leaves a part of a page.
        assert_eq!(chosen(None, KvCapacity::Fitting, &card()).unwrap(), (131_072, KvCapacity::Tokens(262_080)));
    }

    #[test]
    fn memory_is_left_for_a_draft() {
        let heap = Heap { bytes: 9 * GIB / 4, budget_bytes: None, used_bytes: 0, device_local: true };
        let facts = DeviceFacts { heaps: vec![heap], ..facts(0, "tight", DeviceKind::Integrated) };
        let (model, draft) = (plan(None), plan(None));
        let longest = |max_positions: Option<u32>| {
            let (artifact, budget) = (Path::new("m.unicorn"), Budget::default());
            let beside = max_positions.map(|max_positions| Draft { plan: &draft, max_positions });
            let memory = AvailableMemory { artifact, facts: &facts, amdgpu: None, budget: &budget, beside };
            longest_context(&model, &memory, &request(None))
        };
        // 1.25 GiB without a draft; with one as large, each token takes 16 KiB of 256 MiB, less two arenas; of one for 1024 tokens, a
        // token of the model takes 8 KiB.
        assert_eq!(longest(None), 131_072);
        assert!((16_000..16_384).contains(&longest(Some(131_072))), "{}", longest(Some(131_072)));
        assert!((31_000..31_744).contains(&longest(Some(1024))), "{}", longest(Some(1024)));
    }

    #[test]
    fn a_requested_context_that_does_not_fit_is_refused_with_numbers() {
        let error = choose(&plan(None), &card(), &request(Some(131_073))).unwrap_err().to_string();
        assert!(error.starts_with("context must be 1 to 131072 tokens"), "{error}");
        // A layer's keys are 512 bytes a token; a binding of 16 MiB holds 32,768 tokens of them.
        let narrow = DeviceFacts { storage_range_bytes: 16 * MIB, ..card() };
        let error = choose(&plan(None), &narrow, &request(Some(65_536))).unwrap_err().to_string();
        assert!(error.contains("32768 tokens would fit"), "{error}");
        assert_eq!(choose(&plan(None), &narrow, &request(Some(32_768))).unwrap(), 32_768);
        let (artifact, budget) = (Path::new("m.unicorn"), Budget::default());
        let memory = AvailableMemory { artifact, facts: &narrow, amdgpu: None, budget: &budget, beside: None };
        assert_eq!(longest_context(&plan(None), &memory, &request(None)), 32_768);
        // A sliding window needs pages for itself and one chunk.
        assert_eq!(choose(&plan(Some(1024)), &narrow, &request(Some(65_536))).unwrap(), 65_536);
    }
}
