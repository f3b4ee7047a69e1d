//! What goes into which memory and how far the context reaches: pure functions of the plan and the device's facts.
//! `buffers` and `weights` do what is decided here.

use std::fmt;

use unicorn_artifact::{KvGroupPlan, Plan, Tier};

use crate::device::plan::{DeviceFacts, DeviceKind, MemoryType};
use crate::error::{LoadError, size};
use crate::memory::budget::Memory;

/// Bytes in one tier, by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierBytes {
    pub tier: Tier,
    pub weights: u64,
    pub kv: u64,
    pub activations: u64,
    /// Logits, the step and output buffers, readback.
    pub other: u64,
}

/// What a buffer is for, as far as its memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Lives where the plan says; `total_bytes` of the model share this role's heap.
    Resident { tier: Tier, total_bytes: u64 },
    /// Written by the host before a step.
    Upload,
    /// Written by the host and copied to where it stays.
    Staging,
    /// Read by the host after a step.
    Readback,
}

/// How much a caller wants to keep in the KV cache.
#[derive(Clone, Copy, Debug)]
pub struct ContextRequest {
    /// `None`: as much as there is room for.
    pub asked_tokens: Option<u32>,
    pub max_positions: u32,
    pub slots: u32,
    /// Most rows of one sequence that one step appends, or steps under way together.
    pub chunk_tokens: u32,
}

/// A KV group's pools: K and V of each layer are regions of a few buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPools {
    pub pages: u32,
    pub region_bytes: u64,
    /// Length of each buffer.
    pub buffers: Vec<u64>,
    regions_per_buffer: u64,
}

/// A default context takes no more than this of what the weights leave: others want memory too.
const DEFAULT_KV_SHARE: f64 = 0.8;
/// A default context shorter than this is an error: nobody wants it unasked.
const LEAST_DEFAULT_CONTEXT_TOKENS: u32 = 512;
/// A default context ends on a multiple of this.
const DEFAULT_CONTEXT_STEP_TOKENS: u32 = 256;
/// Software devices are for tests; a long default context would only cost memory there.
const SOFTWARE_CONTEXT_TOKENS: u32 = 4096;
/// KV buffers stay below this: some drivers misread larger ones.
const MAX_BUFFER_BYTES: u64 = 1 << 30;

/// The device's memory types that can play `role`, best first.
pub fn rank_memory_types(facts: &DeviceFacts, role: Role) -> Vec<usize> {
    let pick = |wanted: &dyn Fn(&MemoryType) -> bool, better: &dyn Fn(&MemoryType) -> u32| {
        let mut types: Vec<usize> =
            (0..facts.memory_types.len()).filter(|&index| wanted(&facts.memory_types[index])).collect();
        types.sort_by_key(|&index| std::cmp::Reverse(better(&facts.memory_types[index])));
        types
    };
    match role {
        Role::Resident { tier: Tier::Npu | Tier::Vram, total_bytes } => {
            // Device memory that the host can write saves a copy, but only if the window to it is large enough.
            let open = |kind: &MemoryType| kind.host_visible && room_bytes(facts, kind.heap) >= total_bytes;
            let own = pick(&|kind| kind.device_local && (open(kind) || !kind.host_visible), &|kind| {
                2 * u32::from(open(kind)) + u32::from(kind.host_coherent)
            });
            if own.is_empty() { pick(&|kind| kind.device_local || kind.host_visible, &|_| 0) } else { own }
        }
        Role::Resident { tier: Tier::Gtt | Tier::Host, total_bytes } => {
            let own = pick(&|kind| kind.host_visible && !kind.device_local, &|kind| {
                2 * u32::from(kind.host_coherent) + u32::from(!kind.host_cached)
            });
            if own.is_empty() {
                rank_memory_types(facts, Role::Resident { tier: Tier::Vram, total_bytes })
            } else {
                own
            }
        }
        Role::Upload => {
            // Written beside a step that is under way: a flush would take the neighbouring bytes along. Vulkan promises a
            // coherent type.
            pick(&|kind| kind.host_visible && kind.host_coherent, &|kind| u32::from(kind.device_local))
        }
        Role::Staging => {
            pick(&|kind| kind.host_visible, &|kind| 2 * u32::from(kind.host_coherent) + u32::from(!kind.device_local))
        }
        Role::Readback => pick(&|kind| kind.host_visible, &|kind| {
            4 * u32::from(kind.host_cached) + 2 * u32::from(kind.host_coherent) + u32::from(!kind.device_local)
        }),
    }
}

