//! What a model needs of each memory tier for a given context: sums over the plan. Pure.

use unicorn_artifact::{KvGroupPlan, Plan, Tier};

use crate::device::memory_types::BufferUse;
use crate::memory::tier_bytes::TierBytes;

/// How large a KV cache is requested.
#[derive(Clone, Copy, Debug)]
pub struct ContextRequest {
    /// Tokens of the longest sequence; `None`: as many as memory allows, up to `max_positions`.
    pub requested_tokens: Option<u32>,
    /// Fewest tokens of that where none are requested, of a model that permits as many.
    pub min_tokens: u32,
    /// Tokens that the model was trained for.
    pub max_positions: u32,
    /// Sequences that exist at a time.
    pub slots: u32,
    /// Tokens of all sequences together that the cache holds.
    pub kv_capacity: KvCapacity,
    /// Most tokens that steps in flight append to one sequence.
    pub chunk_tokens: u32,
    /// Copies of recurrent state that the device holds beside that of sequences: as many as sequences at most.
    pub state_copies: u32,
}

/// How many tokens of all sequences together the KV cache holds. One sequence alone can always be as long as the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvCapacity {
    /// The context of each sequence.
    #[default]
    Each,
    /// So many, at least the context of one sequence and at most that of each.
    Tokens(u32),
    /// As many as memory holds, within the same bounds.
    Fitting,
}

impl ContextRequest {
    /// Tokens of all sequences together that the cache holds; with [`KvCapacity::Fitting`], the fewest of its range.
    pub fn kv_tokens(&self, context_tokens: u32) -> u64 {
        let (one, each) = (u64::from(context_tokens), u64::from(self.slots) * u64::from(context_tokens));
        match self.kv_capacity {
            KvCapacity::Each => each,
            KvCapacity::Tokens(tokens) => u64::from(tokens).clamp(one, each),
            KvCapacity::Fitting => one,
        }
    }

    /// Sequences of the whole context for which the cache has room at a time, at least.
    pub fn whole_sequences(&self) -> u32 {
        if self.kv_capacity == KvCapacity::Each { self.slots } else { 1 }
    }

    /// Tokens that the cache holds of each sequence, where all are as long: at least 1.
    pub fn tokens_each(&self, context_tokens: u32) -> u32 {
        let each = self.kv_tokens(context_tokens) / u64::from(self.slots);
        (each as u32).max(1)
    }
}

/// Pages of one group's pool: enough for the longest sequence in every slot, or for the requested tokens, where each sequence leaves a part
/// of its last page empty.
pub fn pool_pages(group: &KvGroupPlan, context_tokens: u32, request: &ContextRequest) -> u64 {
    let (slots, one) =
        (u64::from(request.slots), u64::from(group.pages_per_sequence(context_tokens, request.chunk_tokens)));
    let tokens = match request.kv_capacity {
        KvCapacity::Each => return slots * one,
        KvCapacity::Tokens(tokens) => tokens,
        KvCapacity::Fitting => context_tokens,
    };
    (u64::from(tokens.div_ceil(group.page_tokens)) + slots).clamp(one, slots * one)
}

/// Pages of a group for copies of recurrent state, which no sequence has.
pub fn state_copies(group: &KvGroupPlan, request: &ContextRequest) -> u64 {
    if group.is_state() { u64::from(request.state_copies.min(request.slots)) } else { 0 }
}

/// Pages of one group in all: those of its pool and, behind them, those for copies of recurrent state.
pub fn group_pages(group: &KvGroupPlan, context_tokens: u32, request: &ContextRequest) -> u64 {
    pool_pages(group, context_tokens, request).saturating_add(state_copies(group, request))
}

/// Block table entries of one sequence, enough for the group with the smallest pages.
pub fn table_stride(plan: &Plan, context_tokens: u32) -> u32 {
    plan.kv_groups.iter().map(|group| context_tokens.div_ceil(group.page_tokens)).max().unwrap_or(0)
}

