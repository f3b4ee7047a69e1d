//! What a driver makes of kernels: registers, spills, cost, machine code. Nothing runs, so that a driver without its hardware is
//! enough.

use std::sync::atomic::AtomicBool;

use unicorn_artifact::TargetKernels;

use crate::device::facts::DeviceFacts;
use crate::error::LoadError;
use crate::program::pipelines::compile_each;
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::pipeline::Capture;
pub use crate::vk::pipeline_statistics::{Executable, Representation};

/// Compiles every pipeline of `target` as loading a model does, and returns the executables of each, in the
/// pipelines' order. `representations`: include the kernels' text forms. Blocks until all are compiled.
///
/// # Errors
/// [`LoadError::Unsupported`] when the driver reports no statistics, [`LoadError::Pipeline`] when it rejects a kernel.
pub fn kernel_statistics(
    facts: &DeviceFacts,
    target: &TargetKernels,
    representations: bool,
) -> Result<Vec<Vec<Executable>>, LoadError> {
    if !facts.features.pipeline_statistics {
        return Err(LoadError::Unsupported {
            what: format!("{} reports no statistics, expected VK_KHR_pipeline_executable_properties", facts.name),
        });
    }
    let device = Device::open(Instance::create()?, facts, true)?;
    let capture = if representations { Capture::Representations } else { Capture::Statistics };
    compile_each(&device, target, None, capture, &AtomicBool::new(false), |pipeline| Ok(pipeline.executables()?))
}