/// The context to load for.
///
/// # Errors
/// [`LoadError::Context`] when the context asked for is longer than the model's or than bindings reach, [`LoadError::NoRoom`]
/// when memory does not hold it, or not even a short one.
pub fn choose_context(plan: &Plan, memory: &Memory<'_>, request: &ContextRequest) -> Result<u32, LoadError> {
    let model = request.max_positions;
    let fitting = |limit, share| longest(limit, |context| context_fits(plan, memory, request, context, share));
    if let Some(asked) = request.asked_tokens {
        if asked == 0 || asked > model {
            return Err(LoadError::Context {
                detail: format!(
                    "context must be 1 to {model} tokens, as many as the model was made for, found {asked}"
                ),
            });
        }
        let fits = fitting(asked, 1.0);
        return if fits < asked { Err(too_long(plan, memory, request, asked, fits)) } else { Ok(asked) };
    }
    let is_software = memory.facts.kind == DeviceKind::Cpu;
    let wish = if is_software { model.min(SOFTWARE_CONTEXT_TOKENS) } else { model };
    let fits = fitting(wish, DEFAULT_KV_SHARE);
    if fits == wish {
        return Ok(wish);
    }
    let least = LEAST_DEFAULT_CONTEXT_TOKENS.min(model);
    let context = (fits / DEFAULT_CONTEXT_STEP_TOKENS * DEFAULT_CONTEXT_STEP_TOKENS).max(fits.min(least));
    if context < least {
        return Err(too_long(plan, memory, request, least, fitting(least, 1.0)));
    }
    Ok(context)
}

/// The longest of 1 to `limit` tokens that fits; 0 if none does. What fits a number of tokens fits a smaller one.
pub fn longest(limit: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut fitting, mut too_long) = (0, limit.saturating_add(1));
    while too_long - fitting > 1 {
        let middle = fitting + (too_long - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            too_long = middle;
        }
    }
    fitting
}

/// Pages of one group's pool: every slot can hold its longest sequence.
pub fn pool_pages(group: &KvGroupPlan, context_tokens: u32, request: &ContextRequest) -> u64 {
    u64::from(request.slots) * u64::from(group.pages_per_sequence(context_tokens, request.chunk_tokens))
}

/// Entries of one sequence's block table, enough for the group with the smallest pages.
pub fn table_stride(plan: &Plan, context_tokens: u32) -> u32 {
    plan.kv_groups.iter().map(|group| context_tokens.div_ceil(group.page_tokens)).max().unwrap_or(0)
}

/// Sums of the model by planned tier; tiers that hold nothing are left out.
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

/// What a buffer of `tier` is to the device, beside the rest of the model.
pub fn resident_role(planned: &[TierBytes], tier: Tier) -> Role {
    let total_bytes = planned.iter().filter(|sum| sum.tier == tier).map(TierBytes::total).sum();
    Role::Resident { tier, total_bytes }
}

/// Length of the logits buffer.
pub fn logits_bytes(plan: &Plan) -> u64 {
    4 * u64::from(plan.logits_rows) * u64::from(plan.logits_stride)
}

impl KvPools {
    /// Packs K and V of each of the group's layers, `pages` pages each, into buffers that the device can allocate.
    pub fn new(group: &KvGroupPlan, pages: u32, align_bytes: u64, max_allocation_bytes: u64) -> KvPools {
        let region_bytes = (group.page_bytes * u64::from(pages)).next_multiple_of(align_bytes);
        let regions_per_buffer = (max_allocation_bytes.min(MAX_BUFFER_BYTES) / region_bytes).max(1);
        let mut left = 2 * u64::from(group.n_layers);
        let mut buffers = Vec::new();
        while left > 0 {
            let now = left.min(regions_per_buffer);
            buffers.push(now * region_bytes);
            left -= now;
        }
        KvPools { pages, region_bytes, buffers, regions_per_buffer }
    }

