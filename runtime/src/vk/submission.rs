//! Submissions, at most two under way a lane.

use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use crate::vk::command_list::CommandList;
use crate::vk::device::Device;
use crate::vk::{Failure, Named};

/// Submits command lists and waits for them.
pub struct SubmissionQueue {
    device: Arc<Device>,
    /// One a turn.
    fences: [vk::Fence; 2],
    timeout: Duration,
    /// The list under way, if `start` left one.
    under_way: Option<CommandList>,
    /// Submissions of each turn that nobody has waited for.
    begun: [u32; 2],
    /// A call has failed: fences are in no known state, and the device is as good as lost.
    failed: bool,
}

impl SubmissionQueue {
    /// A submission that takes longer than `timeout` counts as lost.
    pub fn create(device: &Arc<Device>, timeout: Duration) -> Result<SubmissionQueue, Failure> {
        let fences = [vk::Fence::null(); 2];
        let mut lane =
            SubmissionQueue { device: device.clone(), fences, timeout, under_way: None, begun: [0; 2], failed: false };
        for fence in &mut lane.fences {
            // SAFETY: a plain request; destroyed by Drop.
            *fence =
                unsafe { device.raw.create_fence(&vk::FenceCreateInfo::default(), None) }.named("vkCreateFence")?;
        }
        Ok(lane)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Runs `lists`, a submission each, to the end of the last.
    pub fn run(&mut self, lists: &[CommandList]) -> Result<(), Failure> {
        self.begin(0, lists)?;
        self.end(0)
    }

    /// Submits `lists` behind whatever is under way of the other turn. [`SubmissionQueue::end`] waits for it.
    pub fn begin(&mut self, turn: usize, lists: &[CommandList]) -> Result<(), Failure> {
        self.begin_when(turn, lists, |_| Ok(()))
    }

    /// The same, each list when `ready`, which hears its index, lets it. If `ready` fails, the lane is of no more use.
    pub fn begin_when<E: From<Failure>>(
        &mut self,
        turn: usize,
        lists: &[CommandList],
        mut ready: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        self.wait()?;
        // Left by a caller that met a failure.
        self.end(turn)?;
        for (index, list) in lists.iter().enumerate() {
            if let Err(error) = ready(index) {
                self.close();
                return Err(error);
            }
            let fence = if index + 1 == lists.len() { self.fences[turn] } else { vk::Fence::null() };
            self.submit(list, fence).map_err(|failure| self.give_up(failure))?;
        }
        self.begun[turn] = lists.len() as u32;
        Ok(())
    }

    /// Waits for what the turn began, if anything.
    pub fn end(&mut self, turn: usize) -> Result<(), Failure> {
        match std::mem::take(&mut self.begun[turn]) {
            0 => Ok(()),
            submissions => self.wait_for_fence(turn, submissions),
        }
    }

    /// Starts `list` and keeps it until [`SubmissionQueue::wait`].
    pub fn start(&mut self, list: CommandList) -> Result<(), Failure> {
        self.wait()?;
        self.submit(&list, self.fences[0]).map_err(|failure| self.give_up(failure))?;
        self.under_way = Some(list);
        Ok(())
    }

    /// Waits for what `start` started, if anything.
    pub fn wait(&mut self) -> Result<(), Failure> {
        if self.under_way.is_none() {
            return Ok(());
        }
        let waited = self.wait_for_fence(0, 1);
        self.under_way = None;
        waited
    }

    fn submit(&self, list: &CommandList, fence: vk::Fence) -> Result<(), Failure> {
        if self.failed || self.device.is_stuck() {
            return Err(Failure { call: "vkQueueSubmit", code: vk::Result::ERROR_DEVICE_LOST });
        }
        let lists = [list.raw];
        let submission = vk::SubmitInfo::default().command_buffers(&lists);
        let queue = self.device.queue(list.kind).lock();
        // SAFETY: the lock makes this thread the queue's only user; the fence is null, or unsignalled because every wait
        // resets it; the list is complete and not pending, because its owner gives it to one lane and one turn until the wait.
        unsafe { self.device.raw.queue_submit(*queue, &[submission], fence) }.named("vkQueueSubmit")
    }

    /// Waits for the last of a turn's `submissions`, which may take the timeout each.
    fn wait_for_fence(&mut self, turn: usize, submissions: u32) -> Result<(), Failure> {
        let fence = [self.fences[turn]];
        let timeout = self.timeout.saturating_mul(submissions);
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the fence is alive and was submitted.
        let waited = unsafe { self.device.raw.wait_for_fences(&fence, true, timeout) }.named("vkWaitForFences");
        if let Err(failure) = waited {
            if failure.code == vk::Result::TIMEOUT {
                self.device.set_stuck();
            }
            return Err(self.give_up(failure));
        }
        // SAFETY: signalled, so no submission uses it.
        let reset = unsafe { self.device.raw.reset_fences(&fence) }.named("vkResetFences");
        reset.map_err(|failure| self.give_up(failure))
    }

    /// After a failure nothing is under way, and nothing will be any more.
    fn give_up(&mut self, failure: Failure) -> Failure {
        self.close();
        failure
    }

    fn close(&mut self) {
        self.failed = true;
        self.begun = [0; 2];
        self.device.settle();
    }
}

impl Drop for SubmissionQueue {
    fn drop(&mut self) {
        // A failure was, or will be, met by whoever needs the result.
        let _ = (self.wait(), self.end(0), self.end(1));
        if !self.device.is_stuck() {
            // SAFETY: nothing is under way any more; null fences are ignored.
            self.fences.iter().for_each(|&fence| unsafe { self.device.raw.destroy_fence(fence, None) });
        }
    }
}
