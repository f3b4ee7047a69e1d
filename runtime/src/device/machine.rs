//! What the kernel reports about this machine: GPUs, drivers, limits. Read from sysfs, procfs and devfs below a root folder; what is
//! missing, unreadable or malformed is `None`.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::device::limits::{ADDRESS_SPACE, soft_limit};
use crate::device::sysfs::{MAX_TEXT_BYTES, hex, is_numbered, names, number, text};

/// What the kernel reports about the machine and this process's limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// Size of the host's memory.
    pub memory_bytes: Option<u64>,
    /// File names of the driver manifests that the Vulkan loader finds.
    pub vulkan_drivers: Vec<String>,
    /// DRM cards.
    pub gpus: Vec<Gpu>,
    /// Render nodes that this user has no permission to open.
    pub closed_nodes: Vec<String>,
    /// Parameters of the amdgpu module; `None`: it is not loaded.
    pub amdgpu: Option<AmdgpuParameters>,
    /// Pages that all GPUs together may pin (ttm).
    pub ttm_pages_limit: Option<u64>,
    /// AMD's NPU.
    pub npu: Npu,
    /// Soft limit of locked memory in bytes; `Some(None)`: unlimited.
    pub locked_bytes: Option<Option<u64>>,
    /// Soft limit of this process's address space in bytes; `Some(None)`: unlimited.
    pub address_space_bytes: Option<Option<u64>>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Lines of the kernel's log about a GPU that hung or was reset; `None`: this user may not read the log.
    pub resets: Option<Vec<String>>,
}

/// A DRM card.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// Name of the card, such as `card0`.
    pub card: String,
    /// Name of the kernel driver.
    pub driver: Option<String>,
    /// PCI vendor ID.
    pub vendor_id: Option<u32>,
    /// PCI device ID.
    pub device_id: Option<u32>,
    /// Size of VRAM by amdgpu; on an APU, of its carve-out.
    pub vram_bytes: Option<u64>,
    /// Size of GTT by amdgpu.
    pub gtt_bytes: Option<u64>,
    /// Kinds of compute ring reset that the driver supports, as it lists them.
    pub compute_resets: Option<String>,
}

/// Parameters of the loaded amdgpu module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AmdgpuParameters {
    /// Time after which a job counts as hung, in milliseconds, one or a list; -1 or nothing: the driver's default.
    pub lockup_timeout: Option<String>,
    /// Whether the driver resets a GPU that hangs; -1: the driver's default.
    pub gpu_recovery: Option<i64>,
    /// Size of GTT in MiB; -1: the driver's default.
    pub gttsize_mib: Option<i64>,
}

/// AMD's NPU and its driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Npu {
    /// There is a PCI device with the ID of an AMD NPU.
    pub present: bool,
    /// Entries of /dev/accel.
    pub nodes: Vec<String>,
    /// Version of the amdxdna module; `Some(None)`: it is loaded and has none.
    pub driver_version: Option<Option<String>>,
    /// Version of the firmware.
    pub firmware: Option<String>,
}

