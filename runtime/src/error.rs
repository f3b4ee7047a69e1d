//! What can go wrong while loading and while running: the things that a caller could not have known.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use unicorn_artifact::account::size;
use unicorn_artifact::{ParseError, Tier};

use crate::device::facts::Heap;
use crate::memory::insufficient_memory::InsufficientMemory;
use crate::memory::tier_bytes::TierBytes;

/// Why a model could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The artifact could not be opened, mapped or read.
    File { path: PathBuf, source: io::Error },
    /// The artifact's bytes are not what they should be.
    Artifact { path: PathBuf, source: ParseError },
    /// A target's modules do not unpack.
    Modules { target: String, source: ParseError },
    /// No Vulkan loader on this machine.
    NoLoader { detail: String },
    /// There is a loader and no driver that it could use.
    NoDriver,
    /// UNICORN_VALIDATE asks for a layer that is not installed.
    NoValidationLayer,
    /// No device fits the choice; `found` says what there is, one line a device.
    NoDevice { wanted: String, found: Vec<String> },
    /// No target of the artifact fits the device; `reasons` says why, one a target.
    NoTarget { device: String, reasons: Vec<String> },
    /// The context asked for does not fit the model or the device's bindings.
    Context { detail: String },
    /// The device has less memory than the plan asks for, or it is split otherwise. Nothing was allocated.
    InsufficientMemory(Box<InsufficientMemory>),
    /// A buffer is larger than the device lets a shader see.
    BindingTooLarge { what: String, bytes: u64, limit_bytes: u64 },
    /// The device has no room for `what`; the sums of the whole model and what each heap offers.
    OutOfMemory { what: String, wanted: Vec<TierBytes>, heaps: Vec<Heap> },
    /// No way of making weights resident, or not the one that was asked for, exists for a tier; one reason a way.
    Residency { tier: Tier, device: String, refusals: Vec<String> },
    /// By the driver's or the kernel's account, something else is resident than was allocated.
    NotResident { place: String, account: &'static str, expected: u64, tolerance: u64, found: u64 },
    /// The file is whole, but `wrong` of `of` parts of a slice are resident with other bytes; the first of them is `range`.
    WrongBytes { slice: usize, range: Range<u64>, wrong: usize, of: usize },
    /// The artifact asks for more than this program can do.
    Unsupported { what: String },
    /// The driver refused a kernel.
    Pipeline { name: String, source: Box<LoadError> },
    /// A Vulkan call failed.
    Vulkan { call: &'static str, code: String },
    /// The device stopped answering while the model was loading.
    DeviceLost { call: &'static str },
    /// The system has no thread that could load weights beside the first steps.
    NoThread { source: io::Error },
    /// Weights that were on their way beside this did not arrive.
    Loading { source: Arc<LoadError> },
}

/// Why a step could not run.
#[derive(Debug)]
pub enum RunError {
    ContextFull {
        context_tokens: u32,
        needed_tokens: u64,
    },
    UnknownToken {
        token: u32,
        vocab_size: u32,
    },
    NoTokens,
    NoFreeSlot {
        slots: u32,
    },
    /// A sliding window has already given back what `truncate` would need.
    Forgotten {
        len_tokens: u32,
        kept_from: u32,
    },
    /// The session's [`crate::CancelToken`] was cancelled; what was fed by whole steps stays.
    Cancelled,
    /// The artifact holds no program that gives what was asked for.
    NoProgram {
        wanted: &'static str,
    },
    /// Weights that were still on their way did not arrive, or not as they should.
    Loading {
        source: Arc<LoadError>,
    },
    /// A sampling parameter outside its range.
    Sampling {
        what: &'static str,
        expected: &'static str,
        found: String,
    },
    /// The device was reset or did not finish in time, several times in a row. The next call tries again.
    DeviceLost {
        detail: String,
    },
    /// The device was lost, and the model could not be made resident again. The next call tries again.
    NotRecovered {
        /// The call that failed.
        cause: String,
        source: Box<LoadError>,
    },
    OutOfMemory {
        what: String,
    },
    Vulkan {
        call: &'static str,
        code: String,
    },
}

impl LoadError {
    /// Whether another try, later, may do better: a device that is being reset is lost, has no memory, or is not there.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            LoadError::DeviceLost { .. } | LoadError::OutOfMemory { .. } | LoadError::NoDevice { .. } => true,
            LoadError::Vulkan { .. } => true,
            LoadError::Loading { source } => source.may_pass(),
            _ => false,
        }
    }
}

