//! Tiers filled by traffic: what a token reads most of, byte for byte, comes first to the fastest memory that has room.

use unicorn_artifact::plan::BUFFER_ALIGN;
use unicorn_artifact::{KvGroupPlan, MachinePlan, Reader, Tier, TierPlan};

use crate::weights::{PackedId, PackedWeight, PackedWeights, Precedence};

/// Everything that a model asks of a machine's memory.
#[derive(Clone)]
pub struct Demand<'a> {
    pub weights: &'a PackedWeights,
    /// Their tiers are not chosen yet.
    pub kv_groups: Vec<KvGroupPlan>,
    pub context_tokens: u32,
    /// Most tokens that a step appends.
    pub chunk_tokens: u32,
    /// The arena and the logits, which share a tier.
    pub activation_bytes: u64,
    /// Buffers that the host writes or reads, too.
    pub host_buffer_bytes: u64,
}

/// Where each thing of a demand lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    pub activations: Tier,
    pub host_buffers: Tier,
    /// In the order of `PackedWeights::list`.
    pub weights: Vec<Seat>,
    /// In the order of `Demand::kv_groups`.
    pub kv_groups: Vec<Seat>,
}

/// A tier, and the faster one that had no room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seat {
    pub tier: Tier,
    pub rather: Option<Tier>,
}

/// One thing that lies in one tier as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    pub bytes: u64,
    pub wants: Wants,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The first tier that has room.
    Fast,
    /// The last one, of those where a few rows of a table may be read: fast memory is for others.
    Rows,
    /// The last one, of those that the host reads, too.
    Host,
}

/// A weight of which a token reads less than this part is as well off in slow memory…
const SPARSE_PART: u64 = 100;
/// …if it is large enough to matter.
const SPARSE_BYTES: u64 = 16 << 20;

impl Demand<'_> {
    /// Chooses a tier for everything.
    ///
    /// # Errors
    /// Bytes that the slowest tier of the GPU would have to be larger.
    pub fn fill(&self, machine: &MachinePlan) -> Result<Tiers, u64> {
        let items = self.items();
        let just_items: Vec<Item> = items.iter().map(|(item, _)| *item).collect();
        let seats = fill(machine, &just_items)?;
        let unknown = Seat { tier: Tier::Host, rather: None };
        let mut tiers = Tiers {
            activations: Tier::Host,
            host_buffers: Tier::Host,
            weights: vec![unknown; self.weights.list.len()],
            kv_groups: vec![unknown; self.kv_groups.len()],
        };
        for ((_, what), seat) in items.iter().zip(seats) {
            match *what {
                What::Activations => tiers.activations = seat.tier,
                What::HostBuffers => tiers.host_buffers = seat.tier,
                What::Weight(id) => tiers.weights[id.0] = seat,
                What::KvGroup(index) => tiers.kv_groups[index] = seat,
            }
        }
        Ok(tiers)
    }

    pub fn weight_bytes(&self) -> u64 {
        self.weights.list.iter().map(|weight| aligned(weight.len_bytes)).sum()
    }

    pub fn kv_bytes(&self) -> u64 {
        self.kv_groups.iter().map(|group| self.kv_group_bytes(group)).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.items().iter().map(|(item, _)| item.bytes).sum()
    }

    fn kv_group_bytes(&self, group: &KvGroupPlan) -> u64 {
        aligned(group.bytes(group.pages_per_sequence(self.context_tokens, self.chunk_tokens)))
    }

    /// In the order in which they are given room: activations are read and written many times a step, then come attention
    /// and its cache, then what else is read whole, then tables.
    fn items(&self) -> Vec<(Item, What)> {
        let fast = |bytes| Item { bytes, wants: Wants::Fast };
        let mut items = vec![
            (fast(aligned(self.activation_bytes)), What::Activations),
            (Item { bytes: aligned(self.host_buffer_bytes), wants: Wants::Host }, What::HostBuffers),
        ];
        let weights_of = |items: &mut Vec<(Item, What)>, precedence| {
            let of = self.weights.list.iter().enumerate().filter(|(_, weight)| weight.precedence == precedence);
            items.extend(of.map(|(index, weight)| (item_of(weight), What::Weight(PackedId(index)))));
        };
        weights_of(&mut items, Precedence::Attention);
        let groups = self.kv_groups.iter().enumerate();
        items.extend(groups.map(|(index, group)| (fast(self.kv_group_bytes(group)), What::KvGroup(index))));
        for precedence in [Precedence::FeedForward, Precedence::Head, Precedence::Rows] {
            weights_of(&mut items, precedence);
        }
        items
    }
}

#[derive(Clone, Copy)]
enum What {
    Activations,
    HostBuffers,
    Weight(PackedId),
    KvGroup(usize),
}

fn item_of(weight: &PackedWeight) -> Item {
    Item { bytes: aligned(weight.len_bytes), wants: wants(weight.bytes_read_per_token, weight.len_bytes) }
}

