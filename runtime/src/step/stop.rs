//! Why a step stopped.

use std::sync::Arc;

use crate::error::{LoadError, RunError};
use crate::npu::NpuError;
use crate::vk::Failure;

/// What ended a step early.
pub enum Stop {
    /// The device failed; the step may run again on another.
    Device(Failure),
    /// Weights that steps wait for could not be loaded.
    Loading(Arc<LoadError>),
    /// The NPU failed; without it, the step may run again.
    Npu(NpuError),
    /// Another attempt would end the same way.
    Caller(RunError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Device(failure)
    }
}

impl From<Arc<LoadError>> for Stop {
    fn from(error: Arc<LoadError>) -> Stop {
        Stop::Loading(error)
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Stop {
        Stop::Caller(error)
    }
}

impl From<Stop> for RunError {
    fn from(stop: Stop) -> RunError {
        match stop {
            Stop::Device(failure) => failure.into(),
            Stop::Loading(source) => RunError::Loading { source },
            Stop::Npu(source) => RunError::Npu { source },
            Stop::Caller(error) => error,
        }
    }
}
