//! Submissions: command lists in flight, at most three groups (slots) a queue.

use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use crate::vk::command_list::CommandList;
use crate::vk::device::Device;
use crate::vk::{Failure, Named, faults};

/// Submits command lists and waits for them. It has slots, each with a fence, so that the lists of one can be submitted while
/// those of another run.
pub struct SubmissionQueue {
    device: Arc<Device>,
    /// One a slot.
    fences: [vk::Fence; SLOTS],
    timeout: Duration,
    /// Submissions of each slot that were not waited for yet.
    in_flight: [u32; SLOTS],
    /// Its value is the number of the last segment that has ended; null before the first.
    segments: vk::Semaphore,
    n_segments: u64,
    n_segments_ended: u64,
    /// A call has failed: fences are in an unknown state, and the device counts as lost.
    failed: bool,
}

/// Two steps, each in a slot, and a sampler that follows the first.
const SLOTS: usize = 3;
/// Slot of a sampler that is submitted apart from its step.
pub const SAMPLER_SLOT: usize = 2;

impl SubmissionQueue {
    /// A submission that takes longer than `timeout` counts as a lost device.
    pub fn create(device: &Arc<Device>, timeout: Duration) -> Result<SubmissionQueue, Failure> {
        let fences = [vk::Fence::null(); SLOTS];
        let mut queue = SubmissionQueue {
            device: device.clone(),
            fences,
            timeout,
            in_flight: [0; SLOTS],
            segments: vk::Semaphore::null(),
            n_segments: 0,
            n_segments_ended: 0,
            failed: false,
        };
        for fence in &mut queue.fences {
            // SAFETY: a plain request; destroyed by Drop.
            *fence =
                unsafe { device.raw.create_fence(&vk::FenceCreateInfo::default(), None) }.named("vkCreateFence")?;
        }
        Ok(queue)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Submits `lists`, one submission each, and blocks until the last is complete.
    pub fn run(&mut self, lists: &[CommandList]) -> Result<(), Failure> {
        self.begin(0, lists)?;
        self.end(0)
    }

    /// Submits `lists` behind whatever other slots have in flight. [`SubmissionQueue::end`] waits for them.
    pub fn begin(&mut self, slot: usize, lists: &[CommandList]) -> Result<(), Failure> {
        self.begin_when(slot, lists, |_| Ok(()))
    }

    /// The same, where `ready` is called with the index of each list before it is submitted, and may block. If `ready` fails, the
    /// queue cannot be used any more.
    pub fn begin_when<E: From<Failure>>(
        &mut self,
        slot: usize,
        lists: &[CommandList],
        mut ready: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        // Left in flight by a caller that failed.
        self.end(slot)?;
        for (index, list) in lists.iter().enumerate() {
            if let Err(error) = ready(index) {
                self.close();
                return Err(error);
            }
            let fence = if index + 1 == lists.len() { self.fences[slot] } else { vk::Fence::null() };
            self.submit(list, fence).map_err(|failure| self.fail(failure))?;
        }
        self.in_flight[slot] = lists.len() as u32;
        Ok(())
    }

    /// Submits `list`, a part of a step, behind whatever is in flight; returns its number, by which [`SubmissionQueue::end_segment`] waits for it and all before
    /// it.
    pub fn begin_segment(&mut self, list: &CommandList) -> Result<u64, Failure> {
        if self.segments == vk::Semaphore::null() {
            let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let request = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
            faults::before("vkCreateSemaphore")?;
            // SAFETY: a plain request; every device of Vulkan 1.2 has timelines. Destroyed by Drop.
            self.segments = unsafe { self.device.raw.create_semaphore(&request, None) }.named("vkCreateSemaphore")?;
        }
        let number = self.n_segments + 1;
        let (semaphores, numbers) = ([self.segments], [number]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&numbers);
        let signal = vk::SubmitInfo::default().signal_semaphores(&semaphores).push_next(&mut timeline);
        self.submit_with(list, signal, vk::Fence::null()).map_err(|failure| self.fail(failure))?;
        self.n_segments = number;
        Ok(number)
    }

    /// Blocks until a segment and all before it have ended.
    pub fn end_segment(&mut self, number: u64) -> Result<(), Failure> {
        if number <= self.n_segments_ended {
            return Ok(());
        }
        if self.failed {
            return Err(Failure { call: "vkWaitSemaphores", code: vk::Result::ERROR_DEVICE_LOST });
        }
        let (semaphores, numbers) = ([self.segments], [number]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&numbers);
        // Slots may have lists before it in the queue.
        let before = (number - self.n_segments_ended) as u32 + self.in_flight.iter().sum::<u32>();
        let timeout = self.timeout_of(before);
        faults::before("vkWaitSemaphores").map_err(|failure| self.fail(failure))?;
        // SAFETY: the semaphore is alive, and a submission signals the number.
        let waited = unsafe { self.device.raw.wait_semaphores(&wait, timeout) }.named("vkWaitSemaphores");
        waited.map_err(|failure| self.wait_failed(failure))?;
        self.n_segments_ended = number;
        Ok(())
    }

    /// Nanoseconds that so many submissions may take.
    fn timeout_of(&self, submissions: u32) -> u64 {
        u64::try_from(self.timeout.saturating_mul(submissions).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Number of the last segment.
    pub fn last_segment(&self) -> u64 {
        self.n_segments
    }

    /// Runs `lists`, at most two of them submitted at a time: while the device works on one, `ready` decides whether the next
    /// is submitted. Returns whether all ran; those that were submitted have ended. If `ready` fails, the queue cannot be
    /// used any more.
    pub fn run_while<E: From<Failure>>(
        &mut self,
        lists: &[CommandList],
        mut ready: impl FnMut(usize) -> Result<bool, E>,
    ) -> Result<bool, E> {
        self.end(0)?;
        self.end(1)?;
        let mut all_ran = true;
        for (index, list) in lists.iter().enumerate() {
            let slot = index % 2;
            self.end(slot)?;
            match ready(index) {
                Ok(true) => {}
                Ok(false) => {
                    all_ran = false;
                    break;
                }
                Err(error) => {
                    self.close();
                    return Err(error);
                }
            }
            self.submit(list, self.fences[slot]).map_err(|failure| self.fail(failure))?;
            self.in_flight[slot] = 1;
        }
        self.end(0)?;
        self.end(1)?;
        Ok(all_ran)
    }

    /// Blocks until the slot has nothing in flight.
    pub fn end(&mut self, slot: usize) -> Result<(), Failure> {
        match std::mem::take(&mut self.in_flight[slot]) {
            0 => Ok(()),
            submissions => self.wait(slot, submissions),
        }
    }

    fn submit(&self, list: &CommandList, fence: vk::Fence) -> Result<(), Failure> {
        self.submit_with(list, vk::SubmitInfo::default(), fence)
    }

    fn submit_with(&self, list: &CommandList, submission: vk::SubmitInfo<'_>, fence: vk::Fence) -> Result<(), Failure> {
        if self.failed || self.device.is_stuck() {
            return Err(Failure { call: "vkQueueSubmit", code: vk::Result::ERROR_DEVICE_LOST });
        }
        let lists = [list.raw];
        let submission = submission.command_buffers(&lists);
        let queue = self.device.queue(list.kind).lock();
        // SAFETY: the lock makes this thread the queue's only user; the fence is null, or unsignalled because every wait
        // resets it; the list is complete and not pending, because its owner submits it on one queue and slot until the wait.
        unsafe { self.device.raw.queue_submit(*queue, &[submission], fence) }.named("vkQueueSubmit")
    }

    /// Waits for the last of a slot's `submissions`, each of which may take the timeout.
    fn wait(&mut self, slot: usize, submissions: u32) -> Result<(), Failure> {
        let fence = [self.fences[slot]];
        let timeout = self.timeout_of(submissions);
        // SAFETY: the fence is alive and was submitted.
        let waited = unsafe { self.device.raw.wait_for_fences(&fence, true, timeout) }.named("vkWaitForFences");
        waited.map_err(|failure| self.wait_failed(failure))?;
        // SAFETY: signalled, so no submission uses it.
        let reset = unsafe { self.device.raw.reset_fences(&fence) }.named("vkResetFences");
        reset.map_err(|failure| self.fail(failure))
    }

    fn wait_failed(&mut self, failure: Failure) -> Failure {
        if failure.code == vk::Result::TIMEOUT {
            self.device.set_stuck();
        }
        self.fail(failure)
    }

    /// After a failure, nothing is in flight and nothing can be submitted.
    fn fail(&mut self, failure: Failure) -> Failure {
        self.close();
        failure
    }

    fn close(&mut self) {
        self.failed = true;
        self.in_flight = [0; SLOTS];
        self.device.settle();
    }
}

impl Drop for SubmissionQueue {
    fn drop(&mut self) {
        // A failure was returned, or will be, to the caller that needs the result.
        for slot in 0..SLOTS {
            let _ = self.end(slot);
        }
        let _ = self.end_segment(self.n_segments);
        if !self.device.is_stuck() {
            // SAFETY: nothing is in flight any more; null handles are ignored.
            unsafe { self.device.raw.destroy_semaphore(self.segments, None) };
            // SAFETY: the same.
            self.fences.iter().for_each(|&fence| unsafe { self.device.raw.destroy_fence(fence, None) });
        }
    }
}