    /// Buffer and offset of a layer's keys.
    pub fn keys(&self, layer: u32) -> (usize, u64) {
        self.region(2 * u64::from(layer))
    }

    /// Buffer and offset of a layer's values.
    pub fn values(&self, layer: u32) -> (usize, u64) {
        self.region(2 * u64::from(layer) + 1)
    }

    fn region(&self, index: u64) -> (usize, u64) {
        ((index / self.regions_per_buffer) as usize, index % self.regions_per_buffer * self.region_bytes)
    }
}

impl TierBytes {
    pub fn none(tier: Tier) -> TierBytes {
        TierBytes { tier, weights: 0, kv: 0, activations: 0, other: 0 }
    }

    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.activations).saturating_add(self.other)
    }
}

impl fmt::Display for TierBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} (weights {}, KV {}, activations {}, other {})",
            size(self.total()),
            self.tier.name(),
            size(self.weights),
            size(self.kv),
            size(self.activations),
            size(self.other)
        )
    }
}

/// Whether the KV cache fits the bindings and takes at most `share` of what the rest of the model leaves in its memory.
fn context_fits(plan: &Plan, memory: &Memory<'_>, request: &ContextRequest, context: u32, share: f64) -> bool {
    is_bound(plan, memory, request, context)
        && memory.rooms(plan, context, request).iter().all(|room| room.holds(share))
}

/// Whether a kernel can see a layer's whole pool.
fn is_bound(plan: &Plan, memory: &Memory<'_>, request: &ContextRequest, context: u32) -> bool {
    plan.kv_groups.iter().all(|group| {
        let pages = pool_pages(group, context, request);
        pages <= u64::from(u32::MAX) && pages.saturating_mul(group.page_bytes) <= memory.facts.storage_range_bytes
    })
}

fn too_long(plan: &Plan, memory: &Memory<'_>, request: &ContextRequest, asked: u32, fits: u32) -> LoadError {
    if is_bound(plan, memory, request, asked) {
        return LoadError::NoRoom(Box::new(memory.refuse(plan, asked, fits, request)));
    }
    LoadError::Context {
        detail: format!(
            "context of {asked} tokens in {} slots does not fit: a layer's keys would not fit bindings of {}, the most that the \
             device has; {fits} tokens would fit",
            request.slots,
            size(memory.facts.storage_range_bytes)
        ),
    }
}

/// K and V of all of a group's layers and slots.
pub fn kv_bytes(group: &KvGroupPlan, context_tokens: u32, request: &ContextRequest) -> u64 {
    let layers = 2 * u64::from(group.n_layers);
    pool_pages(group, context_tokens, request).saturating_mul(group.page_bytes).saturating_mul(layers)
}

