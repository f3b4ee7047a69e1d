//! Which memory type a buffer is allocated from, by its use: a pure function of [`DeviceFacts`].

use unicorn_artifact::Tier;

use crate::device::facts::{DeviceFacts, MemoryType};

/// Use of a buffer, as far as its memory type depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferUse {
    /// Read by kernels, in the plan's tier. `total_bytes`: all that the model keeps in that tier.
    Resident { tier: Tier, total_bytes: u64 },
    /// Written by the host before a step.
    Upload,
    /// Written by the host and copied to a resident buffer.
    Staging,
    /// Read by the host after a step.
    Readback,
}

/// Indices of the device's memory types that suit `usage`, best first.
pub fn rank_memory_types(facts: &DeviceFacts, usage: BufferUse) -> Vec<usize> {
    let pick = |suits: &dyn Fn(&MemoryType) -> bool, score: &dyn Fn(&MemoryType) -> u32| {
        let mut types: Vec<usize> =
            (0..facts.memory_types.len()).filter(|&index| suits(&facts.memory_types[index])).collect();
        types.sort_by_key(|&index| std::cmp::Reverse(score(&facts.memory_types[index])));
        types
    };
    match usage {
        BufferUse::Resident { tier: Tier::Npu | Tier::Vram, total_bytes } => {
            // Host-visible device memory saves a copy, but only if its heap holds all of the model's bytes. Where hidden memory would
            // come from the same heap, nothing is gained by it: RADV on an APU, whose heap may be smaller than the memory.
            let has_larger_heap = |kind: &MemoryType| {
                facts
                    .memory_types
                    .iter()
                    .any(|other| other.device_local && facts.heaps[other.heap].bytes > facts.heaps[kind.heap].bytes)
            };
            let fits_window = |kind: &MemoryType| {
                let holds_all = facts.heaps[kind.heap].available_bytes() >= total_bytes;
                kind.host_visible && (holds_all || kind.device_local && !has_larger_heap(kind))
            };
            let own = pick(&|kind| kind.device_local && (fits_window(kind) || !kind.host_visible), &|kind| {
                2 * u32::from(fits_window(kind)) + u32::from(kind.host_coherent)
            });
            if own.is_empty() { pick(&|kind| kind.device_local || kind.host_visible, &|_| 0) } else { own }
        }
        BufferUse::Resident { tier: Tier::Gtt | Tier::Host, total_bytes } => {
            let own = pick(&|kind| kind.host_visible && !kind.device_local, &|kind| {
                2 * u32::from(kind.host_coherent) + u32::from(!kind.host_cached)
            });
            if own.is_empty() {
                rank_memory_types(facts, BufferUse::Resident { tier: Tier::Vram, total_bytes })
            } else {
                own
            }
        }
        BufferUse::Upload => {
            // Coherent, because the host writes while a submission reads neighbouring bytes, which a flush would include. Vulkan
            // guarantees a coherent host-visible type.
            pick(&|kind| kind.host_visible && kind.host_coherent, &|kind| u32::from(kind.device_local))
        }
        BufferUse::Staging => {
            pick(&|kind| kind.host_visible, &|kind| 2 * u32::from(kind.host_coherent) + u32::from(!kind.device_local))
        }
        BufferUse::Readback => pick(&|kind| kind.host_visible, &|kind| {
            4 * u32::from(kind.host_cached) + 2 * u32::from(kind.host_coherent) + u32::from(!kind.device_local)
        }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::device::facts::tests::facts;
    use crate::device::facts::{DeviceKind, Heap};

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

    /// A card with 24 GiB of VRAM, 64 GiB of host memory and a host-visible window of 256 MiB into VRAM.
    pub(crate) fn card() -> DeviceFacts {
        let heap = |bytes, device_local| Heap { bytes, budget_bytes: None, used_bytes: 0, device_local };
        DeviceFacts {
            heaps: vec![heap(24 * GIB, true), heap(64 * GIB, false), heap(256 * MIB, true)],
            memory_types: vec![kind(0, "d"), kind(1, "vc"), kind(1, "vck"), kind(2, "dvc")],
            ..facts(0, "card", DeviceKind::Discrete)
        }
    }

    #[test]
    fn weights_go_where_the_host_can_write_only_if_all_fit_there() {
        let small = BufferUse::Resident { tier: Tier::Vram, total_bytes: 100 * MIB };
        let large = BufferUse::Resident { tier: Tier::Vram, total_bytes: GIB };
        assert_eq!(rank_memory_types(&card(), small), [3, 0]);
        assert_eq!(rank_memory_types(&card(), large), [0]);
    }

    #[test]
    fn weights_are_written_in_place_where_all_device_memory_is_one_heap() {
        // RADV on an APU: two thirds of the memory count as the device's, and more can be allocated.
        let apu = DeviceFacts {
            heaps: vec![card().heaps[1], card().heaps[0]],
            memory_types: vec![kind(1, "d"), kind(0, "vc"), kind(1, "dvc"), kind(0, "vck")],
            ..facts(0, "apu", DeviceKind::Integrated)
        };
        assert_eq!(rank_memory_types(&apu, BufferUse::Resident { tier: Tier::Vram, total_bytes: 30 * GIB }), [2, 0]);
    }

    #[test]
    fn host_tiers_prefer_uncached_and_readback_prefers_cached() {
        assert_eq!(rank_memory_types(&card(), BufferUse::Resident { tier: Tier::Gtt, total_bytes: GIB }), [1, 2]);
        assert_eq!(rank_memory_types(&card(), BufferUse::Upload)[0], 3);
        assert_eq!(rank_memory_types(&card(), BufferUse::Staging)[0], 1);
        assert_eq!(rank_memory_types(&card(), BufferUse::Readback)[0], 2);
        // One memory type, as on llvmpipe.
        let one = facts(0, "llvmpipe", DeviceKind::Cpu);
        assert_eq!(rank_memory_types(&one, BufferUse::Resident { tier: Tier::Gtt, total_bytes: GIB }), [0]);
    }
}
