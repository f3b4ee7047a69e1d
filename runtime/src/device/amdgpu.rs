//! The kernel's figures of an AMD GPU's memory (amdgpu's `mem_info_*` files in sysfs): size, and use by all processes.

use std::path::{Path, PathBuf};

use crate::device::facts::DeviceFacts;
use crate::device::sysfs::{hex, is_numbered, names, number};

/// Memory of one AMD GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdgpuMemory {
    /// The GPU's own memory; on an APU, its carve-out of the host's.
    pub vram: MemoryFigures,
    /// Host memory that the GPU can read.
    pub gtt: MemoryFigures,
}

/// Size and use of one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// Size of the memory.
    pub total_bytes: u64,
    /// Bytes that all processes hold together.
    pub used_bytes: u64,
}

const AMD_VENDOR_ID: u32 = 0x1002;
const DRM_FOLDER: &str = "/sys/class/drm";

impl AmdgpuMemory {
    /// The current figures; `None` for devices of other vendors, and where not exactly one card has the device's IDs.
    pub fn read(facts: &DeviceFacts) -> Option<AmdgpuMemory> {
        AmdgpuMemory::read_below(facts, Path::new(DRM_FOLDER))
    }

    /// The same from another folder than `/sys/class/drm`.
    pub fn read_below(facts: &DeviceFacts, drm: &Path) -> Option<AmdgpuMemory> {
        let folder = device_folder(facts, drm)?;
        let bytes = |name: String| number(&folder.join(name));
        let figures = |name: &str| {
            let (total, used) = (format!("mem_info_{name}_total"), format!("mem_info_{name}_used"));
            Some(MemoryFigures { total_bytes: bytes(total)?, used_bytes: bytes(used)? })
        };
        Some(AmdgpuMemory { vram: figures("vram")?, gtt: figures("gtt")? })
    }
}

impl MemoryFigures {
    /// Bytes that no process holds.
    pub fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.used_bytes)
    }
}

/// The sysfs folder of the only card with the device's vendor and device ID.
fn device_folder(facts: &DeviceFacts, drm: &Path) -> Option<PathBuf> {
    if facts.vendor_id != AMD_VENDOR_ID {
        return None;
    }
    let has_ids = |folder: &PathBuf| {
        hex(&folder.join("vendor")) == Some(facts.vendor_id) && hex(&folder.join("device")) == Some(facts.device_id)
    };
    // card0, but not its outputs such as card0-HDMI-A-1.
    let cards = names(drm).into_iter().filter(|name| is_numbered(name, "card"));
    let mut folders = cards.map(|card| drm.join(card).join("device")).filter(has_ids);
    let folder = folders.next()?;
    folders.next().is_none().then_some(folder)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::device::facts::DeviceKind;
    use crate::device::facts::tests::facts;

    /// A DRM folder with the device of [`facts`]; `figures`: total and used bytes of VRAM, then of GTT.
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
    fn figures_are_read_for_the_only_card_of_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), [8, 3, 16, 1]);
        let apu = facts(0, "AMD Radeon 780M", DeviceKind::Integrated);
        let found = AmdgpuMemory::read_below(&apu, folder.path()).unwrap();
        assert_eq!((found.vram.free_bytes(), found.gtt.free_bytes()), (5, 15));
        let other = DeviceFacts { device_id: 0x744c, ..apu.clone() };
        assert_eq!(AmdgpuMemory::read_below(&other, folder.path()), None);
        assert_eq!(AmdgpuMemory::read_below(&DeviceFacts { vendor_id: 0x10de, ..apu.clone() }, folder.path()), None);
        // Two equal cards cannot be distinguished.
        write_card(folder.path(), "card2", [8, 3, 16, 1].map(|bytes: u64| bytes.to_string()));
        assert_eq!(AmdgpuMemory::read_below(&apu, folder.path()), None);
    }

    #[test]
    fn garbage_in_the_files_gives_no_figures() {
        let folder = tempfile::tempdir().unwrap();
        let apu = facts(0, "AMD Radeon 780M", DeviceKind::Integrated);
        for garbage in ["", "-1", "0x10", "99999999999999999999", "\u{0}"] {
            for place in 0..4 {
                let mut figures = [8, 3, 16, 1].map(|bytes: u64| bytes.to_string());
                figures[place] = garbage.into();
                write_card(folder.path(), "card1", figures);
                assert_eq!(AmdgpuMemory::read_below(&apu, folder.path()), None, "{garbage:?}");
            }
        }
        write(folder.path(), [0, u64::MAX, u64::MAX, 0]);
        let found = AmdgpuMemory::read_below(&apu, folder.path()).unwrap();
        assert_eq!((found.vram.free_bytes(), found.gtt.free_bytes()), (0, u64::MAX));
    }
}
