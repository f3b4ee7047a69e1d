//! The runtime: makes an artifact resident on a Vulkan device and runs its steps. Small on purpose.
//!
//! ```text
//!  artifact ─ ArtifactView ─┬─ device_plan  facts of each device → which device, which target   (pure)
//!                           ├─ residency    what goes into which memory, how far the context reaches (pure)
//!                           ├─ room         whether the device has what the plan asks, and what to do if not (pure)
//!                           ├─ ways         how weights get there: what exists is tried, what is fastest measured
//!                           ├─ route        in which pieces and in which order (pure)
//!                           ├─ delivery     the way from end to end; loading: the same beside the first steps
//!                           ├─ held         whether the driver and the kernel (sysfs) agree that they are there
//!                           ├─ checksum     whether what is there is what the file holds, hashed on the device
//!                           ├─ resident     follows both: buffers, weights, pipelines (or pipeline_cache), programs,
//!                           │               cut by pace into submissions that stay short, a long dispatch into bands
//!                           ├─ model        holds what was loaded, for sessions to share
//!                           ├─ recovery     has a lost device back; each session's journal makes its cache anew
//!                           ├─ engine       one step: what the host writes, the submission, what the host reads
//!                           ├─ session      tokens in, tokens or logits out; chunks picks programs, pages keeps tables
//!                           ├─ batch        a step of several sessions; generate: steps of one or several, ahead of the host,
//!                           │               of which multistep says how many a submission has
//!                           └─ scheduler    requests that come and go between steps, and which of them each step is for
//!  looked at from outside: profile (the time of each dispatch), kernel_statistics (what the driver made of each kernel),
//!                          tune (the time of each alternative, from which tuning makes the target that is loaded),
//!                          bandwidth (of reads from its memory), transfers (to its memory)
//!  vk (unsafe inside, safe outside): instance · facts · device · import · memory · cache · pipeline · stamps · record · submit ·
//!                                    statistics
//! ```
//!
//! In: an artifact and token ids. Out: token ids, or logits on request. This crate reads no tensor name, knows no
//! model family and does not look inside a SPIR-V module: it runs the list of dispatches that the artifact holds. Text
//! (tokenizer, chat template, command line, HTTP) belongs to the `unicorn-run` binary behind feature `cli`.

mod device;
pub mod error;
mod load;
mod memory;
mod model;
mod options;
mod parallel;
pub mod probe;
mod program;
mod report;
mod resident;
pub mod session;
mod step;
pub mod tune;
mod vk;

pub use device::choice::{DeviceChoice, choose_device, choose_target};
pub use device::facts::{DeviceFacts, DeviceFeatures, DeviceKind, Heap, MemoryType};
pub use error::{LoadError, RunError};
pub use load::upload::{UploadReport, Verification};
pub use load::upload_path::{TierUpload, UploadPath};
pub use memory::insufficient_memory::{BudgetSource, InsufficientMemory, MemoryBudget, Replan};
pub use memory::tier_bytes::TierBytes;
pub use memory::usage::{AuditEntry, MemoryAudit};
pub use model::Model;
pub use options::LoadOptions;
pub use probe::kernel_statistics::kernel_statistics;
pub use probe::transfers::{Transfers, measure_transfers};
pub use program::pipeline_cache::{PipelineReport, warm_pipeline_cache};
pub use program::profile;
pub use report::LoadReport;
pub use session::cancel::CancelToken;
pub use session::scheduler;
pub use session::session::{LogitsSink, Session};
pub use session::shared::Recovery;
pub use session::stream::{BatchRow, BatchTokens, Tokens};
pub use step::sampling::{Sampled, Sampling};
pub use tune::choices::{Choice, StepShape, Tuning, TuningReport};
pub use tune::measure::{Effort, TimedCandidate, TimedPipeline, TuneError};
pub use vk::crash;
#[cfg(feature = "fault-injection")]
pub use vk::faults::{Fault, FaultKind, inject, injected, limit_reads};
pub use vk::instance::{validation_errors, validation_messages};

/// What the kernel reports about this machine: for diagnosis and monitoring, not needed to run a model. Linux only in effect: without
/// sysfs and procfs every value is `None`.
pub mod machine {
    pub use crate::device::drm_usage::DrmUsage;
    pub use crate::device::gpu_activity::GpuActivity;
    pub use crate::device::limits::address_space_bytes;
    pub use crate::device::machine::{AmdgpuParameters, Gpu, Machine, Npu, kernel_version, milliseconds};
}

#[cfg(all(feature = "fault-injection", not(debug_assertions)))]
compile_error!("feature fault-injection is for tests, not for a release build");

/// Facts of every Vulkan device, in the loader's order.
///
/// # Errors
/// Without a Vulkan loader, or when the driver refuses to answer. No device at all is an empty list.
pub fn devices() -> Result<Vec<DeviceFacts>, LoadError> {
    vk::instance::Instance::create()?.devices()
}