fn room_bytes(facts: &DeviceFacts, heap: usize) -> u64 {
    facts.heaps[heap].available_bytes()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::device::plan::Heap;
    use crate::device::plan::tests::facts;
    use unicorn_artifact::{Budget, MachinePlan, SlicePlan};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn kind(heap: usize, flags: &str) -> MemoryType {
        MemoryType {
            heap,
            device_local: flags.contains('d'),
            host_visible: flags.contains('v'),
            host_coherent: flags.contains('c'),
            host_cached: flags.contains('k'),
        }
    }

    /// 24 GiB of its own, 64 GiB of the host's, and a 256 MiB window onto its own.
    pub(crate) fn card() -> DeviceFacts {
        let heap = |bytes, device_local| Heap { bytes, budget_bytes: None, used_bytes: 0, device_local };
        DeviceFacts {
            heaps: vec![heap(24 * GIB, true), heap(64 * GIB, false), heap(256 * MIB, true)],
            memory_types: vec![kind(0, "d"), kind(1, "vc"), kind(1, "vck"), kind(2, "dvc")],
            ..facts(0, "card", DeviceKind::Discrete)
        }
    }

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

    fn choose(plan: &Plan, facts: &DeviceFacts, request: &ContextRequest) -> Result<u32, LoadError> {
        let (artifact, budget) = (Path::new("m.unicorn"), Budget::default());
        choose_context(plan, &Memory { artifact, facts, amdgpu: None, budget: &budget }, request)
    }

    pub(crate) fn request(asked_tokens: Option<u32>) -> ContextRequest {
        ContextRequest { asked_tokens, max_positions: 131_072, slots: 1, chunk_tokens: 512 }
    }

    #[test]
    fn weights_go_where_the_host_can_write_only_if_all_fit_there() {
        let small = Role::Resident { tier: Tier::Vram, total_bytes: 100 * MIB };
        let large = Role::Resident { tier: Tier::Vram, total_bytes: GIB };
        assert_eq!(rank_memory_types(&card(), small), [3, 0]);
        assert_eq!(rank_memory_types(&card(), large), [0]);
    }

    #[test]
    fn host_tiers_prefer_uncached_and_readback_prefers_cached() {
        assert_eq!(rank_memory_types(&card(), Role::Resident { tier: Tier::Gtt, total_bytes: GIB }), [1, 2]);
        assert_eq!(rank_memory_types(&card(), Role::Upload)[0], 3);
        assert_eq!(rank_memory_types(&card(), Role::Staging)[0], 1);
        assert_eq!(rank_memory_types(&card(), Role::Readback)[0], 2);
        // One kind of memory, as on llvmpipe: everything goes there.
        let one = facts(0, "llvmpipe", DeviceKind::Cpu);
        assert_eq!(rank_memory_types(&one, Role::Resident { tier: Tier::Gtt, total_bytes: GIB }), [0]);
    }

    #[test]
    fn default_context_is_the_models_unless_memory_or_software_says_less() {
        assert_eq!(choose(&plan(None), &card(), &request(None)).unwrap(), 131_072);
        let software = facts(0, "llvmpipe", DeviceKind::Cpu);
        assert_eq!(choose(&plan(None), &software, &request(None)).unwrap(), 4096);
        // 8 KiB a token: 80 % of what 1 GiB of weights leave of 1.25 GiB is about 26,000 tokens.
        let heap = Heap { bytes: 5 * GIB / 4, budget_bytes: None, used_bytes: 0, device_local: true };
        let tight = DeviceFacts { heaps: vec![heap], ..facts(0, "tight", DeviceKind::Integrated) };
        let context = choose(&plan(None), &tight, &request(None)).unwrap();
        assert!(context.is_multiple_of(256) && (25_000..26_300).contains(&context), "{context}");
    }

    #[test]
    fn asked_context_that_does_not_fit_is_refused_with_numbers() {
        let error = choose(&plan(None), &card(), &request(Some(131_073))).unwrap_err().to_string();
        assert!(error.starts_with("context must be 1 to 131072 tokens"), "{error}");
        // A layer's keys are 512 bytes a token; a binding of 16 MiB holds 32,768 tokens of them.
        let narrow = DeviceFacts { storage_range_bytes: 16 * MIB, ..card() };
        let error = choose(&plan(None), &narrow, &request(Some(65_536))).unwrap_err().to_string();
        assert!(error.contains("32768 tokens would fit"), "{error}");
        assert_eq!(choose(&plan(None), &narrow, &request(Some(32_768))).unwrap(), 32_768);
        // Windows need no more than themselves and a chunk.
        assert_eq!(choose(&plan(Some(1024)), &narrow, &request(Some(65_536))).unwrap(), 65_536);
    }

    #[test]
    fn pools_are_cut_at_the_largest_allocation() {
        let group = &plan(None).kv_groups[0];
        let pools = KvPools::new(group, 3, 256, 100 << 10);
        assert_eq!(pools.region_bytes, 24 << 10);
        assert_eq!(pools.buffers, [96 << 10, 96 << 10, 96 << 10, 96 << 10]);
        assert_eq!(pools.keys(0), (0, 0));
        assert_eq!(pools.values(1), (0, 72 << 10));
        assert_eq!(pools.keys(2), (1, 0));
        assert_eq!(pools.values(7), (3, 72 << 10));
    }
}
