//! Whether the device's lanes hold cooperative matrices as a target's kernels have them: Vulkan leaves it to the driver, so the artifact
//! has a kernel that looks, and nothing else runs where it finds otherwise.

use std::sync::Arc;

use unicorn_artifact::step::Link;

use crate::error::LoadError;
use crate::memory::residency::Role;
use crate::program::dispatch_range::Band;
use crate::vk::device::Device;
use crate::vk::memory::{Allocation, Buffer};
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Lane;

/// Runs `kernel`, [`unicorn_artifact::TargetKernels::fragments`] of the target called `target`.
///
/// # Errors
/// [`LoadError::Unsupported`] where elements are elsewhere; when the device fails.
pub fn check(device: &Arc<Device>, lane: &mut Lane, kernel: &Arc<Pipeline>, target: &str) -> Result<(), LoadError> {
    let Allocation { buffer, mapping } = Buffer::create(device, 4, Role::Readback)?;
    let mapping = mapping.expect("readbacks are host-visible");
    let set = BoundSet::create_all(device, &[(kernel.layout().clone(), vec![buffer.whole()])])?.remove(0);
    let (pipeline, band) = (kernel.clone(), Band::whole([1, 1, 1]));
    let dispatch = Command::Dispatch { pipeline, set, band, link: Link::default() };
    lane.run(&[CommandList::record(device, vec![dispatch])?])?;
    mapping.invalidate()?;
    match mapping.bytes()[..4] {
        [0, 0, 0, 0] => Ok(()),
        _ => Err(LoadError::Unsupported {
            what: format!(
                "{} keeps cooperative matrices otherwise than the kernels of target {target} have them; another target of \
                 the artifact runs there, such as --target generic",
                device.facts().name
            ),
        }),
    }
}
