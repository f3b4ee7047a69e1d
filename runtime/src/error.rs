//! What can go wrong while loading and while running: the things that a caller could not have known.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use unicorn_artifact::account::size;
use unicorn_artifact::printable::printable;
use unicorn_artifact::step::is_image_row;
use unicorn_artifact::{ParseError, Tier};

use crate::device::facts::Heap;
use crate::memory::insufficient_memory::InsufficientMemory;
use crate::memory::tier_bytes::TierBytes;
use crate::npu::NpuError;

/// Why a model could not be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The artifact could not be opened, mapped or read.
    File {
        /// Path of the artifact.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is not a valid artifact, or its bytes differ from its hashes.
    Artifact {
        /// Path of the artifact.
        path: PathBuf,
        /// The first violation of the format that was found.
        source: ParseError,
    },
    /// A target's SPIR-V modules cannot be unpacked.
    Modules {
        /// Name of the target.
        target: String,
        /// The first violation of the format that was found.
        source: ParseError,
    },
    /// No Vulkan loader on this machine.
    NoLoader {
        /// Message of the dynamic linker.
        detail: String,
    },
    /// There is a Vulkan loader, but no driver that it can load.
    NoDriver,
    /// The environment variable `UNICORN_VALIDATE` is set, but the validation layer is not installed.
    NoValidationLayer,
    /// No device fits the choice.
    NoDevice {
        /// Description of the requested device.
        wanted: String,
        /// Descriptions of the devices that exist, one each.
        found: Vec<String>,
    },
    /// No target of the artifact fits the device.
    NoTarget {
        /// Name of the device.
        device: String,
        /// Why each target does not fit, one entry a target.
        reasons: Vec<String>,
    },
    /// A load option is outside its range.
    Option {
        /// Description of the option.
        what: &'static str,
        /// Its range.
        expected: &'static str,
        /// Its value.
        found: String,
    },
    /// The caller's progress callback returned `Break`. Nothing is left on the device.
    Cancelled,
    /// The requested context does not fit the model or the device's bindings.
    Context {
        /// What was requested and what is possible, in tokens or bytes.
        detail: String,
    },
    /// The device has less memory than the plan needs, or another split of it. Nothing was allocated.
    InsufficientMemory(Box<InsufficientMemory>),
    /// A buffer is larger than the device can bind to a shader.
    BindingTooLarge {
        /// Name of the buffer.
        what: String,
        /// Size of the buffer, in bytes.
        bytes: u64,
        /// Largest binding of the device, in bytes.
        limit_bytes: u64,
    },
    /// An allocation on the device failed.
    OutOfMemory {
        /// What the allocation was for.
        what: String,
        /// Bytes that the whole model needs, one entry a tier.
        wanted: Vec<TierBytes>,
        /// The device's heaps, with their sizes in bytes.
        heaps: Vec<Heap>,
    },
    /// No upload path, or not the requested one, is available for a tier.
    Residency {
        /// The tier whose weights cannot be uploaded.
        tier: Tier,
        /// Name of the device.
        device: String,
        /// Why each path is unavailable, one entry a path.
        refusals: Vec<String>,
    },
    /// The driver or the kernel reports another number of resident bytes than was allocated.
    NotResident {
        /// The memory that was measured.
        place: String,
        /// Source of the number: the driver or a kernel interface.
        account: &'static str,
        /// Allocated bytes.
        expected: u64,
        /// Largest accepted difference from `expected`, in bytes.
        tolerance: u64,
        /// Reported bytes.
        found: u64,
    },
    /// The file matches its hashes, but resident bytes of a weight slice differ from it.
    WrongBytes {
        /// Index of the slice in the plan.
        slice: usize,
        /// The first part that differs, in bytes from the start of the slice.
        range: Range<u64>,
        /// Number of parts that differ.
        wrong: usize,
        /// Number of parts of the slice.
        of: usize,
    },
    /// The artifact, or an option, needs a feature that this runtime or the device does not have.
    Unsupported {
        /// The missing feature, as a whole message.
        what: String,
    },
    /// The driver rejected a kernel.
    Pipeline {
        /// Name of the pipeline.
        name: String,
        /// The error of the call that compiles it.
        source: Box<LoadError>,
    },
    /// A Vulkan call failed.
    Vulkan {
        /// Name of the call.
        call: &'static str,
        /// Its result code.
        code: String,
    },
    /// The device was lost while the model was loading.
    DeviceLost {
        /// Name of the call that reported it.
        call: &'static str,
    },
    /// The plan uses an NPU, which cannot be used.
    Npu {
        /// Why.
        source: NpuError,
    },
    /// The thread of a lazy load could not be started.
    NoThread {
        /// Error of the operating system.
        source: io::Error,
    },
    /// A lazy load failed in its thread.
    Loading {
        /// Its error; all handles of the model share it.
        source: Arc<LoadError>,
    },
}

