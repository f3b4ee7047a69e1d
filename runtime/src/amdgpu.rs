//! The kernel's figures of an AMD GPU's memory: what all processes together hold, and how much there is.

use std::fs;
use std::path::{Path, PathBuf};

use crate::device_plan::DeviceFacts;

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
        let number = |name: String| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
        let part = |name: &str| {
            let (total, used) = (format!("mem_info_{name}_total"), format!("mem_info_{name}_used"));
            Some(Part { total_bytes: number(total)?, used_bytes: number(used)? })
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
        let number = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
        };
        number("vendor") == Some(facts.vendor_id) && number("device") == Some(facts.device_id)
    };
    let cards = fs::read_dir(sysfs).ok()?.flatten().filter(|entry| {
        // card0, and not its outputs such as card0-HDMI-A-1.
        let name = entry.file_name();
        name.to_str().and_then(|name| name.strip_prefix("card")).is_some_and(|number| number.parse::<u32>().is_ok())
    });
    let mut folders = cards.map(|entry| entry.path().join("device")).filter(is_ours);
    let folder = folders.next()?;
    folders.next().is_none().then_some(folder)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::device_plan::DeviceKind;
    use crate::device_plan::tests::facts;

    /// A folder like the kernel's, with the device of [`facts`]: VRAM and GTT, total and used of each.
    pub(crate) fn write(folder: &Path, figures: [u64; 4]) {
        let device = folder.join("card1/device");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(folder.join("card1-HDMI-A-1/device")).unwrap();
        let put = |name: &str, text: String| fs::write(device.join(name), text + "\n").unwrap();
        put("vendor", "0x1002".into());
        put("device", "0x15bf".into());
        let names = ["mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_total", "mem_info_gtt_used"];
        names.iter().zip(figures).for_each(|(name, bytes)| put(name, bytes.to_string()));
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
        assert_eq!(Amdgpu::in_folder(&DeviceFacts { vendor_id: 0x10de, ..apu }, folder.path()), None);
    }
}
