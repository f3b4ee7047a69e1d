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

mod amdgpu;
mod bands;
mod bandwidth;
pub mod batch;
mod buffers;
mod cache_file;
mod checksum;
mod chunks;
mod delivery;
pub mod device_plan;
mod engine;
pub mod error;
mod fragments;
mod generate;
mod held;
mod journal;
pub mod kernel_statistics;
mod links;
mod loading;
pub mod model;
mod multistep;
mod pace;
mod page_cache;
mod pages;
mod pipeline_cache;
mod pipelines;
pub mod profile;
mod programs;
mod reader;
mod recovery;
mod residency;
mod resident;
mod room;
mod route;
mod runnable;
pub mod scheduler;
pub mod session;
mod sysfs;
mod transfers;
pub mod tune;
mod tuning;
mod vk;
mod waiting;
mod ways;
mod weights;

#[cfg(feature = "cli")]
pub mod cli;

pub use batch::BatchRow;
pub use delivery::{Delivered, Verified};
pub use device_plan::{
    DeviceChoice, DeviceFacts, DeviceFeatures, DeviceKind, Heap, MemoryType, choose_device, choose_target,
};
pub use error::{LoadError, RunError};
pub use kernel_statistics::kernel_statistics;
pub use model::{LoadOptions, LoadReport, Model};
pub use pipeline_cache::{PipelineReport, warm_pipeline_cache};
pub use recovery::Recovery;
pub use residency::TierBytes;
pub use room::{NoRoom, Room};
pub use session::{LogitsSink, Sampled, Sampling, Session};
pub use transfers::{Transfers, measure_transfers};
pub use tune::{Effort, TimedCandidate, TimedPipeline, TuneError};
pub use tuning::{Choice, StepShape, Tuning, TuningReport};
#[cfg(feature = "fault-injection")]
pub use vk::faults::{Fault, FaultKind, inject, injected, limit_reads};
pub use vk::instance::{validation_errors, validation_messages};
pub use ways::Way;

#[cfg(all(feature = "fault-injection", not(debug_assertions)))]
compile_error!("feature fault-injection is for tests, not for a release build");

/// Facts of every Vulkan device, in the loader's order.
///
/// # Errors
/// Without a Vulkan loader, or when the driver refuses to answer. No device at all is an empty list.
pub fn devices() -> Result<Vec<DeviceFacts>, LoadError> {
    vk::instance::Instance::create()?.devices()
}
