//! What is resident by others' accounts, held against what was allocated: the driver's (VK_EXT_memory_budget, of this process) and
//! on amdgpu the kernel's (sysfs, of the whole machine). Weights that were allocated and never reached the GPU's memory show here.

use std::fmt;
use std::path::{Path, PathBuf};

use artifacts::{Plan, Tier};

use crate::device_plan::{DeviceFacts, DeviceKind, Heap};
use crate::error::{LoadError, size};
use crate::sysfs::{hex, is_numbered, names, number};

/// Two accounts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Bytes of each heap that this process holds; empty: the driver does not say.
    heaps: Vec<u64>,
    amdgpu: Option<Amdgpu>,
}

/// What all processes hold, by the kernel's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amdgpu {
    vram: u64,
    gtt: u64,
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
const AMD: u32 = 0x1002;
const SYSFS: &str = "/sys/class/drm";

impl Accounts {
    /// As they stand now; `heaps` are fresh from the driver.
    pub fn now(facts: &DeviceFacts, heaps: &[Heap]) -> Accounts {
        Accounts::of(facts, heaps, Path::new(SYSFS))
    }

    fn of(facts: &DeviceFacts, heaps: &[Heap], sysfs: &Path) -> Accounts {
        // A software device's heap is the machine's memory, which everybody uses.
        if facts.kind == DeviceKind::Cpu {
            return Accounts::default();
        }
        let keeps = facts.features.memory_budget;
        Accounts {
            heaps: heaps.iter().filter(|_| keeps).map(|heap| heap.used_bytes).collect(),
            amdgpu: amdgpu_folder(facts, sysfs).and_then(|folder| Amdgpu::read(&folder)),
        }
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
            let (vram, gtt) = (after.vram.saturating_sub(before.vram), after.gtt.saturating_sub(before.gtt));
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

impl Amdgpu {
    fn read(folder: &Path) -> Option<Amdgpu> {
        let bytes = |name: &str| number(&folder.join(name));
        Some(Amdgpu { vram: bytes("mem_info_vram_used")?, gtt: bytes("mem_info_gtt_used")? })
    }
}

/// The kernel's folder of the device; `None` if there is not exactly one of its kind.
fn amdgpu_folder(facts: &DeviceFacts, sysfs: &Path) -> Option<PathBuf> {
    if facts.vendor_id != AMD {
        return None;
    }
    let is_ours = |folder: &PathBuf| {
        hex(&folder.join("vendor")) == Some(facts.vendor_id) && hex(&folder.join("device")) == Some(facts.device_id)
    };
    // card0, and not its outputs such as card0-HDMI-A-1.
    let cards = names(sysfs).into_iter().filter(|name| is_numbered(name, "card"));
    let mut folders = cards.map(|card| sysfs.join(card).join("device")).filter(is_ours);
    let folder = folders.next()?;
    folders.next().is_none().then_some(folder)
}

fn knows_vram(plan: &Plan) -> bool {
    plan.machine.tiers.iter().any(|tier| tier.tier == Tier::Vram && tier.budget_bytes.is_some())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::device_plan::tests::facts;
    use crate::residency::tests::plan;
    use artifacts::TierPlan;

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
        let device = folder.path().join("card1/device");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(folder.path().join("card1-HDMI-A-1/device")).unwrap();
        let write = |name: &str, text: &str| fs::write(device.join(name), text).unwrap();
        write("vendor", "0x1002\n");
        write("device", "0x15bf\n");
        let mut apu = card(DeviceKind::Integrated);
        apu.features.memory_budget = false;
        let now = |vram: u64, gtt: u64| {
            write("mem_info_vram_used", &format!("{vram}\n"));
            write("mem_info_gtt_used", &format!("{gtt}\n"));
            Accounts::of(&apu, &apu.heaps, folder.path())
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
    fn a_kernel_that_tells_nonsense_is_not_believed_and_nobodys_end() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("card1/device");
        fs::create_dir_all(&device).unwrap();
        let apu = card(DeviceKind::Integrated);
        let of = |used: &str| {
            for (file, text) in [("vendor", "0x1002"), ("device", "0x15bf")] {
                fs::write(device.join(file), text).unwrap();
            }
            fs::write(device.join("mem_info_vram_used"), used).unwrap();
            fs::write(device.join("mem_info_gtt_used"), used).unwrap();
            Accounts::of(&apu, &[], folder.path())
        };
        for garbage in ["", "-1", "0x10", "99999999999999999999", "\u{0}"] {
            assert_eq!(of(garbage), Accounts::default(), "{garbage:?}");
        }
        let (nothing, everything) = (of("0"), of(&u64::MAX.to_string()));
        let compare = |before: &Accounts, after| before.compare(after, &allocated(GIB, 0), &apu, &plan(None));
        // Others hold memory, too: too much is no proof.
        assert!(compare(&nothing, &everything).unwrap().ends_with(" in vram and gtt by the kernel's account"));
        let error = compare(&everything, &nothing).unwrap_err().to_string();
        assert!(error.starts_with("resident in vram and gtt by the kernel's account: 0 bytes, "), "{error}");

        // Two alike: nobody knows which is ours.
        of("0");
        fs::create_dir_all(folder.path().join("card2/device")).unwrap();
        for file in ["vendor", "device", "mem_info_vram_used", "mem_info_gtt_used"] {
            fs::copy(device.join(file), folder.path().join("card2/device").join(file)).unwrap();
        }
        assert_eq!(Accounts::of(&apu, &[], folder.path()), Accounts::default());
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
