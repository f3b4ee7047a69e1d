//! Checks how the driver distributes cooperative matrix elements over a subgroup's invocations. Vulkan leaves that to the driver,
//! and kernels depend on one distribution: the artifact has a kernel that tests it.

use std::sync::Arc;

use unicorn_artifact::step::CounterWait;

use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::vk::buffer::{Allocation, Buffer};
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::submission::SubmissionQueue;
use crate::vk::workgroup_range::WorkgroupRange;

/// Runs `kernel`, [`unicorn_artifact::TargetKernels::fragments`] of the target named `target`. Waits for the device.
///
/// # Errors
/// [`LoadError::Unsupported`] where the distribution differs from the kernels'; other errors when the device fails.
pub fn check(
    device: &Arc<Device>,
    queue: &mut SubmissionQueue,
    kernel: &Arc<Pipeline>,
    target: &str,
) -> Result<(), LoadError> {
    let Allocation { buffer, mapping } = Buffer::create(device, 4, BufferUse::Readback)?;
    let mapping = mapping.expect("readbacks are host-visible");
    let set = BoundSet::create_all(device, &[(kernel.layout().clone(), vec![buffer.whole()])])?.remove(0);
    let (pipeline, workgroups) = (kernel.clone(), WorkgroupRange::whole([1, 1, 1]));
    let dispatch = Command::Dispatch { pipeline, set, workgroups, counter: CounterWait::default() };
    queue.run(&[CommandList::record(device, vec![dispatch])?])?;
    mapping.invalidate()?;
    match mapping.bytes()[..4] {
        [0, 0, 0, 0] => Ok(()),
        _ => Err(LoadError::Unsupported {
            what: format!(
                "{} distributes cooperative matrices over a subgroup otherwise than the kernels of target {target} expect; \
                 another target of the artifact, such as generic, runs there",
                device.facts().name
            ),
        }),
    }
}
