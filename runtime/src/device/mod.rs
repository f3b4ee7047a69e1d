//! Devices: what the driver reports about them, which one runs a model, and with which of the artifact's targets.
//!
//! In: facts read by `vk`, files of the kernel (sysfs, procfs). Out: [`DeviceFacts`], a choice, ranked memory types.
//! Not known here: Vulkan calls, models.
//!
//! Read in this order:
//!
//! - `facts`: what the driver reports about a device
//! - `choice`: which device, and which target
//! - `memory_types`: which memory type a buffer is allocated from
//! - `sysfs`: small files of the kernel
//! - `amdgpu`: the kernel's figures of an AMD GPU's memory

pub mod amdgpu;
pub mod choice;
pub mod facts;
pub mod memory_types;
pub mod sysfs;

pub use self::facts::DeviceFacts;
