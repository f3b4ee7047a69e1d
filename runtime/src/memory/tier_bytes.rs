//! Bytes of a model in one memory tier, by what they hold.

use std::fmt;

use unicorn_artifact::Tier;
use unicorn_artifact::account::size;

/// Bytes in one tier, by what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierBytes {
    /// The tier.
    pub tier: Tier,
    /// Weight slices.
    pub weights: u64,
    /// The KV cache of all sequences.
    pub kv: u64,
    /// The activation arena.
    pub activations: u64,
    /// Logits, the step and output buffers, readback; all of a draft that is loaded next.
    pub other: u64,
}

impl TierBytes {
    /// No bytes in `tier`.
    pub fn none(tier: Tier) -> TierBytes {
        TierBytes { tier, weights: 0, kv: 0, activations: 0, other: 0 }
    }

    /// Sum of all bytes; saturating, since a context may be any number.
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
