//! Sums of a plan: bytes by tier, the bytes that a decode step reads, and the time of these reads at the tiers' bandwidth (an
//! estimate, from the plan's figures). Compiler and runtime show the same sums.

use std::fmt;

use serde::Serialize;

use crate::plan::{Plan, Tier};

/// A plan's sums, with the KV cache of one sequence of `context_tokens`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Account {
    /// Length of the sequence whose KV cache is counted.
    pub context_tokens: u32,
    /// Tiers that the machine has or that hold something, in the order of [`Tier`].
    pub tiers: Vec<TierAccount>,
}

/// One tier's sums, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierAccount {
    /// Which memory.
    pub tier: Tier,
    /// Bytes that the plan may use; `None`: no limit is known.
    pub budget_bytes: Option<u64>,
    /// Bandwidth of reads; `None`: unknown.
    pub bytes_per_s: Option<u64>,
    /// Bytes of slices, the gaps between weights included.
    pub weight_bytes: u64,
    /// KV cache of one sequence.
    pub kv_bytes: u64,
    /// The arena.
    pub activation_bytes: u64,
    /// Other buffers that the runtime makes.
    pub buffer_bytes: u64,
    /// Bytes of weights and KV cache that a decode step at the end of the context reads.
    pub bytes_read_per_token: u64,
}

impl Account {
    /// The sums for the context that the plan was made for.
    pub fn of(plan: &Plan) -> Account {
        Account::at(plan, plan.planned_context_tokens)
    }

    /// The sums with the KV cache of one sequence of `context_tokens`.
    pub fn at(plan: &Plan, context_tokens: u32) -> Account {
        let tiers = [Tier::Npu, Tier::Vram, Tier::Gtt, Tier::Host];
        let tiers = tiers.map(|tier| TierAccount::at(plan, tier, context_tokens));
        let shown = |sums: &TierAccount| sums.bytes() > 0 || plan.machine.tiers.iter().any(|one| one.tier == sums.tier);
        Account { context_tokens, tiers: tiers.into_iter().filter(shown).collect() }
    }

    /// Bytes in all tiers.
    pub fn bytes(&self) -> u64 {
        self.tiers.iter().map(TierAccount::bytes).sum()
    }

    /// Bytes that a decode step at the end of the context reads.
    pub fn bytes_read_per_token(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.bytes_read_per_token).sum()
    }

    /// Shortest time of a decode step that reads every byte once, one tier after the other; `None` where the bandwidth of a
    /// tier that is read is unknown.
    pub fn estimated_seconds_per_token(&self) -> Option<f64> {
        let read = self.tiers.iter().filter(|tier| tier.bytes_read_per_token > 0);
        let seconds: Option<Vec<f64>> = read.map(TierAccount::estimated_seconds_per_token).collect();
        seconds.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }

    /// Tokens a second, from [`Account::estimated_seconds_per_token`].
    pub fn estimated_tokens_per_s(&self) -> Option<f64> {
        self.estimated_seconds_per_token().map(|seconds| 1.0 / seconds)
    }

    /// Tokens a second if everything that a step reads were in `tier`; `None` if its bandwidth is unknown.
    pub fn tokens_per_s_if_all_in(&self, tier: &TierAccount) -> Option<f64> {
        let read = self.bytes_read_per_token();
        tier.bytes_per_s.filter(|_| read > 0).map(|bytes_per_s| bytes_per_s as f64 / read as f64)
    }
}

impl TierAccount {
    fn at(plan: &Plan, tier: Tier, context: u32) -> TierAccount {
        let machine = plan.machine.tiers.iter().find(|one| one.tier == tier);
        let slice_tier = |slice: u32| plan.slices.get(slice as usize).map(|slice| slice.tier);
        let weights = plan.weights.iter().filter(|weight| slice_tier(weight.slice) == Some(tier));
        let groups = || plan.kv_groups.iter().filter(|group| group.tier == tier);
        let kv_read: u64 = groups().map(|group| group.bytes_read_per_token(context)).sum();
        TierAccount {
            tier,
            budget_bytes: machine.and_then(|one| one.budget_bytes),
            bytes_per_s: machine.and_then(|one| one.bytes_per_s),
            weight_bytes: plan.slices.iter().filter(|slice| slice.tier == tier).map(|slice| slice.bytes).sum(),
            kv_bytes: groups()
                .map(|group| group.bytes(group.pages_per_sequence(context, plan.planned_chunk_tokens)))
                .sum(),
            activation_bytes: if plan.arena_tier == tier { plan.arena_bytes } else { 0 },
            buffer_bytes: plan.buffers.iter().filter(|buffer| buffer.tier == tier).map(|buffer| buffer.bytes).sum(),
            bytes_read_per_token: kv_read + weights.map(|weight| weight.bytes_read_per_token).sum::<u64>(),
        }
    }

    /// Bytes of all kinds.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.kv_bytes + self.activation_bytes + self.buffer_bytes
    }

    /// Seconds in which a decode step reads its bytes of this tier; `None` if the bandwidth is unknown.
    pub fn estimated_seconds_per_token(&self) -> Option<f64> {
        self.bytes_per_s.map(|bytes_per_s| self.bytes_read_per_token as f64 / bytes_per_s as f64)
    }
}

