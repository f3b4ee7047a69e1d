//! How the driver distributes cooperative matrix elements over a subgroup's invocations. Vulkan leaves that to the driver, and
//! kernels depend on one distribution: targets have a kernel that tests it, and are left out where it differs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use unicorn_artifact::TargetKernels;
use unicorn_artifact::step::CounterWait;

use crate::device::choice::choose_target;
use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::program::pipelines::compile_some;
use crate::vk::buffer::{Allocation, Buffer};
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::pipeline::{BoundSet, Capture};
use crate::vk::submission::SubmissionQueue;
use crate::vk::workgroup_range::WorkgroupRange;

/// A target that runs on a device.
pub struct Runnable<'t> {
    pub target: &'t TargetKernels,
    /// Why targets before it do not run there, though the device has all that they require.
    pub left_out: Vec<String>,
}

/// What [`choose_target`] chooses, or the first target behind it whose distribution is the driver's. Waits for the device at most
/// `timeout`.
///
/// # Errors
/// Those of [`choose_target`]; [`LoadError::Unsupported`] where the distribution differs from that of the target named `forced`, or
/// of the last one; other errors when the device fails.
pub fn choose_runnable<'t>(
    device: &Arc<Device>,
    targets: &'t [TargetKernels],
    forced: Option<&str>,
    timeout: Duration,
) -> Result<Runnable<'t>, LoadError> {
    let mut left_out = Vec::new();
    let mut target = choose_target(targets, device.facts(), forced)?;
    while let Some(kernel) = target.fragments {
        if count_elsewhere(device, target, kernel, timeout)? == 0 {
            break;
        }
        let what = format!(
            "{} distributes cooperative matrices over a subgroup otherwise than the kernels of target {} expect",
            device.facts().name,
            target.name
        );
        let behind = targets.iter().position(|one| std::ptr::eq(one, target)).expect("one of them was chosen") + 1;
        target = match choose_target(&targets[behind..], device.facts(), None) {
            Ok(next) if forced.is_none() => next,
            _ => {
                let what = format!("{what}; another target, such as generic, runs there");
                return Err(LoadError::Unsupported { what });
            }
        };
        left_out.push(what);
    }
    Ok(Runnable { target, left_out })
}

/// Elements of a matrix that the device's lanes do not hold where the target's kernels expect them: what its
/// [`TargetKernels::fragments`], number `kernel`, counts.
fn count_elsewhere(
    device: &Arc<Device>,
    target: &TargetKernels,
    kernel: u32,
    timeout: Duration,
) -> Result<u32, LoadError> {
    let (number, never) = (kernel as usize, AtomicBool::new(false));
    let pipeline = compile_some(device, target, number..number + 1, None, Capture::Nothing, &never, Ok)?.remove(0);
    let Allocation { buffer, mapping } = Buffer::create(device, 4, BufferUse::Readback)?;
    let mapping = mapping.expect("readbacks are host-visible");
    let set = BoundSet::create_all(device, &[(pipeline.layout().clone(), vec![buffer.whole()])])?.remove(0);
    let workgroups = WorkgroupRange::whole([1, 1, 1]);
    let dispatch = Command::Dispatch { pipeline, set, workgroups, counter: CounterWait::default() };
    let mut queue = SubmissionQueue::create(device, timeout)?;
    queue.run(&[CommandList::record(device, vec![dispatch])?])?;
    mapping.invalidate()?;
    Ok(u32::from_le_bytes(mapping.bytes()[..4].try_into().expect("4 bytes")))
}
