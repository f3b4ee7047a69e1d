//! The kernel's figures of an AMD GPU's memory: what all processes together hold, and how much there is.

use std::path::{Path, PathBuf};

use crate::device::plan::DeviceFacts;
use crate::device::sysfs::{hex, is_numbered, names, number};

/// One device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amdgpu {
    pub vram: Part,
    pub gtt: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub total_bytes: u64,
    pub used_bytes: u64,
}

const AMD: u32 = 0x1002;
const SYSFS: &str = "/sys/class/drm";

impl Amdgpu {
    /// As they stand now; `None` for other devices, and if there is not exactly one of this kind.
    pub fn now(facts: &DeviceFacts) -> Option<Amdgpu> {
        Amdgpu::in_folder(facts, Path::new(SYSFS))
    }

    pub fn in_folder(facts: &DeviceFacts, sysfs: &Path) -> Option<Amdgpu> {
        let folder = device_folder(facts, sysfs)?;
        let bytes = |name: String| number(&folder.join(name));
        let part = |name: &str| {
            let (total, used) = (format!("mem_info_{name}_total"), format!("mem_info_{name}_used"));
            Some(Part { total_bytes: bytes(total)?, used_bytes: bytes(used)? })
        };
        Some(Amdgpu { vram: part("vram")?, gtt: part("gtt")? })
    }
}

impl Part {
    pub fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.used_bytes)
    }
}

fn device_folder(facts: &DeviceFacts, sysfs: &Path) -> Option<PathBuf> {
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

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::device::plan::DeviceKind;
    use crate::device::plan::tests::facts;

    /// A folder like the kernel's, with the device of [`facts`]: VRAM and GTT, total and used of each.
    pub(crate) fn write(folder: &Path, figures: [u64; 4]) {
        write_card(folder, "card1", figures.map(|bytes| bytes.to_string()));
    }

    fn write_card(folder: &Path, card: &str, figures: [String; 4]) {
        let device = folder.join(card).join("device");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(folder.join(format!("{card}-HDMI-A-1/device"))).unwrap();
        let put = |name: &str, text: &str| fs::write(device.join(name), format!("{text}\n")).unwrap();
        put("vendor", "0x1002");
        put("device", "0x15bf");
        let names = ["mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_total", "mem_info_gtt_used"];
        names.iter().zip(figures).for_each(|(name, text)| put(name, &text));
    }

    #[test]
    fn figures_are_those_of_the_one_device_of_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), [8, 3, 16, 1]);
        let apu = facts(0, "AMD Radeon 780M", DeviceKind::Integrated);
        let found = Amdgpu::in_folder(&apu, folder.path()).unwrap();
        assert_eq!((found.vram.free_bytes(), found.gtt.free_bytes()), (5, 15));
        let other = DeviceFacts { device_id: 0x744c, ..apu.clone() };
        assert_eq!(Amdgpu::in_folder(&other, folder.path()), None);
        assert_eq!(Amdgpu::in_folder(&DeviceFacts { vendor_id: 0x10de, ..apu.clone() }, folder.path()), None);
        // Two alike: nobody knows which is ours.
        write_card(folder.path(), "card2", [8, 3, 16, 1].map(|bytes: u64| bytes.to_string()));
        assert_eq!(Amdgpu::in_folder(&apu, folder.path()), None);
    }

    #[test]
    fn a_kernel_that_tells_nonsense_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let apu = facts(0, "AMD Radeon 780M", DeviceKind::Integrated);
        for garbage in ["", "-1", "0x10", "99999999999999999999", "\u{0}"] {
            for place in 0..4 {
                let mut figures = [8, 3, 16, 1].map(|bytes: u64| bytes.to_string());
                figures[place] = garbage.into();
                write_card(folder.path(), "card1", figures);
                assert_eq!(Amdgpu::in_folder(&apu, folder.path()), None, "{garbage:?}");
            }
        }
        write(folder.path(), [0, u64::MAX, u64::MAX, 0]);
        let found = Amdgpu::in_folder(&apu, folder.path()).unwrap();
        assert_eq!((found.vram.free_bytes(), found.gtt.free_bytes()), (0, u64::MAX));
    }
}
