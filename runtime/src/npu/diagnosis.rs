//! Why there is no node of an NPU: from what the kernel reports.

use super::error::NpuError;
use crate::device::machine::{Machine, Npu, kernel_version};

/// The first kernel that has the amdxdna driver.
pub const FIRST_KERNEL: (u32, u32) = (6, 14);

/// Why a machine without a node in /dev/accel has none, and what to do.
pub fn missing(machine: &Machine) -> NpuError {
    let Npu { present, driver_version, firmware, .. } = &machine.npu;
    let cause = match driver_version {
        _ if !present => {
            return NpuError::Missing { cause: "this machine has no AMD NPU (PCI device 1022:1502)".into() };
        }
        None => format!(
            "kernel {} has not loaded its driver amdxdna",
            machine.kernel.as_deref().unwrap_or("of unknown version")
        ),
        Some(_) => {
            let found = firmware.as_deref().unwrap_or("none that it reports");
            format!("amdxdna is loaded and made no node in /dev/accel: firmware is missing or too old (found {found})")
        }
    };
    NpuError::Missing { cause: format!("{cause}; expected {}", remedy(machine)) }
}

/// What a machine with an NPU needs to have a node in /dev/accel.
pub fn remedy(machine: &Machine) -> &'static str {
    let is_old = machine.kernel.as_deref().and_then(kernel_version).is_some_and(|version| version < FIRST_KERNEL);
    match machine.npu.driver_version {
        None if is_old => "a kernel from 6.14 on, which has amdxdna",
        None => "sudo modprobe amdxdna",
        Some(_) => "a newer linux-firmware with amdnpu/1502_00/npu.sbin; sudo dmesg | grep amdxdna names the version",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::machine::machine_files::{LAPTOP, Tree, write_tree};

    fn cause(more: Tree<'_>) -> String {
        let tree = [LAPTOP, more].concat();
        missing(&Machine::read(write_tree(&tree).path())).to_string()
    }

    #[test]
    fn each_cause_is_named_with_its_remedy() {
        let nothing = missing(&Machine::default()).to_string();
        assert!(nothing.contains("no AMD NPU"), "{nothing}");
        let old = cause(&[]);
        assert!(
            old.contains("kernel 6.12.9-amd64 has not loaded its driver amdxdna; expected a kernel from 6.14"),
            "{old}"
        );
        let recent = ("proc/sys/kernel/osrelease", "6.17.0\n");
        assert!(cause(&[recent]).contains("sudo modprobe amdxdna"));
        let loaded = cause(&[recent, ("sys/module/amdxdna/refcnt", "0\n")]);
        assert!(
            loaded.contains("firmware is missing or too old") && loaded.contains("newer linux-firmware"),
            "{loaded}"
        );
    }
}
