//! The report of a model that does not fit a device: plain data with its text.

use std::fmt;
use std::path::PathBuf;

use unicorn_artifact::Tier;
use unicorn_artifact::account::size;

use crate::memory::tier_bytes::TierBytes;

/// Memory available to one tier, or shared by several, and what the plan needs of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// The tiers that share this memory.
    pub tiers: Vec<Tier>,
    /// What the model needs of each; tiers without any are left out.
    pub needed: Vec<TierBytes>,
    /// Bytes that are free.
    pub available_bytes: u64,
    /// Where `available_bytes` comes from.
    pub source: BudgetSource,
}

/// Where a [`MemoryBudget`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetSource {
    /// The driver's heaps and budgets.
    Driver,
    /// The kernel's files (amdgpu's `mem_info_*`).
    Kernel,
    /// [`crate::LoadOptions::budget`].
    Caller,
    /// The runtime itself, which has no kernels for an NPU.
    Runtime,
}

/// A model that does not fit a device: its plan was made for a machine with more memory, or with another split of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsufficientMemory {
    /// Path of the artifact.
    pub artifact: PathBuf,
    /// Name of the device.
    pub device: String,
    /// Context that was requested, or the shortest default, in tokens.
    pub context_tokens: u32,
    /// Sequences that would have it at a time.
    pub slots: u32,
    /// Every budget that was compared; at least one is too small.
    pub budgets: Vec<MemoryBudget>,
    /// Longest context that fits, in tokens; 0: none does.
    pub fitting_context_tokens: u32,
    /// Tier sizes for which a new plan of the same model fits; `None`: there are none.
    pub replan: Option<Replan>,
}

/// Tier sizes for which a plan can be made that fits the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replan {
    /// Bytes for each tier, as `unicorn_artifact::amount::rounded_down` leaves them.
    pub tier_bytes: Vec<(Tier, u64)>,
    /// Context that fits then, in tokens.
    pub context_tokens: u32,
}

impl MemoryBudget {
    /// Whether the needed bytes fit, with the KV cache in at most `kv_share` of what the rest leaves.
    pub(crate) fn fits(&self, kv_share: f64) -> bool {
        let kv = self.needed.iter().fold(0, |sum: u64, tier| sum.saturating_add(tier.kv));
        let rest = self.needed_bytes().saturating_sub(kv);
        rest <= self.available_bytes && kv as f64 <= kv_share * (self.available_bytes - rest) as f64
    }

    /// Sum of the needed bytes.
    pub fn needed_bytes(&self) -> u64 {
        self.needed.iter().map(TierBytes::total).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for BudgetSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BudgetSource::Driver => "the driver",
            BudgetSource::Kernel => "the kernel (amdgpu's mem_info files)",
            BudgetSource::Caller => "the caller's budget",
            BudgetSource::Runtime => "the runtime, which has no kernels for an NPU",
        })
    }
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed: Vec<String> = self.needed.iter().map(TierBytes::to_string).collect();
        let MemoryBudget { available_bytes, source, .. } = self;
        write!(f, "needs {}; available {} by {source}", needed.join(" and "), size(*available_bytes))?;
        match self.needed_bytes().saturating_sub(*available_bytes) {
            0 => Ok(()),
            missing => write!(f, "; {} missing", size(missing)),
        }
    }
}

impl fmt::Display for InsufficientMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InsufficientMemory { device, context_tokens, slots, .. } = self;
        write!(f, "model does not fit {device} with a context of {context_tokens} tokens")?;
        if *slots > 1 {
            write!(f, " in each of {slots} slots")?;
        }
        for budget in self.budgets.iter().filter(|budget| !budget.needed.is_empty()) {
            write!(f, "\n  {budget}")?;
        }
        match self.fitting_context_tokens {
            0 => write!(f, "\n  no shorter context fits")?,
            fitting => write!(f, "\n  a context of {fitting} tokens fits")?,
        }
        match &self.replan {
            None => write!(f, "\n  no placement fits: expected a smaller model or smaller weights"),
            Some(Replan { tier_bytes, context_tokens }) => {
                let tiers: Vec<String> =
                    tier_bytes.iter().map(|(tier, bytes)| format!("{} {}", tier.name(), size(*bytes))).collect();
                write!(f, "\n  a plan for {} fits with {context_tokens} tokens", tiers.join(", "))
            }
        }
    }
}