/// What a weight of `len_bytes` wants, of which a token reads `bytes_read_per_token`.
pub fn wants(bytes_read_per_token: u64, len_bytes: u64) -> Wants {
    let sparse = bytes_read_per_token < len_bytes / SPARSE_PART && len_bytes > SPARSE_BYTES;
    if sparse { Wants::Rows } else { Wants::Fast }
}

/// Everything begins on a multiple of [`BUFFER_ALIGN`].
fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(BUFFER_ALIGN)
}

/// A tier for each item, the first in line first.
///
/// # Errors
/// Bytes that the slowest tier of the GPU would have to be larger for everything to fit.
pub fn fill(machine: &MachinePlan, items: &[Item]) -> Result<Vec<Seat>, u64> {
    seats(machine, items, 0).ok_or_else(|| {
        // More room never makes a fit worse by much, so the least that is enough is searched by halves.
        let (mut short, mut enough) = (0, items.iter().map(|item| item.bytes).sum::<u64>());
        while enough - short > 1 {
            let middle = short + (enough - short) / 2;
            match seats(machine, items, middle) {
                Some(_) => enough = middle,
                None => short = middle,
            }
        }
        enough
    })
}

/// `None` if something finds no room, even with `extra_bytes` more in the slowest tier.
fn seats(machine: &MachinePlan, items: &[Item], extra_bytes: u64) -> Option<Vec<Seat>> {
    let mut tiers: Vec<(&TierPlan, u64)> =
        machine.gpu_tiers().map(|tier| (tier, tier.budget_bytes.unwrap_or(u64::MAX))).collect();
    if let Some((_, room)) = tiers.last_mut() {
        *room = room.saturating_add(extra_bytes);
    }
    let mut seats = Vec::with_capacity(items.len());
    for item in items {
        let order = candidates(&tiers, item.wants);
        let at = *order.iter().find(|&&at| item.bytes <= tiers[at].1)?;
        // An unlimited tier stays so.
        if tiers[at].0.budget_bytes.is_some() {
            tiers[at].1 -= item.bytes;
        }
        let first = tiers[order[0]].0.tier;
        let tier = tiers[at].0.tier;
        seats.push(Seat { tier, rather: (first != tier).then_some(first) });
    }
    Some(seats)
}

/// Indices of the tiers that may hold what wants this, the best first.
fn candidates(tiers: &[(&TierPlan, u64)], wants: Wants) -> Vec<usize> {
    let all = 0..tiers.len();
    match wants {
        Wants::Fast => all.collect(),
        Wants::Rows => {
            let (last, others): (Vec<usize>, Vec<usize>) = all.partition(|&at| tiers[at].0.sparse_rows);
            last.into_iter().rev().chain(others).collect()
        }
        Wants::Host => all.rev().filter(|&at| tiers[at].0.readers.contains(&Reader::Cpu)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(budgets: [Option<u64>; 2]) -> MachinePlan {
        let tier = |tier, budget_bytes, readers: &[Reader]| TierPlan {
            tier,
            budget_bytes,
            bytes_per_s: None,
            readers: readers.to_vec(),
            sparse_rows: tier == Tier::Gtt,
            source: String::new(),
        };
        let tiers = vec![
            tier(Tier::Vram, budgets[0], &[Reader::Gpu]),
            tier(Tier::Gtt, budgets[1], &[Reader::Gpu, Reader::Cpu]),
            tier(Tier::Host, None, &[Reader::Cpu]),
        ];
        MachinePlan { name: "m".into(), tiers }
    }

    fn tiers(budgets: [Option<u64>; 2], items: &[(u64, Wants)]) -> Result<Vec<Tier>, u64> {
        let items: Vec<Item> = items.iter().map(|&(bytes, wants)| Item { bytes, wants }).collect();
        fill(&machine(budgets), &items).map(|seats| seats.iter().map(|seat| seat.tier).collect())
    }

    #[test]
    fn the_first_in_line_has_the_fast_memory_and_gaps_are_filled() {
        let fast = |bytes| (bytes, Wants::Fast);
        let filled = tiers([Some(100), Some(100)], &[fast(60), fast(50), fast(40), fast(50)]);
        assert_eq!(filled, Ok(vec![Tier::Vram, Tier::Gtt, Tier::Vram, Tier::Gtt]));
    }

    #[test]
    fn tables_leave_fast_memory_to_others_while_there_is_other() {
        let table = (80, Wants::Rows);
        assert_eq!(tiers([Some(100), Some(100)], &[table, table]), Ok(vec![Tier::Gtt, Tier::Vram]));
        assert_eq!(tiers([None, None], &[table, (80, Wants::Host)]), Ok(vec![Tier::Gtt, Tier::Gtt]));
        // Buffers of the host have no other place.
        assert_eq!(tiers([Some(100), Some(100)], &[(101, Wants::Host)]), Err(1));
    }

    #[test]
    fn what_is_short_is_what_would_be_enough() {
        let items = [(90, Wants::Fast), (90, Wants::Fast), (50, Wants::Fast)];
        assert_eq!(tiers([Some(100), Some(100)], &items), Err(40));
        assert!(tiers([Some(100), Some(140)], &items).is_ok());
        assert!(tiers([Some(100), Some(139)], &items).is_err());
    }
}
