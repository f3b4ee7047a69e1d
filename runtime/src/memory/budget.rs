//! Whether a device has the memory that a plan needs of each tier, before anything is allocated, and what would fit instead.
//! The runtime never moves bytes to another tier: only a new plan does.

use std::path::Path;

use unicorn_artifact::amount::rounded_down;
use unicorn_artifact::fit::{self, Draft};
use unicorn_artifact::{Budget, Plan, Tier};

use crate::device::amdgpu::AmdgpuMemory;
use crate::device::facts::{DeviceFacts, DeviceKind, Heap};
use crate::device::memory_types::rank_memory_types;
use crate::memory::insufficient_memory::{BudgetSource, InsufficientMemory, MemoryBudget, Replan};
use crate::memory::requirements::{ContextRequest, KvCapacity, kv_bytes, planned_bytes, resident_use};
use crate::memory::tier_bytes::TierBytes;

/// The memory that a model may use.
#[derive(Clone, Copy)]
pub struct AvailableMemory<'a> {
    /// Path of the artifact, for [`InsufficientMemory`].
    pub artifact: &'a Path,
    /// The device.
    pub facts: &'a DeviceFacts,
    /// The kernel's figures; `None`: it has none for this device.
    pub amdgpu: Option<AmdgpuMemory>,
    /// The caller's limit for each tier.
    pub budget: &'a Budget,
    /// A draft that will be resident as well, with as many sequences, each of its share of the cache's tokens.
    pub beside: Option<Draft<'a>>,
}

/// Tiers in GPU or host memory.
const GPU_TIERS: [Tier; 3] = [Tier::Vram, Tier::Gtt, Tier::Host];
/// Memory of a tier without a known limit: more than any machine has.
const UNLIMITED_BYTES: u64 = 1 << 50;
const MIB: u64 = 1 << 20;

