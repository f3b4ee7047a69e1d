//! Whether a device has the room that the plan asks of each tier, before anything is allocated there; and if not, what would
//! help. Nothing is ever moved to another tier to make it fit: that is `replan`'s.

use std::fmt;
use std::path::{Path, PathBuf};

use unicorn_artifact::{Budget, Plan, Tier};

use crate::device::amdgpu::Amdgpu;
use crate::device::plan::{DeviceFacts, DeviceKind, Heap};
use crate::error::size;
use crate::memory::residency::{
    ContextRequest, TierBytes, kv_bytes, longest, planned_bytes, rank_memory_types, resident_role,
};

/// The memory that a model may have.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// For the lines that a person can run.
    pub artifact: &'a Path,
    pub facts: &'a DeviceFacts,
    /// What the kernel says; `None`: it keeps no figures of this device.
    pub amdgpu: Option<Amdgpu>,
    /// What the caller allows of each tier.
    pub budget: &'a Budget,
}

/// Memory that a tier has, or several share: what the plan asks of it, and what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    pub tiers: Vec<Tier>,
    pub asked: Vec<TierBytes>,
    pub found_bytes: u64,
    /// Who says so.
    pub by: &'static str,
}

/// A model that does not fit a device: the plan was made for a machine with more memory, or with another split of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoom {
    pub artifact: PathBuf,
    pub device: String,
    pub context_tokens: u32,
    pub slots: u32,
    pub rooms: Vec<Room>,
    /// The longest context that fits; 0: none does.
    pub fits_tokens: u32,
    /// Sizes for which there is a plan that fits, and the context that it has room for.
    pub replan: Option<(Vec<(Tier, u64)>, u32)>,
}

const BY_DRIVER: &str = "the driver";
const BY_KERNEL: &str = "the kernel (amdgpu's mem_info files)";
const BY_CALLER: &str = "--budget";
const TIERS: [Tier; 4] = [Tier::Npu, Tier::Vram, Tier::Gtt, Tier::Host];

