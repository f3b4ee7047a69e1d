//! Devices: what the driver reports about them, which one runs a model, and with which of the artifact's targets.
//!
//! In: facts read by `vk`, files of the kernel (sysfs, procfs). Out: [`crate::DeviceFacts`], a choice, ranked memory types.
//! Not known here: Vulkan calls, models.
//!
//! Read in this order:
//!
//! - `facts`: what the driver reports about a device
//! - `class`: the class of GPUs that it belongs to, as targets distinguish them
//! - `choice`: which device, and which target
//! - `memory_types`: which memory type a buffer is allocated from
//! - `sysfs`: small files of the kernel
//! - `amdgpu`: the kernel's figures of an AMD GPU's memory
//! - `limits`: limits on this process
//! - `machine`: what the kernel reports about GPUs, drivers and limits, for diagnosis
//! - `gpu_activity`, `drm_usage`: what GPUs do now, and what one process uses of them

pub mod amdgpu;
pub mod choice;
mod class;
pub mod drm_usage;
pub mod facts;
pub mod gpu_activity;
pub mod limits;
pub mod machine;
pub mod memory_types;
pub mod sysfs;