/// The model's bytes in each tier of the plan; tiers without any are left out.
pub fn planned_bytes(plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Vec<TierBytes> {
    let mut sums: Vec<TierBytes> = [Tier::Npu, Tier::Vram, Tier::Gtt, Tier::Host].map(TierBytes::none).to_vec();
    let mut of = |tier: Tier, add: &dyn Fn(&mut TierBytes)| {
        sums.iter_mut().filter(|sum| sum.tier == tier).for_each(add);
    };
    for slice in &plan.slices {
        of(slice.tier, &|sum| sum.weights += slice.bytes);
    }
    for group in &plan.kv_groups {
        let bytes = kv_bytes(group, context_tokens, request);
        of(group.tier, &|sum| sum.kv = sum.kv.saturating_add(bytes));
    }
    of(plan.arena_tier, &|sum| sum.activations += plan.arena_bytes);
    of(plan.arena_tier, &|sum| sum.other += logits_bytes(plan));
    sums.retain(|sum| sum.total() > 0);
    sums
}

/// Use of a resident buffer in `tier`, given the bytes of the whole model.
pub fn resident_use(planned: &[TierBytes], tier: Tier) -> BufferUse {
    let total_bytes = planned.iter().filter(|sum| sum.tier == tier).map(TierBytes::total).sum();
    BufferUse::Resident { tier, total_bytes }
}

/// Length of the logits buffer.
pub fn logits_bytes(plan: &Plan) -> u64 {
    4 * u64::from(plan.logits_rows) * u64::from(plan.logits_stride)
}

/// Bytes of K and V in all of a group's layers and slots, with copies of recurrent state.
pub fn kv_bytes(group: &KvGroupPlan, context_tokens: u32, request: &ContextRequest) -> u64 {
    let layers = 2 * u64::from(group.n_layers);
    group_pages(group, context_tokens, request).saturating_mul(group.page_bytes).saturating_mul(layers)
}

#[cfg(test)]
pub(crate) mod tests {
    use unicorn_artifact::plan::STATE_PAGE_TOKENS;
    use unicorn_artifact::{MachinePlan, SlicePlan};

    use super::KvCapacity::{Each, Fitting, Tokens};
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// 1 GiB of weights; 1 KiB a token and layer for K and V together, 8 layers.
    pub(crate) fn plan(window_tokens: Option<u32>) -> Plan {
        Plan {
            machine: MachinePlan::default(),
            slices: vec![SlicePlan { bytes: GIB, tier: Tier::Vram }],
            weights: vec![],
            kv_groups: vec![KvGroupPlan {
                window_tokens,
                n_layers: 8,
                page_tokens: 16,
                page_bytes: 8 << 10,
                tier: Tier::Vram,
                reason: String::new(),
            }],
            activations: vec![],
            arena_bytes: MIB,
            arena_tier: Tier::Vram,
            logits_rows: 1,
            logits_stride: 1024,
            buffers: vec![],
            planned_context_tokens: 4096,
            planned_chunk_tokens: 512,
        }
    }

    pub(crate) fn request(requested_tokens: Option<u32>) -> ContextRequest {
        ContextRequest {
            requested_tokens,
            min_tokens: 512,
            max_positions: 131_072,
            slots: 1,
            kv_capacity: KvCapacity::Each,
            chunk_tokens: 512,
            state_copies: 1,
        }
    }

    #[test]
    fn a_pool_holds_the_requested_tokens_or_one_sequence() {
        let pages = |window_tokens, kv_capacity| {
            let request = ContextRequest { slots: 4, kv_capacity, ..request(None) };
            pool_pages(&plan(window_tokens).kv_groups[0], 4096, &request)
        };
        // Pages of 16 tokens.
        assert_eq!((pages(None, Each), pages(None, Tokens(8192))), (4 * 256, 512 + 4));
        assert_eq!((pages(None, Tokens(1)), pages(None, Tokens(u32::MAX))), (256, 4 * 256));
        // A window of 512 tokens and a step of as many.
        assert_eq!((pages(Some(512), Tokens(1024)), pages(Some(512), Tokens(8192))), (68, 4 * 65));
        // One whole context, in which each sequence has its window.
        assert_eq!((pages(None, Fitting), pages(Some(512), Fitting)), (256 + 4, 4 * 65));
    }

    #[test]
    fn tokens_of_all_are_those_of_one_to_those_of_each() {
        let tokens = |kv_capacity| {
            let request = ContextRequest { slots: 4, kv_capacity, ..request(None) };
            (request.kv_tokens(1000), request.tokens_each(1000))
        };
        assert_eq!((tokens(Each), tokens(Fitting)), ((4000, 1000), (1000, 250)));
        assert_eq!([1, 3000, u32::MAX].map(|n| tokens(Tokens(n))), [(1000, 250), (3000, 750), (4000, 1000)]);
        assert_eq!(ContextRequest { slots: 4, kv_capacity: Fitting, ..request(None) }.tokens_each(3), 1);
    }

    #[test]
    fn copies_of_recurrent_state_take_memory_beside_that_of_sequences() {
        let state = KvGroupPlan { page_tokens: STATE_PAGE_TOKENS, ..plan(None).kv_groups[0].clone() };
        let pages = |group: &KvGroupPlan, state_copies| {
            let request = ContextRequest { slots: 4, state_copies, ..request(None) };
            (pool_pages(group, 4096, &request), group_pages(group, 4096, &request))
        };
        assert_eq!([0, 1, 9].map(|copies| pages(&state, copies)), [(4, 4), (4, 5), (4, 8)]);
        let any = ContextRequest { slots: 4, kv_capacity: Fitting, ..request(None) };
        assert_eq!(pool_pages(&state, 4096, &any), 4);
        let cache = &plan(None).kv_groups[0];
        assert_eq!(pages(cache, 1), (4 * 256, 4 * 256));
        let with_copy = ContextRequest { state_copies: 1, ..request(None) };
        assert_eq!(kv_bytes(&state, 4096, &with_copy), state.bytes(2));
    }
}
