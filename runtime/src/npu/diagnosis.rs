//! Why there is no node of an NPU: from what the kernel reports.

use super::driver::NpuFacts;
use super::error::NpuError;
use crate::device::machine::{Machine, Npu, kernel_version};

/// The first kernel that has the amdxdna driver.
pub const FIRST_KERNEL: (u32, u32) = (6, 14);

/// The oldest firmware of Phoenix and Hawk Point that is known to work with that driver: the first that linux-firmware has
/// (`amdnpu/1502_00/npu.sbin.1.5.2.380`, with which AMD's Lizhi Hou asked for the driver's inclusion on dri-devel, 2024-12-06).
pub const FIRST_FIRMWARE: [u32; 4] = [1, 5, 2, 380];

/// Compares the firmware of an array of Phoenix or Hawk Point with the oldest that is known to work. The driver's own interface needs no such comparison: any version
/// since [`FIRST_KERNEL`] has all calls, and a call that is missing is an error by name.
///
/// # Errors
/// [`NpuError::TooOld`] with both versions. A driver that reports no version is not refused, and other arrays have other firmware.
pub fn check_firmware(facts: &NpuFacts) -> Result<(), NpuError> {
    let parts: Option<Vec<u32>> = facts.firmware.split('.').map(|part| part.parse().ok()).collect();
    match parts {
        Some(found) if facts.is_npu1() && found[..] < FIRST_FIRMWARE[..] => Err(NpuError::TooOld {
            what: "NPU's firmware",
            found: facts.firmware.clone(),
            expected: "1.5.2.380 or later: install a newer linux-firmware (amdnpu/1502_00/npu.sbin), then restart",
        }),
        _ => Ok(()),
    }
}

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
    use test_support::machine_files::{LAPTOP, Tree, write_tree};

    fn cause(more: Tree<'_>) -> String {
        let tree = [LAPTOP, more].concat();
        missing(&Machine::read(write_tree(&tree).path())).to_string()
    }

    #[test]
    fn firmware_that_is_older_than_what_is_known_to_work_is_refused_with_both_versions() {
        let facts = |firmware: &str, columns| NpuFacts {
            driver: "amdxdna 0.0".into(),
            firmware: firmware.into(),
            columns,
            rows: 6,
            core_rows: 4,
            clock_mhz: None,
        };
        for old in ["1.5.2.379", "1.4.9.900", "0.7.22.185", "1.5.2"] {
            let error = check_firmware(&facts(old, 5)).expect_err(old).to_string();
            let expected = format!("NPU's firmware is too old: found {old}, expected 1.5.2.380 or later");
            assert!(error.starts_with(&expected) && error.contains("linux-firmware"), "{error}");
        }
        for good in ["1.5.2.380", "1.5.5.391", "2.0.0.0", "as XRT loads it", "none"] {
            assert!(check_firmware(&facts(good, 5)).is_ok(), "{good}");
        }
        // XDNA2 counts otherwise.
        assert!(check_firmware(&facts("1.0.0.63", 8)).is_ok());
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
