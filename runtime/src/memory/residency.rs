//! Where a model's bytes would be placed on a device, before anything is allocated. Pure.

use unicorn_artifact::{Plan, Tier};

use crate::device::memory_types::rank_memory_types;
use crate::error::LoadError;
use crate::memory::budget::AvailableMemory;
use crate::memory::context::{choose_capacity, choose_context};
use crate::memory::requirements::{ContextRequest, planned_bytes, resident_use};
use crate::memory::tier_bytes::TierBytes;

/// Where a model would be placed on a device, and for how long a context.
#[derive(Clone, Debug, PartialEq)]
pub struct Residency {
    /// The context, in tokens: the requested one, or the longest that fits.
    pub context_tokens: u32,
    /// One entry a tier of the plan that holds bytes.
    pub tiers: Vec<TierResidency>,
}

/// The memory that one tier's buffers are allocated from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierResidency {
    /// What the model keeps in the tier.
    pub bytes: TierBytes,
    /// Index into [`crate::DeviceFacts::heaps`].
    pub heap: usize,
    /// It is the device's own memory.
    pub device_local: bool,
    /// The host can write to it: weights can be loaded without a staging buffer.
    pub host_visible: bool,
}

impl Residency {
    /// Plans `plan` on the device of `memory`.
    ///
    /// # Errors
    /// As for a load: [`LoadError::Context`] and [`LoadError::InsufficientMemory`].
    pub fn of(plan: &Plan, memory: &AvailableMemory<'_>, request: &ContextRequest) -> Result<Residency, LoadError> {
        let context_tokens = choose_context(plan, memory, request)?;
        let kv_capacity = choose_capacity(plan, memory, request, context_tokens);
        let planned = planned_bytes(plan, context_tokens, &ContextRequest { kv_capacity, ..*request });
        let lies = |bytes: &TierBytes| {
            let index = *rank_memory_types(memory.facts, resident_use(&planned, bytes.tier)).first()?;
            let kind = memory.facts.memory_types[index];
            let (heap, device_local, host_visible) = (kind.heap, kind.device_local, kind.host_visible);
            Some(TierResidency { bytes: *bytes, heap, device_local, host_visible })
        };
        Ok(Residency { context_tokens, tiers: planned.iter().filter_map(lies).collect() })
    }

    /// The entry of one tier; `None` if it holds nothing.
    pub fn tier(&self, tier: Tier) -> Option<&TierResidency> {
        self.tiers.iter().find(|one| one.bytes.tier == tier)
    }
}