impl AvailableMemory<'_> {
    /// What the plan needs and what is available, by every source that reports it.
    pub fn budgets(&self, plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Vec<MemoryBudget> {
        let planned = self.planned(plan, context_tokens, request);
        let mut budgets = Vec::new();
        let mut add = |tiers: &[Tier], available_bytes, source| {
            let needed = planned.iter().copied().filter(|sum| tiers.contains(&sum.tier)).collect();
            budgets.push(MemoryBudget { tiers: tiers.to_vec(), needed, available_bytes, source });
        };
        let heaps = &self.facts.heaps;
        add(&[Tier::Npu], 0, BudgetSource::Runtime);
        match (self.facts.kind, self.amdgpu) {
            // A software device's heap size is not a real limit; the host's memory is, and allocation reports it.
            (DeviceKind::Cpu, _) => {}
            // RADV splits an APU's memory into synthetic heaps; only their sum is a real limit.
            (DeviceKind::Integrated, Some(_)) => {
                add(&GPU_TIERS, heaps.iter().map(Heap::available_bytes).sum(), BudgetSource::Driver)
            }
            _ => {
                for (index, heap) in heaps.iter().enumerate() {
                    let in_heap = |tier: &Tier| self.heap(&planned, *tier) == Some(index);
                    let tiers: Vec<Tier> = GPU_TIERS.into_iter().filter(in_heap).collect();
                    add(&tiers, heap.available_bytes(), BudgetSource::Driver);
                }
            }
        }
        if let Some(AmdgpuMemory { vram, gtt }) = self.amdgpu {
            // On an APU both are host memory, and a plan for no particular machine runs from either.
            let is_separate = self.facts.kind != DeviceKind::Integrated || has_vram_budget(plan);
            if is_separate {
                add(&[Tier::Vram], vram.free_bytes(), BudgetSource::Kernel);
                add(&[Tier::Gtt, Tier::Host], gtt.free_bytes(), BudgetSource::Kernel);
            } else {
                add(&GPU_TIERS, vram.free_bytes().saturating_add(gtt.free_bytes()), BudgetSource::Kernel);
            }
        }
        self.budget.iter().for_each(|(tier, bytes)| add(&[tier], bytes, BudgetSource::Caller));
        budgets
    }

    /// The bytes of the model and of what is beside it, in each tier.
    fn planned(&self, plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Vec<TierBytes> {
        let mut planned = planned_bytes(plan, context_tokens, request);
        let Some(draft) = &self.beside else { return planned };
        let context_tokens = request.tokens_each(context_tokens).min(draft.max_positions);
        let request = ContextRequest { kv_capacity: KvCapacity::Each, ..*request };
        for of_draft in planned_bytes(draft.plan, context_tokens, &request) {
            let bytes = of_draft.total();
            match planned.iter_mut().find(|sum| sum.tier == of_draft.tier) {
                Some(sum) => sum.other = sum.other.saturating_add(bytes),
                None => planned.push(TierBytes { other: bytes, ..TierBytes::none(of_draft.tier) }),
            }
        }
        planned
    }

    /// The report of a context of `context_tokens` that does not fit where `fitting_context_tokens` do.
    pub fn insufficient(
        &self,
        plan: &Plan,
        context_tokens: u32,
        fitting_context_tokens: u32,
        request: &ContextRequest,
    ) -> InsufficientMemory {
        InsufficientMemory {
            artifact: self.artifact.to_owned(),
            device: self.facts.name.clone(),
            context_tokens,
            slots: request.whole_sequences(),
            budgets: self.budgets(plan, context_tokens, request),
            fitting_context_tokens,
            replan: self.replan(plan, context_tokens, request),
        }
    }

    /// All that is available in each tier, if that is enough for the whole model. A slice or KV group is placed in one tier as a
    /// whole, so that up to the size of the largest one may stay unused in a tier: that much is kept as a margin.
    fn replan(&self, plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Option<Replan> {
        let mut budgets = self.budgets(plan, context_tokens, request);
        let mut tier_bytes = Vec::new();
        for tier in plan.machine.gpu_tiers().map(|tier| tier.tier) {
            let of_tier = |budget: &&mut MemoryBudget| budget.tiers.contains(&tier);
            let available =
                budgets.iter_mut().filter(of_tier).map(|one| one.available_bytes).fold(UNLIMITED_BYTES, u64::min);
            // Memory that several tiers share is counted once.
            budgets.iter_mut().filter(of_tier).for_each(|budget| budget.available_bytes -= available);
            tier_bytes.push((tier, rounded_down(available)));
        }
        tier_bytes.retain(|(_, bytes)| *bytes > 0);
        // With a single memory, placement makes no difference.
        let has_choice = tier_bytes.len() > 1;
        let total = tier_bytes.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let needed = |tokens| {
            let all = self.planned(plan, tokens, request);
            let kv = plan.kv_groups.iter().map(|group| kv_bytes(group, tokens, request));
            let largest = plan.slices.iter().map(|slice| slice.bytes).chain(kv).max().unwrap_or(0);
            let of_gpu = plan.buffers.iter().filter(|buffer| !fit::is_of_npu(buffer));
            let buffers: u64 = of_gpu.map(|buffer| buffer.bytes).sum();
            all.iter().map(TierBytes::total).fold(largest.saturating_add(buffers), u64::saturating_add)
        };
        let context_tokens = largest_that_fits(context_tokens, |tokens| needed(tokens) <= total);
        // A tier without a known limit gets all that is planned for it.
        let most = needed(context_tokens).next_multiple_of(MIB);
        tier_bytes.iter_mut().filter(|(_, bytes)| *bytes == UNLIMITED_BYTES).for_each(|(_, bytes)| *bytes = most);
        (has_choice && context_tokens > 0).then_some(Replan { tier_bytes, context_tokens })
    }

    /// Heap that a buffer of `tier` is allocated from.
    fn heap(&self, planned: &[TierBytes], tier: Tier) -> Option<usize> {
        let memory_type = *rank_memory_types(self.facts, resident_use(planned, tier)).first()?;
        Some(self.facts.memory_types[memory_type].heap)
    }
}

/// Whether the plan was made for a machine with a known VRAM size.
pub fn has_vram_budget(plan: &Plan) -> bool {
    plan.machine.tiers.iter().any(|tier| tier.tier == Tier::Vram && tier.budget_bytes.is_some())
}

/// The largest of 1 to `limit` that fits, by bisection; 0 if none does. Whatever is smaller than a number that fits must fit.
pub fn largest_that_fits(limit: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut fitting, mut too_large) = (0, limit.saturating_add(1));
    while too_large - fitting > 1 {
        let middle = fitting + (too_large - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            too_large = middle;
        }
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::amdgpu::MemoryFigures;
    use crate::device::facts::tests::facts;
    use crate::device::memory_types::tests::card;
    use crate::error::LoadError;
    use crate::memory::context::choose_context;
    use crate::memory::requirements::tests::{plan, request};
    use unicorn_artifact::{MachinePlan, Reader, SlicePlan, TierPlan};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// `slices` in tiers of a machine with `vram_budget` bytes of VRAM; KV and activations of [`plan`] in VRAM.
    fn split(vram_budget: Option<u64>, slices: &[(u64, Tier)]) -> Plan {
        let tier = |tier, budget_bytes| TierPlan {
            tier,
            budget_bytes,
            bytes_per_s: None,
            readers: vec![Reader::Gpu],
            sparse_rows: false,
            source: String::new(),
        };
        let tiers = vec![tier(Tier::Vram, vram_budget), tier(Tier::Gtt, None)];
        let slices = slices.iter().map(|&(bytes, tier)| SlicePlan { bytes, tier }).collect();
        Plan { machine: MachinePlan { name: "made up".into(), tiers }, slices, ..plan(None) }
    }

    fn choose(
        plan: &Plan,
        facts: &DeviceFacts,
        amdgpu: Option<AmdgpuMemory>,
        budget: &str,
        requested: Option<u32>,
    ) -> Result<u32, String> {
        let budget = if budget.is_empty() { Budget::default() } else { budget.parse().unwrap() };
        let memory = AvailableMemory {
            artifact: Path::new("my models/m.unicorn"),
            facts,
            amdgpu,
            budget: &budget,
            beside: None,
        };
        choose_context(plan, &memory, &request(requested)).map_err(|error| {
            assert!(matches!(error, LoadError::InsufficientMemory(_)), "{error}");
            error.to_string()
        })
    }

    fn amdgpu(vram: u64, gtt: u64) -> Option<AmdgpuMemory> {
        let figures = |total_bytes| MemoryFigures { total_bytes, used_bytes: 100 * MIB };
        Some(AmdgpuMemory { vram: figures(vram), gtt: figures(gtt) })
    }

    /// A device as RADV reports an APU: one memory in two heaps.
    fn apu() -> DeviceFacts {
        let heap = |bytes, device_local| Heap { bytes, budget_bytes: None, used_bytes: 0, device_local };
        DeviceFacts {
            heaps: vec![heap(20 * GIB, true), heap(10 * GIB, false)],
            ..small_windows("AMD Radeon 780M", DeviceKind::Integrated)
        }
    }

    fn small_windows(name: &str, kind: DeviceKind) -> DeviceFacts {
        DeviceFacts { memory_types: card().memory_types[..2].to_vec(), ..facts(0, name, kind) }
    }

    #[test]
    fn a_plan_for_a_larger_carve_out_is_refused_with_sizes_for_a_new_plan() {
        let plan = split(Some(16 * GIB), &[(GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Gtt)]);
        assert_eq!(choose(&plan, &apu(), amdgpu(16 * GIB, 8 * GIB), "", Some(4096)), Ok(4096));
        assert_eq!(
            choose(&plan, &apu(), amdgpu(2 * GIB, 8 * GIB), "", Some(4096)).unwrap_err(),
            "model does not fit AMD Radeon 780M with a context of 4096 tokens\n  \
             needs 3.03 GiB of vram (weights 3.00 GiB, KV 32.00 MiB, activations 1.00 MiB, other 4.00 KiB) and 1.00 GiB of gtt \
             (weights 1.00 GiB, KV 0 bytes, activations 0 bytes, other 0 bytes); available 30.00 GiB by the driver\n  \
             needs 3.03 GiB of vram (weights 3.00 GiB, KV 32.00 MiB, activations 1.00 MiB, other 4.00 KiB); available 1.90 GiB \
             by the kernel (amdgpu's mem_info files); 1.13 GiB missing\n  \
             needs 1.00 GiB of gtt (weights 1.00 GiB, KV 0 bytes, activations 0 bytes, other 0 bytes); available 7.90 GiB by the \
             kernel (amdgpu's mem_info files)\n  \
             no shorter context fits\n  \
             a plan for vram 1.90 GiB, gtt 7.75 GiB fits with 4096 tokens"
        );
        // A plan for no particular machine runs from either memory.
        let any = split(None, &[(GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Vram)]);
        assert_eq!(choose(&any, &apu(), amdgpu(GIB, 8 * GIB), "", Some(4096)), Ok(4096));
    }

    #[test]
    fn a_new_plan_for_a_card_needs_no_more_than_it_has() {
        let mut card = small_windows("a card", DeviceKind::Discrete);
        card.heaps = self::card().heaps[..2].to_vec();
        let plan = split(Some(48 * GIB), &[(GIB, Tier::Vram); 30]);
        let text = choose(&plan, &card, None, "", Some(4096)).unwrap_err();
        assert!(text.contains("available 24.00 GiB by the driver; 6.03 GiB missing"), "{text}");
        assert!(text.ends_with("a plan for vram 24.00 GiB, gtt 64.00 GiB fits with 4096 tokens"), "{text}");
        // Without a requested context, the shortest default is reported.
        let text = choose(&plan, &card, None, "", None).unwrap_err();
        assert!(text.starts_with("model does not fit a card with a context of 512 tokens"), "{text}");
    }

    #[test]
    fn a_shorter_context_that_fits_is_reported() {
        let budget = "vram=1100MiB";
        let plan = split(Some(16 * GIB), &[(GIB, Tier::Vram)]);
        let software = facts(0, "llvmpipe", DeviceKind::Cpu);
        let text = choose(&plan, &software, None, budget, Some(65_536)).unwrap_err();
        // 8 KiB a token in 75 MiB, in whole pages.
        let fits = 9_584;
        assert!(text.contains(&format!("a context of {fits} tokens fits")), "{text}");
        assert_eq!(choose(&plan, &software, None, budget, Some(fits)), Ok(fits));
        assert!(choose(&plan, &software, None, budget, Some(fits + 1)).is_err());
    }

    #[test]
    fn a_model_that_fits_nowhere_gets_no_new_plan() {
        let plan = split(Some(16 * GIB), &[(GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Gtt)]);
        let text = choose(&plan, &apu(), amdgpu(GIB, 2 * GIB), "", Some(4096)).unwrap_err();
        assert!(
            text.ends_with("no shorter context fits\n  no placement fits: expected a smaller model or smaller weights"),
            "{text}"
        );
        // With a single memory there is no other placement.
        let one = DeviceFacts {
            heaps: vec![Heap { bytes: 2 * GIB, ..apu().heaps[0] }],
            ..facts(0, "one", DeviceKind::Other)
        };
        assert!(choose(&plan, &one, None, "", Some(4096)).unwrap_err().contains("no placement fits"));
    }

    #[test]
    fn a_plan_that_uses_npu_memory_is_refused() {
        let plan = split(Some(GIB), &[(MIB, Tier::Npu)]);
        let text = choose(&plan, &apu(), None, "", Some(512)).unwrap_err();
        assert!(
            text.contains("available 0 bytes by the runtime, which has no kernels for an NPU; 1.00 MiB missing"),
            "{text}"
        );
    }
}
