//! Files below `/proc`, `/sys`, `/usr` and `/dev` that describe a machine.

/// Files of a machine: path below its root, and contents.
pub type Tree<'t> = &'t [(&'t str, &'t str)];

/// A machine with an AMD APU, its NPU, and a kernel that is too old for the NPU.
pub const LAPTOP: Tree<'static> = &[
    ("proc/sys/kernel/osrelease", "6.12.9-amd64\n"),
    ("proc/meminfo", "MemTotal:       31457280 kB\nMemFree: 1 kB\n"),
    (
        "proc/self/limits",
        "Limit Soft Hard Units\nMax locked memory         8388608              8388608              bytes\n\
         Max address space         unlimited            unlimited            bytes\n",
    ),
    ("usr/share/vulkan/icd.d/radeon_icd.x86_64.json", "{}"),
    ("usr/share/vulkan/icd.d/README", "not a driver"),
    ("sys/class/drm/card1/device/uevent", "DRIVER=amdgpu\nPCI_ID=1002:15BF\n"),
    ("sys/class/drm/card1/device/vendor", "0x1002\n"),
    ("sys/class/drm/card1/device/device", "0x15bf\n"),
    ("sys/class/drm/card1/device/mem_info_vram_total", "536870912\n"),
    ("sys/class/drm/card1/device/mem_info_gtt_total", "16106127360\n"),
    ("sys/class/drm/card1/device/compute_reset_mask", "soft queue\n"),
    ("sys/class/drm/card1-eDP-1/status", "connected\n"),
    ("sys/module/amdgpu/parameters/lockup_timeout", "\n"),
    ("sys/module/amdgpu/parameters/gpu_recovery", "-1\n"),
    ("sys/module/amdgpu/parameters/gttsize", "-1\n"),
    ("sys/module/ttm/parameters/pages_limit", "3932160\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/bus/pci/devices/0000:c6:00.1/vendor", "0x1022\n"),
    ("sys/bus/pci/devices/0000:c6:00.1/device", "0x1502\n"),
    (
        "dev/kmsg",
        "3,100,5,-;amdgpu 0000:c5:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=4\n6,101,6,-;usb 1-1: ring the bell\n",
    ),
];

/// Writes the files into a folder of their own, as the root of a machine.
pub fn write_tree(tree: Tree<'_>) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, contents) in tree {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }
    root
}