/// AMD's NPUs on the PCI bus: XDNA 1 (Phoenix, Hawk Point) and XDNA 2 (Strix, Strix Halo, Krackan).
const NPU_IDS: [(u32, u32); 2] = [(0x1022, 0x1502), (0x1022, 0x17f0)];
/// Where the Vulkan loader looks for drivers, below the root.
const DRIVER_FOLDERS: [&str; 3] = ["usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "etc/vulkan/icd.d"];
/// Most bytes that are read of the kernel's log.
const MAX_LOG_BYTES: usize = 8 << 20;
/// Without it, reading the end of the kernel's log blocks until the next line.
const O_NONBLOCK: i32 = 0o4000;

impl Machine {
    /// Reads everything below `root`, which is `/` except in tests.
    pub fn read(root: &Path) -> Machine {
        let at = |path: &str| root.join(path);
        let mut vulkan_drivers: Vec<String> = DRIVER_FOLDERS.iter().flat_map(|folder| names(&at(folder))).collect();
        vulkan_drivers.retain(|name| name.ends_with(".json"));
        let cards = names(&at("sys/class/drm")).into_iter().filter(|name| is_numbered(name, "card"));
        let limits = text(&at("proc/self/limits")).unwrap_or_default();
        let nodes = names(&at("dev/dri")).into_iter().filter(|name| is_numbered(name, "renderD"));
        Machine {
            kernel: text(&at("proc/sys/kernel/osrelease")),
            memory_bytes: text(&at("proc/meminfo")).and_then(|text| memory_bytes(&text)),
            vulkan_drivers,
            gpus: cards.map(|card| Gpu::read(&at("sys/class/drm"), card)).collect(),
            closed_nodes: nodes.filter(|node| is_closed(&at("dev/dri").join(node))).collect(),
            amdgpu: at("sys/module/amdgpu")
                .is_dir()
                .then(|| AmdgpuParameters::read(&at("sys/module/amdgpu/parameters"))),
            ttm_pages_limit: number(&at("sys/module/ttm/parameters/pages_limit")),
            npu: Npu::read(root),
            locked_bytes: soft_limit(&limits, "Max locked memory"),
            address_space_bytes: soft_limit(&limits, ADDRESS_SPACE),
            huge_pages: text(&at("sys/kernel/mm/transparent_hugepage/enabled")).and_then(|text| chosen(&text)),
            resets: log(&at("dev/kmsg")).map(|log| resets(&log)),
        }
    }
}

impl Gpu {
    fn read(folder: &Path, card: String) -> Gpu {
        let device = folder.join(&card).join("device");
        Gpu {
            driver: text(&device.join("uevent")).and_then(|text| driver(&text)),
            vendor_id: hex(&device.join("vendor")),
            device_id: hex(&device.join("device")),
            vram_bytes: number(&device.join("mem_info_vram_total")),
            gtt_bytes: number(&device.join("mem_info_gtt_total")),
            compute_resets: text(&device.join("compute_reset_mask")),
            card,
        }
    }
}

impl AmdgpuParameters {
    fn read(folder: &Path) -> AmdgpuParameters {
        AmdgpuParameters {
            lockup_timeout: text(&folder.join("lockup_timeout")),
            gpu_recovery: number(&folder.join("gpu_recovery")),
            gttsize_mib: number(&folder.join("gttsize")),
        }
    }
}

impl Npu {
    fn read(root: &Path) -> Npu {
        let pci = root.join("sys/bus/pci/devices");
        let is_npu = |name: &String| {
            let device = pci.join(name);
            hex(&device.join("vendor")).zip(hex(&device.join("device"))).is_some_and(|ids| NPU_IDS.contains(&ids))
        };
        let module = root.join("sys/module/amdxdna");
        Npu {
            present: names(&pci).iter().any(is_npu),
            nodes: names(&root.join("dev/accel")),
            driver_version: module.is_dir().then(|| text(&module.join("version"))),
            firmware: text(&root.join("sys/class/accel/accel0/device/fw_version")),
        }
    }
}

/// The positive numbers of a list of milliseconds such as `10000,60000`.
pub fn milliseconds(list: &str) -> Vec<u64> {
    list.split(',').filter_map(|part| part.trim().parse().ok()).filter(|&part| part > 0).collect()
}

/// Major and minor of a kernel's release.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn driver(uevent: &str) -> Option<String> {
    uevent.lines().find_map(|line| line.strip_prefix("DRIVER=")).map(str::to_owned)
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kib: u64 =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The choice in brackets.
fn chosen(choices: &str) -> Option<String> {
    let (_, rest) = choices.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen.to_owned())
}