impl Memory<'_> {
    /// What is asked and found, by every account that there is.
    pub fn rooms(&self, plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Vec<Room> {
        let planned = planned_bytes(plan, context_tokens, request);
        let mut rooms = Vec::new();
        let mut add = |tiers: Vec<Tier>, found_bytes, by| {
            let asked = planned.iter().copied().filter(|sum| tiers.contains(&sum.tier)).collect();
            rooms.push(Room { tiers, asked, found_bytes, by });
        };
        let heaps = &self.facts.heaps;
        // Kernels run on the GPU here, which the NPU's own memory is no use to.
        add(vec![Tier::Npu], 0, "this program, which has kernels for no NPU");
        match (self.facts.kind, self.amdgpu) {
            // A software device makes its heap up; the host's memory is the limit, and allocating tells.
            (DeviceKind::Cpu, _) => {}
            // RADV makes up how an APU's memory is split into heaps; the kernel knows.
            (DeviceKind::Integrated, Some(_)) => {
                add(TIERS[1..].to_vec(), heaps.iter().map(Heap::available_bytes).sum(), BY_DRIVER)
            }
            _ => {
                let heap = |tier: &Tier| self.heap(&planned, *tier);
                for (index, one) in heaps.iter().enumerate() {
                    let tiers = TIERS[1..].iter().copied().filter(|tier| heap(tier) == Some(index)).collect();
                    add(tiers, one.available_bytes(), BY_DRIVER);
                }
            }
        }
        if let Some(Amdgpu { vram, gtt }) = self.amdgpu {
            // On an APU both are the host's memory, and a plan for no machine in particular does not care which it is.
            let told_apart = self.facts.kind != DeviceKind::Integrated || knows_vram(plan);
            if told_apart {
                add(vec![Tier::Vram], vram.free_bytes(), BY_KERNEL);
                add(vec![Tier::Gtt, Tier::Host], gtt.free_bytes(), BY_KERNEL);
            } else {
                add(TIERS[1..].to_vec(), vram.free_bytes().saturating_add(gtt.free_bytes()), BY_KERNEL);
            }
        }
        self.budget.iter().for_each(|(tier, bytes)| add(vec![tier], bytes, BY_CALLER));
        rooms
    }

    /// Why a context of so many tokens does not fit where `fits_tokens` do, and what would help.
    pub fn refuse(&self, plan: &Plan, context_tokens: u32, fits_tokens: u32, request: &ContextRequest) -> NoRoom {
        NoRoom {
            artifact: self.artifact.to_owned(),
            device: self.facts.name.clone(),
            context_tokens,
            slots: request.slots,
            rooms: self.rooms(plan, context_tokens, request),
            fits_tokens,
            replan: self.replan(plan, context_tokens, request),
        }
    }

    /// All that there is of each tier, if that is enough for the whole model. Slices and KV groups lie in one tier as a whole,
    /// so that as much as the largest of them may stay empty: that is left as a margin.
    fn replan(&self, plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Option<(Vec<(Tier, u64)>, u32)> {
        let mut rooms = self.rooms(plan, context_tokens, request);
        let mut sizes = Vec::new();
        for tier in plan.machine.gpu_tiers().map(|tier| tier.tier) {
            let its = |room: &&mut Room| room.tiers.contains(&tier);
            let found = rooms.iter_mut().filter(its).map(|room| room.found_bytes).fold(MOST_BYTES, u64::min);
            // What tiers share, only one of them can have.
            rooms.iter_mut().filter(its).for_each(|room| room.found_bytes -= found);
            sizes.push((tier, found >> 20 << 20));
        }
        sizes.retain(|(_, bytes)| *bytes > 0);
        // In one memory it does not matter what is where.
        let helps = sizes.len() > 1;
        let total = sizes.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let needs = |tokens| {
            let all = planned_bytes(plan, tokens, request);
            let kv = plan.kv_groups.iter().map(|group| kv_bytes(group, tokens, request));
            let largest = plan.slices.iter().map(|slice| slice.bytes).chain(kv).max().unwrap_or(0);
            let buffers: u64 = plan.buffers.iter().map(|buffer| buffer.bytes).sum();
            all.iter().map(TierBytes::total).fold(largest.saturating_add(buffers), u64::saturating_add)
        };
        let tokens = longest(context_tokens, |tokens| needs(tokens) <= total);
        (helps && tokens > 0).then_some((sizes, tokens))
    }

    /// Of the memory that a buffer of `tier` gets.
    fn heap(&self, planned: &[TierBytes], tier: Tier) -> Option<usize> {
        let kind = *rank_memory_types(self.facts, resident_role(planned, tier)).first()?;
        Some(self.facts.memory_types[kind].heap)
    }
}

/// No machine has more; what is not known to be limited counts as this.
const MOST_BYTES: u64 = 1 << 50;

impl Room {
    /// Whether what is asked fits, with the KV cache in at most `share` of what the rest leaves.
    pub fn holds(&self, share: f64) -> bool {
        let kv = self.asked.iter().fold(0, |sum: u64, tier| sum.saturating_add(tier.kv));
        let rest = self.asked_bytes().saturating_sub(kv);
        rest <= self.found_bytes && kv as f64 <= share * (self.found_bytes - rest) as f64
    }

    fn asked_bytes(&self) -> u64 {
        self.asked.iter().map(TierBytes::total).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked: Vec<String> = self.asked.iter().map(TierBytes::to_string).collect();
        write!(f, "asked {}; found {} by {}", asked.join(" and "), size(self.found_bytes), self.by)?;
        match self.asked_bytes().saturating_sub(self.found_bytes) {
            0 => Ok(()),
            missing => write!(f, "; {} are missing", size(missing)),
        }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoRoom { device, context_tokens, slots, .. } = self;
        write!(f, "model does not fit {device} with a context of {context_tokens} tokens")?;
        if *slots > 1 {
            write!(f, " in each of {slots} slots")?;
        }
        for room in self.rooms.iter().filter(|room| !room.asked.is_empty()) {
            write!(f, "\n  {room}")?;
        }
        match self.fits_tokens {
            0 => write!(f, "\n  a shorter context is not enough")?,
            fits => write!(f, "\n  a shorter context: {fits} tokens fit (--ctx {fits})")?,
        }
        let Some((sizes, tokens)) = &self.replan else {
            return write!(
                f,
                "\n  other places are not enough, however the memory is split: a smaller model, or smaller weights"
            );
        };
        let sizes: Vec<String> =
            sizes.iter().map(|(tier, bytes)| format!("{}={}MiB", tier.name(), bytes >> 20)).collect();
        let artifact = quoted(&self.artifact.display().to_string());
        write!(f, "\n  other places: unicorn-run replan {artifact} --budget {} --context {tokens}", sizes.join(","))
    }
}

/// As a shell takes it.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "._-/+=:@%".contains(letter);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Whether the plan was made for a machine whose VRAM is known.
pub fn knows_vram(plan: &Plan) -> bool {
    plan.machine.tiers.iter().any(|tier| tier.tier == Tier::Vram && tier.budget_bytes.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::amdgpu::Part;
    use crate::device::plan::tests::facts;
    use crate::error::LoadError;
    use crate::memory::residency::choose_context;
    use crate::memory::residency::tests::{card, plan, request};
    use unicorn_artifact::{MachinePlan, Reader, SlicePlan, TierPlan};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Slices in tiers of a machine of whose VRAM so much is known; KV and activations of [`plan`] in VRAM.
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

    fn refused(
        plan: &Plan,
        facts: &DeviceFacts,
        amdgpu: Option<Amdgpu>,
        budget: &str,
        asked: Option<u32>,
    ) -> Result<u32, String> {
        let budget = if budget.is_empty() { Budget::default() } else { budget.parse().unwrap() };
        let memory = Memory { artifact: Path::new("my models/m.unicorn"), facts, amdgpu, budget: &budget };
        choose_context(plan, &memory, &request(asked)).map_err(|error| {
            assert!(matches!(error, LoadError::NoRoom(_)), "{error}");
            error.to_string()
        })
    }

    fn amdgpu(vram: u64, gtt: u64) -> Option<Amdgpu> {
        let part = |total_bytes| Part { total_bytes, used_bytes: 100 * MIB };
        Some(Amdgpu { vram: part(vram), gtt: part(gtt) })
    }

    /// As RADV has it: one memory, made up as two heaps.
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
    fn a_plan_for_a_larger_carve_out_says_what_was_found_and_how_to_plan_anew() {
        let plan = split(Some(16 * GIB), &[(GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Gtt)]);
        assert_eq!(refused(&plan, &apu(), amdgpu(16 * GIB, 8 * GIB), "", Some(4096)), Ok(4096));
        assert_eq!(
            refused(&plan, &apu(), amdgpu(2 * GIB, 8 * GIB), "", Some(4096)).unwrap_err(),
            "model does not fit AMD Radeon 780M with a context of 4096 tokens\n  \
             asked 3.03 GiB of vram (weights 3.00 GiB, KV 32.00 MiB, activations 1.00 MiB, other 4.00 KiB) and 1.00 GiB of gtt \
             (weights 1.00 GiB, KV 0 bytes, activations 0 bytes, other 0 bytes); found 30.00 GiB by the driver\n  \
             asked 3.03 GiB of vram (weights 3.00 GiB, KV 32.00 MiB, activations 1.00 MiB, other 4.00 KiB); found 1.90 GiB by \
             the kernel (amdgpu's mem_info files); 1.13 GiB are missing\n  \
             asked 1.00 GiB of gtt (weights 1.00 GiB, KV 0 bytes, activations 0 bytes, other 0 bytes); found 7.90 GiB by the \
             kernel (amdgpu's mem_info files)\n  \
             a shorter context is not enough\n  \
             other places: unicorn-run replan 'my models/m.unicorn' --budget vram=1948MiB,gtt=8092MiB --context 4096"
        );
        // Planned for no machine in particular, it does not care which of the two it gets.
        let any = split(None, &[(GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Vram)]);
        assert_eq!(refused(&any, &apu(), amdgpu(GIB, 8 * GIB), "", Some(4096)), Ok(4096));
    }

    #[test]
    fn a_card_with_less_memory_is_asked_for_no_more_than_it_has() {
        let mut card = small_windows("a card", DeviceKind::Discrete);
        card.heaps = self::card().heaps[..2].to_vec();
        let plan = split(Some(48 * GIB), &[(GIB, Tier::Vram); 30]);
        let text = refused(&plan, &card, None, "", Some(4096)).unwrap_err();
        assert!(text.contains("found 24.00 GiB by the driver; 6.03 GiB are missing"), "{text}");
        assert!(text.ends_with("--budget vram=24576MiB,gtt=65536MiB --context 4096"), "{text}");
        // The default asks for no long context, and says the same.
        let text = refused(&plan, &card, None, "", None).unwrap_err();
        assert!(text.starts_with("model does not fit a card with a context of 512 tokens"), "{text}");
    }

    #[test]
    fn where_a_shorter_context_is_enough_it_is_said() {
        let budget = "vram=1100MiB";
        let plan = split(Some(16 * GIB), &[(GIB, Tier::Vram)]);
        let software = facts(0, "llvmpipe", DeviceKind::Cpu);
        let text = refused(&plan, &software, None, budget, Some(65_536)).unwrap_err();
        // 8 KiB a token in 75 MiB, in whole pages.
        let fits = 9_584;
        assert!(text.contains(&format!("a shorter context: {fits} tokens fit (--ctx {fits})")), "{text}");
        assert_eq!(refused(&plan, &software, None, budget, Some(fits)), Ok(fits));
        assert!(refused(&plan, &software, None, budget, Some(fits + 1)).is_err());
    }

    #[test]
    fn what_fits_nowhere_is_not_planned_anew() {
        let plan = split(Some(16 * GIB), &[(GIB, Tier::Vram), (GIB, Tier::Vram), (GIB, Tier::Gtt)]);
        let text = refused(&plan, &apu(), amdgpu(GIB, 2 * GIB), "", Some(4096)).unwrap_err();
        assert!(
            text.ends_with(
                "a shorter context is not enough\n  other places are not enough, however the memory is split: \
                                a smaller model, or smaller weights"
            ),
            "{text}"
        );
        // One memory: there are no other places.
        let one = DeviceFacts {
            heaps: vec![Heap { bytes: 2 * GIB, ..apu().heaps[0] }],
            ..facts(0, "one", DeviceKind::Other)
        };
        assert!(refused(&plan, &one, None, "", Some(4096)).unwrap_err().contains("however the memory is split"));
    }

    #[test]
    fn memory_of_an_npu_is_none_of_a_gpus() {
        let plan = split(Some(GIB), &[(MIB, Tier::Npu)]);
        let text = refused(&plan, &apu(), None, "", Some(512)).unwrap_err();
        assert!(
            text.contains("found 0 bytes by this program, which has kernels for no NPU; 1.00 MiB are missing"),
            "{text}"
        );
    }

    #[test]
    fn paths_are_quoted_as_a_shell_wants_them() {
        assert_eq!(quoted("/models/m-1.unicorn"), "/models/m-1.unicorn");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
