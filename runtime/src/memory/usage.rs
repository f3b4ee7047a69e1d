//! What is resident by others' accounts, held against what was allocated: the driver's (VK_EXT_memory_budget, of this process) and
//! on amdgpu the kernel's (sysfs, of the whole machine). Weights that were allocated and never reached the GPU's memory show here.

use std::fmt;

use unicorn_artifact::Plan;

use crate::device::amdgpu::Amdgpu;
use crate::device::plan::{DeviceFacts, DeviceKind, Heap};
use crate::error::{LoadError, size};
use crate::memory::budget::knows_vram;

/// Two accounts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Bytes of each heap that this process holds; empty: the driver does not say.
    heaps: Vec<u64>,
    amdgpu: Option<Amdgpu>,
}

/// What a model allocated from one heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapBytes {
    pub own: u64,
    /// Host memory that the driver took; whether it counts is the driver's business.
    pub imported: u64,
}

/// Drivers round allocations up, make pipelines and page tables, and other processes come and go: the larger of this ...
const TOLERANCE_BYTES: u64 = 256 << 20;
/// ... and one part in so many of what was allocated.
const TOLERANCE_PART: u64 = 50;

impl Accounts {
    /// As they stand now; `heaps` are fresh from the driver.
    pub fn now(facts: &DeviceFacts, heaps: &[Heap]) -> Accounts {
        Accounts::of(facts, heaps, Amdgpu::now(facts))
    }

    fn of(facts: &DeviceFacts, heaps: &[Heap], amdgpu: Option<Amdgpu>) -> Accounts {
        // A software device's heap is the machine's memory, which everybody uses.
        if facts.kind == DeviceKind::Cpu {
            return Accounts::default();
        }
        let keeps = facts.features.memory_budget;
        Accounts { heaps: heaps.iter().filter(|_| keeps).map(|heap| heap.used_bytes).collect(), amdgpu }
    }

    /// Whether what was `allocated` (one a heap) since these accounts were taken is in those taken `after`. Says what was
    /// compared.
    ///
    /// # Errors
    /// [`LoadError::NotResident`] with both numbers.
    pub fn compare(
        &self,
        after: &Accounts,
        allocated: &[HeapBytes],
        facts: &DeviceFacts,
        plan: &Plan,
    ) -> Result<String, LoadError> {
        let mut compared = Vec::new();
        for (heap, ((before, after), allocated)) in self.heaps.iter().zip(&after.heaps).zip(allocated).enumerate() {
            let place = if facts.heaps[heap].device_local { "device" } else { "host" };
            let line = Line {
                place: format!("{place} memory (heap {heap})"),
                account: "the driver's account",
                expected: (allocated.own, allocated.own + allocated.imported),
                found: after.saturating_sub(*before),
            };
            compared.extend(line.check(true)?);
        }
        if let (Some(before), Some(after)) = (self.amdgpu, after.amdgpu) {
            let own = |device_local| {
                let heaps = facts.heaps.iter().zip(allocated).filter(|(heap, _)| heap.device_local == device_local);
                heaps.map(|(_, bytes)| bytes.own).sum::<u64>()
            };
            let vram = after.vram.used_bytes.saturating_sub(before.vram.used_bytes);
            let gtt = after.gtt.used_bytes.saturating_sub(before.gtt.used_bytes);
            let line = |place: &str, own, found| Line {
                place: place.into(),
                account: "the kernel's account",
                expected: (own, own),
                found,
            };
            // On an APU both are the host's memory, and a plan for no machine in particular does not care which it is.
            let told_apart = facts.kind != DeviceKind::Integrated || knows_vram(plan);
            let lines = match told_apart {
                true => vec![line("vram", own(true), vram), line("gtt", own(false), gtt)],
                false => vec![line("vram and gtt", own(true) + own(false), vram.saturating_add(gtt))],
            };
            for line in lines {
                compared.extend(line.check(false)?);
            }
        }
        Ok(match compared.is_empty() {
            false => compared.join(", "),
            true if facts.kind == DeviceKind::Cpu => "not compared: a software device's memory is the machine's".into(),
            true => "not compared: the driver keeps no account of memory".into(),
        })
    }
}

/// One place in one account.
struct Line {
    place: String,
    account: &'static str,
    /// Least and most.
    expected: (u64, u64),
    found: u64,
}

impl Line {
    /// `None` where nothing was expected. Others may add to an account that is not of this process alone.
    fn check(self, of_this_process: bool) -> Result<Option<String>, LoadError> {
        let (least, most) = self.expected;
        let tolerance = TOLERANCE_BYTES.max(most / TOLERANCE_PART);
        if self.found.saturating_add(tolerance) < least || (of_this_process && self.found > most + tolerance) {
            let Line { place, account, found, .. } = self;
            return Err(LoadError::NotResident { place, account, expected: most, tolerance, found });
        }
        Ok((most > 0).then(|| self.to_string()))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} in {} by {}", size(self.found), size(self.expected.1), self.place, self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::amdgpu;
    use crate::device::plan::tests::facts;
    use crate::memory::residency::tests::plan;
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