fn is_closed(node: &PathBuf) -> bool {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(O_NONBLOCK).open(node);
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// The kernel's log so far; each read returns one record.
fn log(path: &Path) -> Option<String> {
    let mut file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).ok()?;
    let (mut bytes, mut record) = (Vec::new(), vec![0; MAX_TEXT_BYTES as usize]);
    while bytes.len() < MAX_LOG_BYTES {
        match file.read(&mut record) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&record[..count]),
            // A record was overwritten while it was read; the next read returns the next one.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            _ => break,
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn resets(log: &str) -> Vec<String> {
    let is_reset = |line: &&str| {
        let of_gpu = line.contains("amdgpu") || line.contains("NVRM") || line.contains("i915") || line.contains("[drm");
        let what = ["ring ", "GPU reset", "GPU HANG", "Xid"].iter().find(|what| line.contains(**what));
        of_gpu && what.is_some_and(|&what| what != "ring " || line.contains("timeout"))
    };
    // After the record's priority, number and time.
    let message = |line: &str| line.split_once(';').map_or(line, |(_, message)| message).trim().to_owned();
    log.lines().filter(is_reset).map(message).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use test_support::machine_files::{LAPTOP, Tree, write_tree};

    fn machine(tree: Tree<'_>) -> Machine {
        Machine::read(write_tree(tree).path())
    }

    #[test]
    fn a_laptop_is_read() {
        let machine = machine(LAPTOP);
        assert_eq!(machine.kernel.as_deref().and_then(kernel_version), Some((6, 12)));
        assert_eq!(machine.memory_bytes, Some(30 << 30));
        assert_eq!(machine.vulkan_drivers, ["radeon_icd.x86_64.json"]);
        let [gpu] = machine.gpus.as_slice() else { panic!("{:?}", machine.gpus) };
        assert_eq!((gpu.card.as_str(), gpu.driver.as_deref()), ("card1", Some("amdgpu")));
        assert_eq!((gpu.vendor_id, gpu.device_id), (Some(0x1002), Some(0x15bf)));
        assert_eq!((gpu.vram_bytes, gpu.gtt_bytes), (Some(512 << 20), Some(15 << 30)));
        assert_eq!(machine.amdgpu.unwrap().lockup_timeout, None);
        assert_eq!((machine.locked_bytes, machine.huge_pages.as_deref()), (Some(Some(8 << 20)), Some("madvise")));
        assert_eq!(machine.address_space_bytes, Some(None));
        assert!(machine.npu.present && machine.npu.nodes.is_empty() && machine.npu.driver_version.is_none());
        assert_eq!(machine.resets.unwrap(), ["amdgpu 0000:c5:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=4"]);
    }

    #[test]
    fn nothing_at_all_is_read_as_nothing() {
        assert_eq!(machine(&[]), Machine::default());
    }

    #[test]
    fn malformed_files_are_read_as_nothing() {
        let sound = LAPTOP;
        for garbage in ["", "\n", "-", "0x", "\u{0}\u{fffd}", "99999999999999999999999999", "[", "]", "a:b:c", "=,;=,;"]
        {
            let broken: Vec<(&str, &str)> = sound.iter().map(|(path, _)| (*path, garbage)).collect();
            let machine = machine(&broken);
            assert_eq!(machine.memory_bytes, None, "{garbage:?}");
            assert!(machine.gpus.iter().all(|gpu| gpu.vram_bytes.is_none()), "{garbage:?}");
        }
        // Folders where files should be.
        let folders: Vec<String> = sound.iter().map(|(path, _)| format!("{path}/below")).collect();
        let folders: Vec<(&str, &str)> = folders.iter().map(|path| (path.as_str(), "1")).collect();
        assert_eq!(machine(&folders).kernel, None);
    }

    #[test]
    fn files_that_are_not_text_are_read_as_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/meminfo"), [0xff, 0xfe, 0, 1]).unwrap();
        fs::write(root.path().join("proc/self/limits"), b"Max locked memory \xff\xff").unwrap();
        let machine = Machine::read(root.path());
        assert_eq!((machine.memory_bytes, machine.locked_bytes), (None, None));
    }

    #[test]
    fn lists_of_milliseconds_and_versions() {
        assert_eq!(milliseconds("10000, 60000,-1,x"), [10_000, 60_000]);
        assert_eq!(kernel_version("6.17.0-rc3+"), Some((6, 17)));
        assert_eq!(kernel_version("linux"), None);
    }
}