/// Why a step could not run.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The sequence would become longer than the context. Nothing was appended.
    ContextFull {
        /// Longest sequence, in tokens.
        context_tokens: u32,
        /// Length that the sequence would have, in tokens.
        needed_tokens: u64,
    },
    /// A token id is outside the vocabulary. Nothing was appended.
    UnknownToken {
        /// The token id.
        token: u32,
        /// Size of the vocabulary; ids are below it.
        vocab_size: u32,
    },
    /// No tokens were given, but at least one is needed to compute logits.
    NoTokens,
    /// Texts were to be independent of other requests, together with what makes them depend on those.
    NotDeterministic {
        /// What that is.
        with: &'static str,
    },
    /// A model was to draft for another one, whose tokenizer differs.
    OtherVocabulary {
        /// Names of the model that was to draft, and of the other.
        names: [String; 2],
    },
    /// Other sequences hold the pages of the KV cache that a step needs. Nothing was appended.
    NoPages,
    /// All sequences that the model was loaded for exist already.
    NoFreeSlot {
        /// Sequences that can exist at a time.
        slots: u32,
    },
    /// A sequence cannot be cut, because a sliding window no longer holds the pages that the next token attends to, or recurrent
    /// state includes more tokens.
    NotInCache {
        /// Requested length, in tokens.
        len_tokens: u32,
        /// Position of the first token that is still in the KV cache, or that recurrent state can be continued at.
        kept_from: u32,
    },
    /// The session's [`crate::CancelToken`] was cancelled. Tokens of completed steps stay in the cache.
    Cancelled,
    /// The artifact has no program that computes the requested output.
    NoProgram {
        /// Description of the requested output.
        wanted: &'static str,
    },
    /// A lazy load failed, or the file whose pages the device reads was changed, so no step can run.
    Loading {
        /// Its error; all sessions of the model share it.
        source: Arc<LoadError>,
    },
    /// A parameter of sampling, or of speculation, is outside its range.
    Sampling {
        /// Name of the parameter.
        what: &'static str,
        /// Its range.
        expected: &'static str,
        /// Its value.
        found: String,
    },
    /// The device was lost, or a step exceeded its time limit, several times in a row. The next call tries again.
    DeviceLost {
        /// What failed.
        detail: String,
    },
    /// The device was lost, and the model could not be made resident again. The next call tries again.
    NotRecovered {
        /// The call that failed.
        cause: String,
        /// Error of the last attempt.
        source: Box<LoadError>,
    },
    /// The NPU did not finish a command. Nothing was appended.
    Npu {
        /// How it failed.
        source: NpuError,
    },
    /// The host or the device ran out of memory during a step.
    OutOfMemory {
        /// Name of the call that failed.
        what: String,
    },
    /// A Vulkan call failed.
    Vulkan {
        /// Name of the call.
        call: &'static str,
        /// Its result code.
        code: String,
    },
}

impl LoadError {
    /// Whether a later attempt may succeed: a device that is being reset is lost, has no memory, or is not there.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            LoadError::DeviceLost { .. } | LoadError::OutOfMemory { .. } | LoadError::NoDevice { .. } => true,
            LoadError::Vulkan { .. } | LoadError::InsufficientMemory(_) => true,
            LoadError::Pipeline { source, .. } => source.may_pass(),
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

/// A path for a message: its name may be another's choice.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::File { path, source } if source.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "cannot read {}: the file ends too early, it was cut while it was in use", shown(path))
            }
            LoadError::File { path, source } => write!(f, "cannot read {}: {source}", shown(path)),
            LoadError::Artifact { path, source } => write!(f, "{}: {source}", shown(path)),
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
                "no Vulkan device fits: expected {wanted}; a software device is used only when it is selected by name or \
                 number; this machine has device {}",
                found.join("; device ")
            ),
            LoadError::NoTarget { device, reasons } => {
                write!(f, "artifact has no kernels for {device}: {}", reasons.join("; "))
            }
            LoadError::Option { what, expected, found } => write!(f, "{what} must be {expected}, found {found}"),
            LoadError::Cancelled => write!(f, "loading was cancelled"),
            LoadError::Context { detail } => write!(f, "{detail}"),
            LoadError::InsufficientMemory(memory) => memory.fmt(f),
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
            LoadError::Npu { source } => write!(f, "the artifact's plan uses an NPU: {source}"),
            LoadError::DeviceLost { call } => write!(f, "device was lost while the model was loading: {call} failed"),
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::ContextFull { context_tokens, needed_tokens } => write!(
                f,
                "context is full: {context_tokens} tokens, needs {needed_tokens}; load with a longer context or \
                 clear the session"
            ),
            RunError::UnknownToken { token, .. } if is_image_row(*token) => {
                write!(f, "row of an image that the model does not hold: make its rows again, and keep the image")
            }
            RunError::UnknownToken { token, vocab_size } => {
                write!(f, "token id {token} is unknown: the vocabulary has {vocab_size} entries")
            }
            RunError::NoTokens => write!(f, "no tokens given: at least one is needed to get logits"),
            RunError::NotDeterministic { with } => {
                write!(f, "texts cannot be independent of other requests with {with}: one of both must be off")
            }
            RunError::OtherVocabulary { names: [draft, larger] } => {
                write!(f, "{draft} cannot draft for {larger}: their tokenizers differ")
            }
            RunError::NoPages => f.write_str(
                "KV cache has no free page: other sequences hold them; end one, or load with more KV tokens",
            ),
            RunError::NoFreeSlot { slots } => {
                write!(f, "all sequence slots are taken: the model was loaded with {slots}")
            }
            RunError::NotInCache { len_tokens, kept_from } => write!(
                f,
                "sequence cannot be cut to {len_tokens} tokens: its cache can be continued from position {kept_from} only; clear the \
                 session"
            ),
            RunError::Cancelled => write!(f, "cancelled between two submissions"),
            RunError::Loading { source } => source.fmt(f),
            RunError::NoProgram { wanted } => write!(f, "artifact holds no program that gives {wanted}"),
            RunError::Sampling { what, expected, found } => write!(f, "{what} must be {expected}, found {found}"),
            RunError::DeviceLost { detail } => write!(f, "device was lost: {detail}"),
            RunError::NotRecovered { cause, source } => {
                write!(f, "device was lost ({cause}) and cannot be made ready again: {source}")
            }
            RunError::Npu { source } => source.fmt(f),
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
            LoadError::Npu { source } => Some(source),
            _ => None,
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::NotRecovered { source, .. } => Some(source),
            RunError::Loading { source } => source.source(),
            RunError::Npu { source } => source.source(),
            _ => None,
        }
    }
}
