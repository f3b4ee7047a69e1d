//! Timestamps of the device's clock, written by command lists.

use std::sync::Arc;

use ash::vk;

use crate::vk::device::Device;
use crate::vk::{Failure, Named};

/// A fixed number of timestamps; each run of a command list overwrites those that it writes.
pub struct Timestamps {
    device: Arc<Device>,
    pool: vk::QueryPool,
    count: u32,
    nanoseconds_per_tick: f64,
    valid_bits: u64,
}

impl Timestamps {
    /// `None` where the device has no timestamps.
    pub fn create(device: &Arc<Device>, count: u32) -> Result<Option<Arc<Timestamps>>, Failure> {
        let Some((nanoseconds_per_tick, valid_bits)) = device.clock else {
            return Ok(None);
        };
        let request = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
        // SAFETY: a plain request; destroyed by Drop.
        let pool = unsafe { device.raw.create_query_pool(&request, None) }.named("vkCreateQueryPool")?;
        Ok(Some(Arc::new(Timestamps { device: device.clone(), pool, count, nanoseconds_per_tick, valid_bits })))
    }

    /// Seconds from one timestamp to a later one, of lists that have completed; `None` if one was never written.
    pub fn seconds_between(&self, first: u32, last: u32) -> Option<f64> {
        let elapsed = self.ticks(last)?.wrapping_sub(self.ticks(first)?) & self.valid_bits;
        Some(elapsed as f64 * self.nanoseconds_per_tick * 1e-9)
    }

    fn ticks(&self, index: u32) -> Option<u64> {
        assert!(index < self.count, "timestamp {index} of {}", self.count);
        let mut ticks = [0u64];
        // SAFETY: the query exists, and its result is 64 bits wide as requested.
        let read = unsafe {
            self.device.raw.get_query_pool_results(self.pool, index, &mut ticks, vk::QueryResultFlags::TYPE_64)
        };
        read.ok().map(|()| ticks[0])
    }

    /// Records the reset that each timestamp needs before it is written again.
    pub(super) fn record_reset(&self, list: vk::CommandBuffer) {
        // SAFETY: recording; the list's owner keeps the pool alive.
        unsafe { self.device.raw.cmd_reset_query_pool(list, self.pool, 0, self.count) };
    }

    /// Records a write that happens when everything before it in the queue is complete.
    pub(super) fn record(&self, list: vk::CommandBuffer, index: u32) {
        assert!(index < self.count, "timestamp {index} of {}", self.count);
        // SAFETY: recording; the list's owner keeps the pool alive, and the query exists.
        unsafe {
            self.device.raw.cmd_write_timestamp(list, vk::PipelineStageFlags::BOTTOM_OF_PIPE, self.pool, index);
        }
    }
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        if !self.device.is_stuck() {
            // SAFETY: command lists hold an Arc of their timestamps, so none is left.
            unsafe { self.device.raw.destroy_query_pool(self.pool, None) };
        }
    }
}
