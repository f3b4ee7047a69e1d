//! Memory in use according to the driver (VK_EXT_memory_budget, this process) and, on amdgpu, to the kernel (sysfs, all
//! processes), and its audit: after loading, both are compared with what was allocated. This finds weights that were allocated
//! and never became resident.

use std::fmt;

use unicorn_artifact::Plan;
use unicorn_artifact::account::size;

use crate::device::amdgpu::AmdgpuMemory;
use crate::device::facts::{DeviceFacts, DeviceKind, Heap};
use crate::error::LoadError;
use crate::memory::budget::has_vram_budget;

/// Memory in use at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes that this process holds of each heap; empty: the driver does not report it.
    heaps: Vec<u64>,
    amdgpu: Option<AmdgpuMemory>,
}

/// What a model allocated from one heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapAllocation {
    /// Bytes in allocations of its own.
    pub own: u64,
    /// Bytes of imported host memory, which drivers may or may not count.
    pub imported: u64,
}

/// Reported memory compared with what was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryAudit {
    /// One entry for each memory and source, all within the tolerance.
    Compared(Vec<AuditEntry>),
    /// Not compared: a software device's memory is the host's, which other processes use.
    SoftwareDevice,
    /// Not compared: neither driver nor kernel reports memory usage.
    NotReported,
}

/// One memory by one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Name of the memory, such as `device memory (heap 0)` or `vram`.
    pub memory: String,
    /// `driver` or `kernel`.
    pub source: &'static str,
    /// Bytes that were allocated.
    pub expected_bytes: u64,
    /// Bytes that the source reports in addition since before loading.
    pub found_bytes: u64,
}

/// Allowed difference: drivers round allocations up and allocate pipelines and page tables, and on amdgpu other processes count.
const TOLERANCE_BYTES: u64 = 256 << 20;
/// Or this fraction of the allocated bytes (one in 50), if that is more.
const TOLERANCE_DIVISOR: u64 = 50;

impl MemoryUsage {
    /// The current usage; `heaps` were just read from the driver.
    pub fn read(facts: &DeviceFacts, heaps: &[Heap]) -> MemoryUsage {
        MemoryUsage::new(facts, heaps, AmdgpuMemory::read(facts))
    }

    fn new(facts: &DeviceFacts, heaps: &[Heap], amdgpu: Option<AmdgpuMemory>) -> MemoryUsage {
        // A software device's heap is the host's memory, which every process uses.
        if facts.kind == DeviceKind::Cpu {
            return MemoryUsage::default();
        }
        let is_reported = facts.features.memory_budget;
        MemoryUsage { heaps: heaps.iter().filter(|_| is_reported).map(|heap| heap.used_bytes).collect(), amdgpu }
    }

