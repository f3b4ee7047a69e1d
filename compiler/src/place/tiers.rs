//! Tiers filled by traffic: data that a token reads most often per byte is placed first, in the fastest memory that has room.

use unicorn_artifact::fit::{Choice, Item, Preference, fill};
use unicorn_artifact::plan::BUFFER_ALIGN;
use unicorn_artifact::{KvGroupPlan, MachinePlan, Tier};

use crate::weights::{PackedId, PackedWeight, PackedWeights, Precedence};

/// Everything that a model requires of a machine's memory.
#[derive(Clone)]
pub(crate) struct Demand<'a> {
    pub(crate) weights: &'a PackedWeights,
    /// KV groups whose tiers are not chosen yet.
    pub(crate) kv_groups: Vec<KvGroupPlan>,
    pub(crate) context_tokens: u32,
    /// Most tokens that a step appends.
    pub(crate) chunk_tokens: u32,
    /// The arena and the logits, which share a tier.
    pub(crate) activation_bytes: u64,
    /// Buffers that the host also writes or reads.
    pub(crate) host_buffer_bytes: u64,
}

/// The tier of each part of a demand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tiers {
    pub(crate) activations: Tier,
    pub(crate) host_buffers: Tier,
    /// Tier of each weight, in the order of `PackedWeights::list`.
    pub(crate) weights: Vec<Choice>,
    /// Tier of each KV group, in the order of `Demand::kv_groups`.
    pub(crate) kv_groups: Vec<Choice>,
}

impl Demand<'_> {
    /// Chooses a tier for everything.
    ///
    /// # Errors
    /// Bytes that are missing in the slowest tier of the GPU.
    pub(crate) fn fill(&self, machine: &MachinePlan) -> Result<Tiers, u64> {
        let items = self.items();
        let just_items: Vec<Item> = items.iter().map(|(item, _)| *item).collect();
        let choices = fill(machine, &just_items)?;
        let unknown = Choice { tier: Tier::Host, full: None };
        let mut tiers = Tiers {
            activations: Tier::Host,
            host_buffers: Tier::Host,
            weights: vec![unknown; self.weights.list.len()],
            kv_groups: vec![unknown; self.kv_groups.len()],
        };
        for ((_, what), choice) in items.iter().zip(choices) {
            match *what {
                What::Activations => tiers.activations = choice.tier,
                What::HostBuffers => tiers.host_buffers = choice.tier,
                What::Weight(id) => tiers.weights[id.0] = choice,
                What::KvGroup(index) => tiers.kv_groups[index] = choice,
            }
        }
        Ok(tiers)
    }

    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weights.list.iter().map(|weight| aligned(weight.len_bytes)).sum()
    }

    pub(crate) fn kv_bytes(&self) -> u64 {
        self.kv_groups.iter().map(|group| self.kv_group_bytes(group)).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.items().iter().map(|(item, _)| item.bytes).sum()
    }

    fn kv_group_bytes(&self, group: &KvGroupPlan) -> u64 {
        aligned(group.bytes(group.pages_per_sequence(self.context_tokens, self.chunk_tokens)))
    }

    /// Parts in the order in which they get memory: activations, which are read and written many times a step, then attention
    /// and its cache, then other weights that are read whole, then tables.
    fn items(&self) -> Vec<(Item, What)> {
        let fast = |bytes| Item { bytes, preference: Preference::Fastest };
        let mut items = vec![
            (fast(aligned(self.activation_bytes)), What::Activations),
            (Item { bytes: aligned(self.host_buffer_bytes), preference: Preference::HostVisible }, What::HostBuffers),
        ];
        let weights_of = |items: &mut Vec<(Item, What)>, precedence| {
            let of = self.weights.list.iter().enumerate().filter(|(_, weight)| weight.precedence == precedence);
            items.extend(of.map(|(index, weight)| (item_of(weight), What::Weight(PackedId(index)))));
        };
        weights_of(&mut items, Precedence::Attention);
        let groups = self.kv_groups.iter().enumerate();
        items.extend(groups.map(|(index, group)| (fast(self.kv_group_bytes(group)), What::KvGroup(index))));
        let others = [Precedence::FeedForward, Precedence::Head, Precedence::SharedExperts, Precedence::Experts];
        for precedence in others.into_iter().chain([Precedence::Rows]) {
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
    Item {
        bytes: aligned(weight.len_bytes),
        preference: Preference::of_weight(weight.bytes_read_per_token, weight.len_bytes),
    }
}

/// Everything begins on a multiple of [`BUFFER_ALIGN`].
fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(BUFFER_ALIGN)
}
