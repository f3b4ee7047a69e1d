//! Unsafe room B: Vulkan, wrapped so that what lies above it is safe code.
//!
//! Every wrapper owns its Vulkan object, keeps alive what that object refers to (`Arc`), and destroys it on drop. Ranges,
//! offsets and lifetimes are checked here with `assert!`, because they come from a validated artifact and our own plan.
//! Two rules are left to the callers, who all live in this crate:
//!
//! 1. Bytes of a [`memory::Mapping`] are read or written only while no submission that is under way writes them, or for
//!    writing even reads them. Whoever owns the mapping also owns the [`submit::Lane`] and waits on it; only the mappings of
//!    weights that arrive beside the first steps are elsewhere, and submissions that read them are not made before.
//! 2. SPIR-V is trusted as a program is: the artifact's hashes say that it is what the compiler wrote.
//!
//! A lane that met a failure leaves nothing under way, so that whoever gives up can drop what it used. Only once a
//! submission outran its timeout is nothing destroyed any more ([`device::Device::is_stuck`]): the device may still
//! be using it.

pub mod cache;
pub mod crash;
pub mod device;
pub mod facts;
#[cfg(feature = "fault-injection")]
pub mod faults;
#[cfg(not(feature = "fault-injection"))]
#[path = "faults_disabled.rs"]
pub mod faults;
pub mod features;
pub mod import;
pub mod instance;
pub mod memory;
pub mod pipeline;
mod queues;
pub mod record;
pub mod stamps;
pub mod statistics;
pub mod submit;

use std::fmt;

use ash::vk;

use crate::error::{LoadError, RunError};

/// A Vulkan call that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub call: &'static str,
    code: vk::Result,
}

impl Failure {
    /// A dispatch gave up waiting for the one before it.
    pub fn stalled() -> Failure {
        Failure { call: "a dispatch that waited for the one before it", code: vk::Result::NOT_READY }
    }

    /// No call of ours gives this code as an error.
    pub fn is_stall(&self) -> bool {
        self.code == vk::Result::NOT_READY
    }

    pub fn is_out_of_memory(&self) -> bool {
        [vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, vk::Result::ERROR_OUT_OF_HOST_MEMORY].contains(&self.code)
    }

    /// Whether another device, or the same one later, may do what this one did not.
    pub fn may_pass(&self) -> bool {
        self.is_out_of_memory() || self.is_device_lost()
    }

    /// The device was reset, did not finish within a lane's timeout, or is at odds with how dispatches wait for each other.
    pub fn is_device_lost(&self) -> bool {
        [vk::Result::ERROR_DEVICE_LOST, vk::Result::TIMEOUT].contains(&self.code) || self.is_stall()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {}", self.call, self.code)
    }
}

impl From<Failure> for LoadError {
    fn from(failure: Failure) -> LoadError {
        if failure.is_device_lost() {
            return LoadError::DeviceLost { call: failure.call };
        }
        LoadError::Vulkan { call: failure.call, code: failure.code.to_string() }
    }
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> RunError {
        if failure.code == vk::Result::TIMEOUT {
            return RunError::DeviceLost { detail: "a step did not finish in time".into() };
        }
        if failure.is_device_lost() {
            return RunError::DeviceLost { detail: format!("{} failed", failure.call) };
        }
        if failure.is_out_of_memory() {
            return RunError::OutOfMemory { what: failure.call.into() };
        }
        RunError::Vulkan { call: failure.call, code: failure.code.to_string() }
    }
}

/// Names the call whose result this is.
trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, Failure>;
}

impl<T> Named<T> for Result<T, vk::Result> {
    fn named(self, call: &'static str) -> Result<T, Failure> {
        self.map_err(|code| Failure { call, code })
    }
}
