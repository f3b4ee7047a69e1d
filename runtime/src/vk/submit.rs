//! Submissions, one at a time a lane.

use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use crate::vk::device::Device;
use crate::vk::record::CommandList;
use crate::vk::{Failure, Named};

/// Submits command lists and waits for them.
pub struct Lane {
    device: Arc<Device>,
    fence: vk::Fence,
    timeout: Duration,
    /// The list under way, if `start` left one.
    under_way: Option<CommandList>,
}

impl Lane {
    /// A submission that takes longer than `timeout` counts as lost.
    pub fn create(device: &Arc<Device>, timeout: Duration) -> Result<Lane, Failure> {
        // SAFETY: a plain request; destroyed by Drop.
        let fence = unsafe { device.raw.create_fence(&vk::FenceCreateInfo::default(), None) }.named("vkCreateFence")?;
        Ok(Lane { device: device.clone(), fence, timeout, under_way: None })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Runs `lists`, a submission each, to the end of the last.
    pub fn run(&mut self, lists: &mut [CommandList]) -> Result<(), Failure> {
        self.wait()?;
        let Some((last, before)) = lists.split_last() else { return Ok(()) };
        for list in before {
            self.submit(list.raw, vk::Fence::null())?;
        }
        self.submit(last.raw, self.fence)?;
        self.wait_for_fence(lists.len() as u32)
    }

    /// Starts `list` and keeps it until [`Lane::wait`].
    pub fn start(&mut self, list: CommandList) -> Result<(), Failure> {
        self.wait()?;
        self.submit(list.raw, self.fence)?;
        self.under_way = Some(list);
        Ok(())
    }

    /// Waits for what `start` started, if anything.
    pub fn wait(&mut self) -> Result<(), Failure> {
        if self.under_way.is_none() {
            return Ok(());
        }
        let waited = self.wait_for_fence(1);
        self.under_way = None;
        waited
    }

    fn submit(&self, list: vk::CommandBuffer, fence: vk::Fence) -> Result<(), Failure> {
        if self.device.is_stuck() {
            return Err(Failure { call: "vkQueueSubmit", code: vk::Result::ERROR_DEVICE_LOST });
        }
        let lists = [list];
        let submission = vk::SubmitInfo::default().command_buffers(&lists);
        let queue = self.device.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: the lock makes this thread the queue's only user; the fence is null, or unsignalled because every wait
        // resets it; the list is complete and not pending, because its owner lends or gives it to one lane until the wait.
        unsafe { self.device.raw.queue_submit(*queue, &[submission], fence) }.named("vkQueueSubmit")
    }

    /// Waits for the last of `submissions`, which may take the timeout each.
    fn wait_for_fence(&self, submissions: u32) -> Result<(), Failure> {
        let timeout = self.timeout.saturating_mul(submissions);
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the fence is alive and was submitted.
        let waited = unsafe { self.device.raw.wait_for_fences(&[self.fence], true, timeout) }.named("vkWaitForFences");
        if let Err(failure) = waited {
            if failure.code == vk::Result::TIMEOUT {
                self.device.set_stuck();
            }
            return Err(failure);
        }
        // SAFETY: signalled, so no submission uses it.
        unsafe { self.device.raw.reset_fences(&[self.fence]) }.named("vkResetFences")
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // A failure was, or will be, met by whoever needs the result.
        let _ = self.wait();
        if !self.device.is_stuck() {
            // SAFETY: nothing is under way any more.
            unsafe { self.device.raw.destroy_fence(self.fence, None) };
        }
    }
}