    /// Compares the increase from `self` to `after` with what was `allocated` in between (one entry a heap).
    ///
    /// # Errors
    /// [`LoadError::NotResident`] with both numbers where they differ by more than the tolerance.
    pub fn audit(
        &self,
        after: &MemoryUsage,
        allocated: &[HeapAllocation],
        facts: &DeviceFacts,
        plan: &Plan,
    ) -> Result<MemoryAudit, LoadError> {
        let mut entries = Vec::new();
        for (heap, ((before, after), allocated)) in self.heaps.iter().zip(&after.heaps).zip(allocated).enumerate() {
            let place = if facts.heaps[heap].device_local { "device" } else { "host" };
            let comparison = Comparison {
                memory: format!("{place} memory (heap {heap})"),
                source: "driver",
                expected: (allocated.own, allocated.own + allocated.imported),
                found: after.saturating_sub(*before),
                limits_excess: true,
            };
            entries.extend(comparison.check()?);
        }
        if let (Some(before), Some(after)) = (self.amdgpu, after.amdgpu) {
            let own = |device_local| {
                let heaps = facts.heaps.iter().zip(allocated).filter(|(heap, _)| heap.device_local == device_local);
                heaps.map(|(_, allocated)| allocated.own).sum::<u64>()
            };
            let vram = after.vram.used_bytes.saturating_sub(before.vram.used_bytes);
            let gtt = after.gtt.used_bytes.saturating_sub(before.gtt.used_bytes);
            let comparison = |memory: &str, own, found| Comparison {
                memory: memory.into(),
                source: "kernel",
                expected: (own, own),
                found,
                // Other processes allocate, too.
                limits_excess: false,
            };
            // On an APU both are host memory, and a plan for no particular machine runs from either.
            let is_separate = facts.kind != DeviceKind::Integrated || has_vram_budget(plan);
            let comparisons = match is_separate {
                true => vec![comparison("vram", own(true), vram), comparison("gtt", own(false), gtt)],
                false => vec![comparison("vram and gtt", own(true) + own(false), vram.saturating_add(gtt))],
            };
            for comparison in comparisons {
                entries.extend(comparison.check()?);
            }
        }
        Ok(match entries.is_empty() {
            false => MemoryAudit::Compared(entries),
            true if facts.kind == DeviceKind::Cpu => MemoryAudit::SoftwareDevice,
            true => MemoryAudit::NotReported,
        })
    }
}

/// One memory by one source, to be checked.
struct Comparison {
    memory: String,
    source: &'static str,
    /// Smallest and largest number of bytes that may be reported, before the tolerance.
    expected: (u64, u64),
    found: u64,
    /// More than expected is an error, too.
    limits_excess: bool,
}

impl Comparison {
    /// `None` where nothing was allocated.
    fn check(self) -> Result<Option<AuditEntry>, LoadError> {
        let Comparison { memory, source, expected: (min, max), found, limits_excess } = self;
        let tolerance = TOLERANCE_BYTES.max(max / TOLERANCE_DIVISOR);
        if found.saturating_add(tolerance) < min || (limits_excess && found > max + tolerance) {
            return Err(LoadError::NotResident { place: memory, account: source, expected: max, tolerance, found });
        }
        Ok((max > 0).then_some(AuditEntry { memory, source, expected_bytes: max, found_bytes: found }))
    }
}

impl fmt::Display for MemoryAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryAudit::Compared(entries) => {
                let entries: Vec<String> = entries.iter().map(AuditEntry::to_string).collect();
                f.write_str(&entries.join(", "))
            }
            MemoryAudit::SoftwareDevice => f.write_str("not compared: a software device's memory is the host's"),
            MemoryAudit::NotReported => f.write_str("not compared: the driver reports no memory usage"),
        }
    }
}