/// One line with a bar for each tier, then the estimate with its figures; ends without a line break.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tier in &self.tiers {
            writeln!(f, "{tier}")?;
        }
        let read = self.tiers.iter().filter(|tier| tier.bytes_read_per_token > 0);
        let parts: Vec<String> = read
            .map(|tier| {
                let speed = tier.bytes_per_s.map_or("an unknown bandwidth".to_owned(), gb_per_s);
                format!("{} of {} at {speed}", size(tier.bytes_read_per_token), tier.tier.name())
            })
            .collect();
        let parts = parts.join(", ");
        match self.estimated_tokens_per_s() {
            Some(rate) => write!(f, "estimate: at most {rate:.2} tokens/s; a token reads {parts}")?,
            None => write!(f, "no estimate; a token reads {parts}")?,
        }
        for tier in self.tiers.iter().filter(|tier| tier.bytes_read_per_token > 0) {
            if let (Some(rate), Some(speed)) = (self.tokens_per_s_if_all_in(tier), tier.bytes_per_s) {
                write!(f, "\nestimate: {rate:.2} tokens/s if all lay in {}, at {}", tier.tier.name(), gb_per_s(speed))?;
            }
        }
        Ok(())
    }
}

/// `vram  ████████░░░░  66.7 %  2.00 GiB of 3.00 GiB: weights 1.50 GiB, …`
impl fmt::Display for TierAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        write!(f, "{:<5} ", self.tier.name())?;
        match self.budget_bytes {
            Some(budget) => {
                let part = bytes as f64 / budget.max(1) as f64;
                let full = ((part * BAR_CELLS as f64).round() as usize).min(BAR_CELLS);
                let bar = "█".repeat(full) + &"░".repeat(BAR_CELLS - full);
                write!(f, "{bar} {:5.1} %  {} of {}", 100.0 * part, size(bytes), size(budget))?;
            }
            None => write!(f, "{} of no known limit", size(bytes))?,
        }
        let parts = [
            ("weights", self.weight_bytes),
            ("KV", self.kv_bytes),
            ("activations", self.activation_bytes),
            ("buffers", self.buffer_bytes),
        ];
        for (index, (name, bytes)) in parts.into_iter().filter(|(_, bytes)| *bytes > 0).enumerate() {
            write!(f, "{} {name} {}", if index == 0 { ":" } else { "," }, size(bytes))?;
        }
        Ok(())
    }
}

/// Length of a full bar.
const BAR_CELLS: usize = 24;

fn gb_per_s(bytes_per_s: u64) -> String {
    format!("{} GB/s", bytes_per_s as f64 / 1e9)
}

/// Bytes in a suitable unit: `1.50 GiB`.
pub fn size(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{KvGroupPlan, MachinePlan, Reader, SlicePlan, TierPlan, WeightPlan};

    fn plan() -> Plan {
        let tier = |tier, bytes_per_s| TierPlan {
            tier,
            budget_bytes: Some(1000),
            bytes_per_s,
            readers: vec![Reader::Gpu],
            sparse_rows: true,
            source: String::new(),
        };
        let weight = |slice, bytes_read_per_token| WeightPlan {
            name: "w".into(),
            slice,
            offset_bytes: 0,
            len_bytes: 100,
            layer: None,
            bytes_read_per_token,
            reason: String::new(),
        };
        Plan {
            machine: MachinePlan {
                name: "m".into(),
                tiers: vec![tier(Tier::Vram, Some(1000)), tier(Tier::Gtt, Some(100))],
            },
            slices: vec![SlicePlan { bytes: 100, tier: Tier::Vram }, SlicePlan { bytes: 100, tier: Tier::Gtt }],
            weights: vec![weight(0, 100), weight(1, 5)],
            // 2 bytes of K a token and layer.
            kv_groups: vec![KvGroupPlan {
                window_tokens: Some(20),
                n_layers: 2,
                page_tokens: 16,
                page_bytes: 32,
                tier: Tier::Vram,
                reason: String::new(),
            }],
            activations: vec![],
            arena_bytes: 7,
            arena_tier: Tier::Vram,
            logits_rows: 1,
            logits_stride: 3,
            buffers: vec![],
            planned_context_tokens: 64,
            planned_chunk_tokens: 1,
        }
    }

    #[test]
    fn a_token_reads_weights_and_as_much_cache_as_a_window_holds() {
        let account = Account::of(&plan());
        let [vram, gtt] = account.tiers.as_slice() else { panic!("two tiers hold something") };
        assert_eq!(vram.bytes_read_per_token, 100 + 2 * 2 * 2 * 20);
        assert_eq!((vram.kv_bytes, vram.bytes(), gtt.bytes()), (2 * 32 * 2 * 3, 100 + 384 + 7, 100));
        let seconds = account.estimated_seconds_per_token().unwrap();
        assert!((seconds - (260.0 / 1000.0 + 5.0 / 100.0)).abs() < 1e-12);
        assert_eq!(account.tokens_per_s_if_all_in(gtt), Some(100.0 / 265.0));
    }

    #[test]
    fn an_unknown_bandwidth_is_not_guessed() {
        let mut plan = plan();
        plan.machine.tiers[1].bytes_per_s = None;
        assert_eq!(Account::of(&plan).estimated_tokens_per_s(), None);
    }
}
