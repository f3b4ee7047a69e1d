//! Why the NPU cannot be used, or did not finish a command.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// What is wrong with the NPU. Each names the cause, what was found, and what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum NpuError {
    /// There is no NPU, or the kernel does not drive it.
    Missing {
        /// Cause and remedy, as a whole message.
        cause: String,
    },
    /// AMD's runtime (XRT) was requested and is not installed.
    NoXrt {
        /// Where its library was looked for.
        tried: Vec<PathBuf>,
    },
    /// The node may not be opened, or not now.
    Denied {
        /// The node.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// All contexts or columns are taken by other programs.
    Busy {
        /// The call that found them taken.
        call: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Driver or firmware lack what is needed.
    TooOld {
        /// Name of the driver or of the firmware.
        what: &'static str,
        /// Its version, or what it lacks.
        found: String,
        /// What is needed, and what to install.
        expected: &'static str,
    },
    /// The programs are for another array.
    OtherDevice {
        /// Array of the device.
        found: String,
        /// Array that the programs are for.
        expected: String,
    },
    /// A program without machine code of the array's cores.
    NoCorePrograms {
        /// Name of the program.
        program: String,
        /// Whether it has a control image, which configures the rest of the array.
        has_image: bool,
    },
    /// A call of the driver failed.
    Call {
        /// Name of the call.
        call: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The driver returned something impossible.
    Driver {
        /// What, expected, found.
        what: String,
    },
    /// A command did not finish in time. Its context was destroyed, which resets its columns.
    Hung {
        /// Name of the program.
        program: String,
        /// Time limit in milliseconds.
        limit_ms: u128,
    },
    /// A command finished with an error.
    Failed {
        /// Name of the program.
        program: String,
        /// State in which the command ended.
        state: String,
    },
}

impl fmt::Display for NpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NpuError::Missing { cause } => write!(f, "no NPU can be used: {cause}"),
            NpuError::NoXrt { tried } => {
                let tried: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
                let tried = tried.join(", ");
                write!(f, "XRT's library cannot be loaded: {tried}; expected XRT for NPUs (Debian: libxrt-npu2)")
            }
            NpuError::Denied { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "NPU at {path} may not be opened by this user: sudo usermod -aG render $USER, then log in again"
                )
            }
            NpuError::Denied { path, source } => {
                write!(f, "NPU at {path} cannot be opened: {source}; the driver needs an IOMMU (not amd_iommu=off)")
            }
            NpuError::Busy { call, source } => write!(
                f,
                "NPU is busy: {call} failed with {source}; other programs have its contexts, of which there are at most 6: end \
                 one of them (sudo fuser -v /dev/accel/accel0 lists them)"
            ),
            NpuError::TooOld { what, found, expected } => {
                write!(f, "{what} is too old: found {found}, expected {expected}")
            }
            NpuError::OtherDevice { found, expected } => {
                write!(f, "NPU programs of the artifact are for {expected}, found {found}")
            }
            NpuError::NoCorePrograms { program, has_image } => {
                let what = match has_image {
                    true => "a control image without programs for the array's cores",
                    false => "no control image, which configures the array and starts its cores",
                };
                write!(
                    f,
                    "NPU program {program} has {what}: their machine code needs Peano, AMD's compiler for AIE2, and this \
                     artifact cannot run on an NPU without it"
                )
            }
            NpuError::Call { call, source } => write!(f, "{call} of the NPU's driver failed: {source}"),
            NpuError::Driver { what } => write!(f, "NPU's driver: {what}"),
            NpuError::Hung { program, limit_ms } => write!(
                f,
                "NPU program {program} did not finish within {limit_ms} ms; its columns were reset (sudo dmesg | grep amdxdna)"
            ),
            NpuError::Failed { program, state } => {
                write!(f, "NPU program {program} ended in state {state} (sudo dmesg | grep amdxdna)")
            }
        }
    }
}

impl std::error::Error for NpuError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NpuError::Denied { source, .. } | NpuError::Busy { source, .. } | NpuError::Call { source, .. } => {
                Some(source)
            }
            _ => None,
        }
    }
}