impl fmt::Display for AuditEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AuditEntry { memory, source, expected_bytes, found_bytes } = self;
        write!(f, "{} of {} in {memory} by the {source}", size(*found_bytes), size(*expected_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::amdgpu;
    use crate::device::facts::tests::facts;
    use crate::memory::requirements::tests::plan;
    use unicorn_artifact::{Tier, TierPlan};

    const GIB: u64 = 1 << 30;

    fn heap(used_bytes: u64, device_local: bool) -> Heap {
        Heap { bytes: 16 * GIB, budget_bytes: Some(16 * GIB), used_bytes, device_local }
    }

    fn card(kind: DeviceKind) -> DeviceFacts {
        let mut card = facts(0, "card", kind);
        card.features.memory_budget = true;
        card.heaps = vec![heap(0, true), heap(0, false)];
        card
    }

    fn allocated(device: u64, host: u64) -> [HeapAllocation; 2] {
        [HeapAllocation { own: device, imported: 0 }, HeapAllocation { own: 0, imported: host }]
    }

    #[test]
    fn memory_that_the_driver_does_not_report_is_an_error() {
        let card = card(DeviceKind::Discrete);
        let usage = |device, host| MemoryUsage { heaps: vec![device, host], amdgpu: None };
        let before = usage(GIB, 0);
        let compare = |after: MemoryUsage| before.audit(&after, &allocated(8 * GIB, GIB), &card, &plan(None));
        assert_eq!(
            compare(usage(9 * GIB, GIB)).unwrap().to_string(),
            "8.00 GiB of 8.00 GiB in device memory (heap 0) by the driver, 1.00 GiB of 1.00 GiB in host memory (heap 1) by the \
             driver"
        );
        // Drivers may or may not count imported memory.
        assert!(compare(usage(9 * GIB, 0)).is_ok());
        assert_eq!(
            compare(usage(4 * GIB, GIB)).unwrap_err().to_string(),
            "driver reports 3.00 GiB resident in device memory (heap 0), expected 8.00 GiB within 256.00 MiB; the plan needs \
             other tier sizes"
        );
        assert!(compare(usage(12 * GIB, GIB)).is_err());
    }

    #[test]
    fn amdgpus_figures_are_compared_by_tier_where_the_plan_has_a_vram_budget() {
        let folder = tempfile::tempdir().unwrap();
        let mut apu = card(DeviceKind::Integrated);
        apu.features.memory_budget = false;
        let now = |vram: u64, gtt: u64| {
            amdgpu::tests::write(folder.path(), [GIB / 2, vram, 16 * GIB, gtt]);
            MemoryUsage::new(&apu, &apu.heaps, AmdgpuMemory::read_below(&apu, folder.path()))
        };
        let before = now(GIB / 4, GIB);
        // The carve-out is full, and the kernel placed the rest in GTT.
        let after = now(GIB / 2, 9 * GIB);
        let mut plan = plan(None);
        let audit = before.audit(&after, &allocated(8 * GIB, 0), &apu, &plan).unwrap();
        assert_eq!(audit.to_string(), "8.25 GiB of 8.00 GiB in vram and gtt by the kernel");
        plan.machine.tiers.push(TierPlan {
            tier: Tier::Vram,
            budget_bytes: Some(8 * GIB),
            bytes_per_s: None,
            readers: vec![],
            sparse_rows: false,
            source: String::new(),
        });
        let error = before.audit(&after, &allocated(8 * GIB, 0), &apu, &plan).unwrap_err().to_string();
        assert!(error.starts_with("kernel reports 256.00 MiB resident in vram, expected 8.00 GiB"), "{error}");
    }

    #[test]
    fn extreme_figures_of_the_kernel_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let apu = card(DeviceKind::Integrated);
        let of = |used: u64| {
            amdgpu::tests::write(folder.path(), [GIB / 2, used, 16 * GIB, used]);
            MemoryUsage::new(&apu, &[], AmdgpuMemory::read_below(&apu, folder.path()))
        };
        let (nothing, everything) = (of(0), of(u64::MAX));
        let compare = |before: &MemoryUsage, after| before.audit(after, &allocated(GIB, 0), &apu, &plan(None));
        // Other processes hold memory, too, so that an excess is no error.
        assert!(matches!(compare(&nothing, &everything), Ok(MemoryAudit::Compared(entries)) if entries.len() == 1));
        let error = compare(&everything, &nothing).unwrap_err().to_string();
        assert!(error.starts_with("kernel reports 0 bytes resident in vram and gtt, "), "{error}");
    }

    #[test]
    fn an_audit_without_reports_is_marked() {
        let software = card(DeviceKind::Cpu);
        let none = MemoryUsage::read(&software, &software.heaps);
        let audit = none.audit(&none, &allocated(GIB, 0), &software, &plan(None)).unwrap();
        assert_eq!(audit, MemoryAudit::SoftwareDevice);
        let silent = facts(0, "silent", DeviceKind::Virtual);
        let audit = MemoryUsage::default().audit(&MemoryUsage::default(), &[], &silent, &plan(None)).unwrap();
        assert_eq!(audit, MemoryAudit::NotReported);
    }
}
