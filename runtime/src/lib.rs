//! The runtime: makes an artifact resident on a Vulkan device and runs its steps.
//!
//! ```text
//!  Model::load ─► device    facts of each device; which device, which target
//!                 memory    what each tier needs and has, the context, buffers, KV pages
//!                 load      weights: upload paths, order, verification, streaming while steps run
//!                 program   dispatch lists compiled, bound, split into submissions and recorded
//!                 tune      alternatives chosen by an earlier tuning; their measurement
//!                 resident  assembles these to a resident model, by the options, with a report
//!  Session ─────► session   one sequence, its journal and recovery; the scheduler of many
//!                 step      one forward pass: what is written, submitted and read
//!                 vk        Vulkan, wrapped; all of its unsafe code
//!                 npu       the NPU through the kernel's driver
//!  also:          probe     bandwidth, transfers, kernel statistics
//!                 machine   what the kernel reports about GPUs and limits
//! ```
//!
//! In: an artifact and token ids. Out: token ids, or logits on request. Not known here: tensor names, model families, what a SPIR-V
//! module contains, text (`unicorn-text`), HTTP (`unicorn-serve`), the command line (`unicorn-run`).
//!
//! Folders use only those before them in this order: `error`, `parallel`, `device`, `npu`, `vk`, `memory`, `program`, `load`, `probe`, `step`, `tune`,
//! `options`, `report`, `resident`, `session`, `model` (`tests/tests/folder_imports.rs`).
//!
//! # Example
//!
//! Loads an artifact on the best GPU, feeds a prompt and prints the ids of up to 32 tokens that follow:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use unicorn_runtime::{LoadOptions, Model, Sampling};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = LoadOptions::default().with(|options| options.context_tokens = Some(256));
//! let model = Model::load(Path::new("model.unicorn"), &options)?;
//! let mut session = model.session()?;
//! // `generate` appends the prompt's last token itself.
//! session.feed(&[1, 42])?;
//! for sampled in session.generate(7, &Sampling::default(), 32) {
//!     println!("{}", sampled?.token);
//! }
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

mod device;
pub mod error;
mod load;
mod memory;
mod model;
pub mod npu;
mod options;
mod parallel;
mod probe;
mod program;
mod report;
mod resident;
pub mod session;
mod step;
mod tune;
mod vk;

pub use device::choice::{DeviceChoice, choose_device, choose_target, misfit, vendor_name};
pub use device::facts::{DeviceFacts, DeviceFeatures, DeviceKind, Heap, MemoryType};
pub use error::{LoadError, RunError};
pub use load::artifact::DraftUse;
pub use load::upload::{UploadReport, Verification};
pub use load::upload_path::{TierUpload, UploadPath};
pub use memory::insufficient_memory::{BudgetSource, InsufficientMemory, MemoryBudget, Replan};
pub use memory::npu_memory::NpuMemory;
pub use memory::requirements::KvCapacity;
pub use memory::tier_bytes::TierBytes;
pub use memory::usage::{AuditEntry, MemoryAudit};
pub use model::Model;
pub use options::LoadOptions;
pub use probe::kernel_statistics::{Executable, Representation, kernel_statistics};
pub use probe::transfers::{Transfers, measure_transfers};
pub use program::pipeline_cache::{PipelineReport, warm_pipeline_cache};
pub use program::profile;
pub use report::{LoadReport, NpuReport};
pub use resident::LoadProgress;
pub use session::batch::{BatchRow, BatchTokens};
pub use session::kv_store::KvStore;
pub use session::mixed::PromptPart;
pub use session::model_state::Recovery;
pub use session::scheduler;
pub use session::session::{FeedProgress, HiddenSink, LogitsSink, Session};
pub use session::speculation::drafter::{DRAFT_CLASSES, Draft, Drafter};
pub use session::speculation::speculator::{DraftCounts, Speculation};
pub use session::tokens::{MaskedTokens, Tokens};
pub use step::cancel::CancelToken;
pub use step::host_sampling::{HostSampled, HostSampler, HostSampling, TokenLogprob};
pub use step::images::{Image, ImagePatches};
pub use step::masks::FillMask;
pub use step::sampling::{Sampled, Sampling};
pub use tune::choices::{Choice, StepShape, Tuning, TuningReport};
pub use tune::corrections::{Correction, Corrections, CorrectionsReport};
pub use tune::exchange::Programs;
pub use tune::measure::{Effort, TimedCandidate, TimedPipeline, TuneError, TuneProgress};
pub use tune::trace::{TraceSink, TracedDispatch, TracedStep};
pub use vk::crash;
// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;
// Types that every caller uses.
pub use unicorn_artifact::{
    Account, Budget, ImageSection, LicenseSection, Meta, ModelMeta, ParseError, Pipeline, Plan, TargetKernels,
    TargetMatch, Tier, TierAccount, TokenizerSection,
};
#[cfg(feature = "fault-injection")]
pub use vk::faults::{
    Fault, FaultKind, failed_calls, inject, inject_into, injected, layered_calls, layered_fields, limit_reads,
    made_calls, simulate_noncoherent_memory,
};
pub use vk::instance::{validation_errors, validation_messages};

/// Where a model would be placed on a device, from the device's facts alone: for planning without the device. [`Model::load`]
/// follows the same functions.
pub mod planning {
    pub use crate::device::amdgpu::{AmdgpuMemory, MemoryFigures};
    pub use crate::memory::budget::AvailableMemory;
    pub use crate::memory::requirements::ContextRequest;
    pub use crate::memory::residency::{Residency, TierResidency};
}

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
/// When there is no Vulkan loader, or the driver returns an error. No device at all is an empty list.
pub fn devices() -> Result<Vec<DeviceFacts>, LoadError> {
    vk::instance::Instance::create()?.devices()
}