impl From<Arc<LoadError>> for LoadError {
    fn from(source: Arc<LoadError>) -> LoadError {
        LoadError::Loading { source }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::File { path, source } if source.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "cannot read {}: the file ends too early, it was cut while it was in use", path.display())
            }
            LoadError::File { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            LoadError::Artifact { path, source } => write!(f, "{}: {source}", path.display()),
            LoadError::Modules { target, source } => write!(f, "modules of target {target}: {source}"),
            LoadError::NoLoader { detail } => write!(
                f,
                "no Vulkan loader on this machine ({detail}); install libvulkan1 and a driver, for example \
                 mesa-vulkan-drivers"
            ),
            LoadError::NoDriver => write!(
                f,
                "no Vulkan driver on this machine; install the GPU's, or mesa-vulkan-drivers for AMD, Intel and the \
                 software device llvmpipe"
            ),
            LoadError::NoValidationLayer => write!(
                f,
                "UNICORN_VALIDATE is set, but the layer VK_LAYER_KHRONOS_validation is not installed; install \
                 vulkan-validationlayers or unset the variable"
            ),
            LoadError::NoDevice { wanted, found } if found.is_empty() => {
                write!(
                    f,
                    "no Vulkan device found, expected {wanted}; install a driver, for example mesa-vulkan-drivers"
                )
            }
            LoadError::NoDevice { wanted, found } => write!(
                f,
                "no Vulkan device fits: expected {wanted}, found {}; a software device is used only when it is \
                 selected by name or number",
                found.join(", ")
            ),
            LoadError::NoTarget { device, reasons } => {
                write!(f, "artifact has no kernels for {device}: {}", reasons.join("; "))
            }
            LoadError::Context { detail } => write!(f, "{detail}"),
            LoadError::InsufficientMemory(no_room) => no_room.fmt(f),
            LoadError::BindingTooLarge { what, bytes, limit_bytes } => {
                write!(f, "{what} takes {}, the device binds at most {}", size(*bytes), size(*limit_bytes))
            }
            LoadError::OutOfMemory { what, wanted, heaps } => {
                write!(f, "device memory is too small for {what}: the model needs ")?;
                for (index, tier) in wanted.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{tier}")?;
                }
                let offers: Vec<String> = heaps.iter().map(Heap::to_string).collect();
                write!(f, "; the device offers {}", offers.join(", "))
            }
            LoadError::Residency { tier, device, refusals } => {
                write!(f, "weights cannot reach {} of {device}: {}", tier.name(), refusals.join("; "))
            }
            LoadError::NotResident { place, account, expected, tolerance, found } => write!(
                f,
                "{account} reports {} resident in {place}, expected {} within {}; the plan needs other tier sizes",
                size(*found),
                size(*expected),
                size(*tolerance)
            ),
            LoadError::WrongBytes { slice, range, wrong, of } => write!(
                f,
                "weight slice {slice} is not resident as the artifact holds it: bytes {} to {} differ, and {wrong} of {of} such \
                 parts in all; the device's memory, its driver or this machine's memory is at fault",
                range.start, range.end
            ),
            LoadError::Unsupported { what } => write!(f, "{what}"),
            LoadError::Pipeline { name, source } => write!(f, "kernel {name}: {source}"),
            LoadError::Vulkan { call, code } => write!(f, "{call} failed with {code}"),
            LoadError::NoThread { source } => write!(
                f,
                "thread that loads weights beside the first steps cannot be started: {source}; expected one more \
                 thread within the limits on processes (ulimit -u) and memory, or a load that is not lazy"
            ),
            LoadError::Loading { source } => source.fmt(f),
            LoadError::DeviceLost { call } => write!(f, "device was lost while the model was loading: {call} failed"),
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::ContextFull { context_tokens, needed_tokens } => write!(
                f,
                "context is full: {context_tokens} tokens, needs {needed_tokens}; load with a longer context or start \
                 anew"
            ),
            RunError::UnknownToken { token, vocab_size } => {
                write!(f, "token id {token} is unknown: the vocabulary has {vocab_size} entries")
            }
            RunError::NoTokens => write!(f, "no tokens given: at least one is needed to get logits"),
            RunError::NoFreeSlot { slots } => {
                write!(f, "all sequence slots are taken: the model was loaded with {slots}")
            }
            RunError::Forgotten { len_tokens, kept_from } => write!(
                f,
                "sequence cannot be cut to {len_tokens} tokens: a sliding window kept only those from {kept_from} on"
            ),
            RunError::Cancelled => write!(f, "cancelled between two submissions"),
            RunError::Loading { source } => source.fmt(f),
            RunError::NoProgram { wanted } => write!(f, "artifact holds no program that gives {wanted}"),
            RunError::Sampling { what, expected, found } => write!(f, "{what} must be {expected}, found {found}"),
            RunError::DeviceLost { detail } => write!(f, "device was lost: {detail}"),
            RunError::NotRecovered { cause, source } => {
                write!(f, "device was lost ({cause}) and cannot be had back: {source}")
            }
            RunError::OutOfMemory { what } => write!(f, "memory ran out: {what}"),
            RunError::Vulkan { call, code } => write!(f, "{call} failed with {code}"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::File { source, .. } | LoadError::NoThread { source } => Some(source),
            LoadError::Artifact { source, .. } | LoadError::Modules { source, .. } => Some(source),
            LoadError::Pipeline { source, .. } => Some(source),
            LoadError::Loading { source } => source.source(),
            _ => None,
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::NotRecovered { source, .. } => Some(source),
            RunError::Loading { source } => source.source(),
            _ => None,
        }
    }
}
