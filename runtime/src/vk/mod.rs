//! Vulkan, wrapped so that what lies above it is safe code. All of the runtime's `unsafe` is here.
//!
//! In: [`crate::DeviceFacts`] of the device to open, SPIR-V, commands as data. Out: devices, buffers, pipelines, command lists,
//! results of submissions.
//! Not known here: models, artifacts' plans, tokens.
//!
//! Every wrapper owns its Vulkan object, holds an `Arc` of whatever that object refers to, and destroys it on drop. Ranges, offsets
//! and lifetimes are checked with `assert!`, because they come from a validated artifact and our own plan. Two rules are left to
//! the callers, which are all in this crate:
//!
//! 1. Bytes of a [`buffer::Mapping`] are accessed only while no submission in flight writes them, and written only while none
//!    reads them. The owner of a mapping also owns the [`submission::SubmissionQueue`] and waits on it; the exception are mappings
//!    of weights that are loaded while steps run, and submissions that read those are delayed until they are resident.
//! 2. SPIR-V is trusted like a program: the artifact's hashes show that it is what the compiler wrote.
//!
//! After a failure, a queue has nothing in flight, so that everything it used can be dropped. Only after a submission exceeded its
//! timeout is nothing destroyed any more ([`device::Device::is_stuck`]), since the device may still use it.
//!
//! Read in this order:
//!
//! - `failure`: a Vulkan call that failed
//! - `instance`, `device_facts`, `features`: the library, and what it reports about devices
//! - `queues`, `device`: a logical device
//! - `host_memory`, `buffer`: memory
//! - `pipeline_cache`, `pipeline`, `pipeline_statistics`: compiled kernels
//! - `timestamps`, `workgroup_range`, `command_list`: recorded work
//! - `submission`: submitted work
//! - `faults` (or `faults_disabled`): calls that fail on purpose and memory that is not coherent, for tests
//! - `crash`: a last message when a driver crashes the process

pub mod buffer;
pub mod command_list;
pub mod crash;
pub mod device;
pub mod device_facts;
mod failure;
#[cfg(feature = "fault-injection")]
pub mod faults;
#[cfg(not(feature = "fault-injection"))]
#[path = "faults_disabled.rs"]
pub mod faults;
pub mod features;
pub mod host_memory;
pub mod instance;
pub mod pipeline;
pub mod pipeline_cache;
pub mod pipeline_statistics;
mod queues;
pub mod submission;
pub mod timestamps;
pub mod workgroup_range;

pub use self::failure::Failure;
use self::failure::Named;
