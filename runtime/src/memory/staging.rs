//! Buffers between the host's memory and the device's own: each thread has one with a queue of its own, so that some read a file while the
//! device copies what others have read.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::device::memory_types::BufferUse;
use crate::vk::Failure;
use crate::vk::buffer::{Allocation, Buffer, Mapping};
use crate::vk::device::Device;
use crate::vk::submission::SubmissionQueue;

/// Size of a staging buffer, copied by one submission. Measured on an H200: 17 GB/s with 1 MiB, 24 GB/s with 4 MiB; larger
/// buffers take longer to allocate.
pub const STAGING_BYTES: usize = 4 << 20;

/// Idle staging buffers: as many as threads have copied at the same time.
pub struct StagingPool {
    device: Arc<Device>,
    timeout: Duration,
    usage: BufferUse,
    idle: Mutex<Vec<StagingBuffer>>,
}

/// [`STAGING_BYTES`] that the host and the device can access.
pub struct StagingBuffer {
    pub queue: SubmissionQueue,
    pub mapping: Mapping,
    pub buffer: Arc<Buffer>,
}

impl StagingPool {
    /// A pool of buffers for `usage`, which the host can access; none is allocated yet. A submission that takes longer than `timeout` counts as
    /// a lost device.
    pub fn new(device: &Arc<Device>, timeout: Duration, usage: BufferUse) -> StagingPool {
        StagingPool { device: device.clone(), timeout, usage, idle: Mutex::default() }
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A buffer that no other thread has.
    pub fn take(&self) -> Result<StagingBuffer, Failure> {
        if let Some(idle) = self.idle().pop() {
            return Ok(idle);
        }
        let Allocation { buffer, mapping } = Buffer::create(&self.device, STAGING_BYTES as u64, self.usage)?;
        let mapping = mapping.expect("staging buffers are host-visible");
        Ok(StagingBuffer { queue: SubmissionQueue::create(&self.device, self.timeout)?, mapping, buffer })
    }

    /// For the next thread. One whose submission has failed is dropped instead.
    pub fn put_back(&self, buffer: StagingBuffer) {
        self.idle().push(buffer);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<StagingBuffer>> {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
