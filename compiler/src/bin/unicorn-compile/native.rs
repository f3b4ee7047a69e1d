//! `--target native`: the targets of the devices that this machine has.

use unicorn_compiler::{CompileError, targets};
use unicorn_runtime::{DeviceFacts, DeviceKind, devices, misfit};

/// For each device that can run models, the first target that fits it. A software device counts where there is no other.
///
/// # Errors
/// When there is no such device, or no Vulkan.
pub fn target_names() -> Result<Vec<&'static str>, CompileError> {
    let refused = |found: String| CompileError::Option {
        option: "targets",
        what: format!(
            "target native needs a device of this machine, {found}; without it, kernels for all devices are made"
        ),
    };
    let found = devices().map_err(|error| refused(error.to_string()))?;
    let found: Vec<&DeviceFacts> = found.iter().filter(|device| device.is_recent() && device.has_memory()).collect();
    let is_hardware = |device: &&DeviceFacts| device.kind != DeviceKind::Cpu;
    let hardware: Vec<&DeviceFacts> = found.iter().copied().filter(is_hardware).collect();
    let chosen = if hardware.is_empty() { found } else { hardware };
    let target =
        |device: &DeviceFacts| targets().into_iter().find(|target| misfit(&target.matches(), device).is_none());
    let names: Vec<&str> = chosen.into_iter().filter_map(target).map(|target| target.name).collect();
    if names.is_empty() { Err(refused("found none that runs models".into())) } else { Ok(names) }
}
