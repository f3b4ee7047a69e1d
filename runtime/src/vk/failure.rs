//! Vulkan calls that failed, and what that means for a load and for a step.

use std::fmt;

use ash::vk;

use crate::error::{LoadError, RunError};

/// A Vulkan call that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Name of the call.
    pub call: &'static str,
    pub(super) code: vk::Result,
}

impl Failure {
    /// A dispatch reached its limit of waiting for the counter of the one before it.
    pub fn stalled() -> Failure {
        Failure { call: "waiting for the dispatch before", code: vk::Result::NOT_READY }
    }

    /// The device is no longer in the loader's list.
    pub fn device_gone() -> Failure {
        Failure {
            call: "vkEnumeratePhysicalDevices, which no longer lists the device,",
            code: vk::Result::ERROR_DEVICE_LOST,
        }
    }

    /// Whether this is [`Failure::stalled`], whose code no call here returns as an error.
    pub fn is_stall(&self) -> bool {
        self.code == vk::Result::NOT_READY
    }

    /// The device or the host has no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        [vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, vk::Result::ERROR_OUT_OF_HOST_MEMORY].contains(&self.code)
    }

    /// Whether a retry may succeed, on another device or on the same one later.
    pub fn may_pass(&self) -> bool {
        self.is_out_of_memory() || self.is_device_lost()
    }

    /// The device was reset, exceeded a queue's timeout, or a dispatch stalled in counter synchronisation.
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

/// Adds the name of the call to its result.
pub(super) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, Failure>;
}

impl<T> Named<T> for Result<T, vk::Result> {
    fn named(self, call: &'static str) -> Result<T, Failure> {
        self.map_err(|code| Failure { call, code })
    }
}