    fn allocated(device: u64, host: u64) -> [HeapBytes; 2] {
        [HeapBytes { own: device, imported: 0 }, HeapBytes { own: 0, imported: host }]
    }

    #[test]
    fn what_the_driver_does_not_hold_is_missed() {
        let card = card(DeviceKind::Discrete);
        let accounts = |device, host| Accounts { heaps: vec![device, host], amdgpu: None };
        let before = accounts(GIB, 0);
        let compare = |after: Accounts| before.compare(&after, &allocated(8 * GIB, GIB), &card, &plan(None));
        assert_eq!(
            compare(accounts(9 * GIB, GIB)).unwrap(),
            "8.00 GiB of 8.00 GiB in device memory (heap 0) by the driver's account, 1.00 GiB of 1.00 GiB in host memory (heap \
             1) by the driver's account"
        );
        // Whether imported memory counts is the driver's business.
        assert!(compare(accounts(9 * GIB, 0)).is_ok());
        assert_eq!(
            compare(accounts(4 * GIB, GIB)).unwrap_err().to_string(),
            "resident in device memory (heap 0) by the driver's account: 3.00 GiB, expected 8.00 GiB give or take 256.00 MiB; \
             give the artifact other places with `unicorn-run replan ARTIFACT --budget vram=SIZE,gtt=SIZE`"
        );
        assert!(compare(accounts(12 * GIB, GIB)).is_err());
    }

    #[test]
    fn amdgpus_account_tells_vram_from_gtt_where_the_plan_does() {
        let folder = tempfile::tempdir().unwrap();
        let mut apu = card(DeviceKind::Integrated);
        apu.features.memory_budget = false;
        let now = |vram: u64, gtt: u64| {
            amdgpu::tests::write(folder.path(), [GIB / 2, vram, 16 * GIB, gtt]);
            Accounts::of(&apu, &apu.heaps, Amdgpu::in_folder(&apu, folder.path()))
        };
        let before = now(GIB / 4, GIB);
        // The carve-out is full, and the kernel has put the rest into GTT.
        let after = now(GIB / 2, 9 * GIB);
        let mut plan = plan(None);
        let said = before.compare(&after, &allocated(8 * GIB, 0), &apu, &plan).unwrap();
        assert_eq!(said, "8.25 GiB of 8.00 GiB in vram and gtt by the kernel's account");
        plan.machine.tiers.push(TierPlan {
            tier: Tier::Vram,
            budget_bytes: Some(8 * GIB),
            bytes_per_s: None,
            readers: vec![],
            sparse_rows: false,
            source: String::new(),
        });
        let error = before.compare(&after, &allocated(8 * GIB, 0), &apu, &plan).unwrap_err().to_string();
        assert!(
            error.starts_with("resident in vram by the kernel's account: 256.00 MiB, expected 8.00 GiB"),
            "{error}"
        );
    }

    #[test]
    fn a_kernel_that_tells_nonsense_is_nobodys_end() {
        let folder = tempfile::tempdir().unwrap();
        let apu = card(DeviceKind::Integrated);
        let of = |used: u64| {
            amdgpu::tests::write(folder.path(), [GIB / 2, used, 16 * GIB, used]);
            Accounts::of(&apu, &[], Amdgpu::in_folder(&apu, folder.path()))
        };
        let (nothing, everything) = (of(0), of(u64::MAX));
        let compare = |before: &Accounts, after| before.compare(after, &allocated(GIB, 0), &apu, &plan(None));
        // Others hold memory, too: too much is no proof.
        assert!(compare(&nothing, &everything).unwrap().ends_with(" in vram and gtt by the kernel's account"));
        let error = compare(&everything, &nothing).unwrap_err().to_string();
        assert!(error.starts_with("resident in vram and gtt by the kernel's account: 0 bytes, "), "{error}");
    }

    #[test]
    fn without_accounts_it_says_so() {
        let software = card(DeviceKind::Cpu);
        let none = Accounts::now(&software, &software.heaps);
        let said = none.compare(&none, &allocated(GIB, 0), &software, &plan(None)).unwrap();
        assert_eq!(said, "not compared: a software device's memory is the machine's");
        let silent = facts(0, "silent", DeviceKind::Virtual);
        let said = Accounts::default().compare(&Accounts::default(), &[], &silent, &plan(None)).unwrap();
        assert_eq!(said, "not compared: the driver keeps no account of memory");
    }
}
