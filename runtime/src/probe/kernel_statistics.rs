//! What a driver makes of kernels: registers, spills, cost, machine code. Nothing runs, so a driver without its hardware
//! will do.

use unicorn_artifact::{Kernels, TargetKernels};

use crate::device::plan::DeviceFacts;
use crate::error::LoadError;
use crate::program::pipelines::compile_each;
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::pipeline::Capture;

/// What one kernel became on the device. A pipeline is one executable on most drivers.
#[derive(Clone, Debug, PartialEq)]
pub struct Executable {
    /// The driver's name for it: its stage.
    pub name: String,
    pub subgroup_size: u32,
    /// Names and values as the driver gives them, in its order.
    pub statistics: Vec<(String, f64)>,
    /// The kernel in the driver's own forms, machine code last; empty unless asked for.
    pub representations: Vec<Representation>,
}

/// One of the driver's forms of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Representation {
    pub name: String,
    pub text: String,
}

/// Compiles every pipeline of `target` (one of `kernels`) as loading a model does, and gives its executables, in the
/// pipelines' order. `representations` asks for the kernel's text forms, too.
///
/// # Errors
/// When the driver gives no statistics or refuses a kernel.
pub fn kernel_statistics(
    facts: &DeviceFacts,
    kernels: &Kernels,
    target: &TargetKernels,
    representations: bool,
) -> Result<Vec<Vec<Executable>>, LoadError> {
    if !facts.features.pipeline_statistics {
        return Err(LoadError::Unsupported {
            what: format!("{} gives no statistics, expected VK_KHR_pipeline_executable_properties", facts.name),
        });
    }
    let device = Device::open(Instance::create()?, facts, true)?;
    let capture = if representations { Capture::Representations } else { Capture::Statistics };
    compile_each(&device, kernels, target, None, capture, |pipeline| Ok(pipeline.executables()?))
}

impl Executable {
    /// The statistic of this name, if the driver gives it.
    pub fn statistic(&self, name: &str) -> Option<f64> {
        self.statistics.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }
}
