//! Pages of the KV cache to the host and back, through a buffer that both can access.

use std::sync::Arc;

use crate::device::memory_types::BufferUse;
use crate::memory::buffers::KvBuffers;
use crate::vk::Failure;
use crate::vk::buffer::{Allocation, Buffer, BufferRange, Mapping};
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::submission::SubmissionQueue;

/// Largest size of the buffer in between, which exists only during a transfer.
const STAGING_BYTES: u64 = 16 << 20;

/// A part of a device buffer, and where its bytes are in the buffer in between.
struct Part {
    on_device: BufferRange,
    staged_at: u64,
}

/// Appends the bytes of these physical pages of a KV group to `payload`, in the order of [`unicorn_artifact::kv_segment`]. Nothing may be
/// in flight.
pub fn read_pages(
    queue: &mut SubmissionQueue,
    group: &KvBuffers,
    pages: &[u32],
    payload: &mut Vec<u8>,
) -> Result<(), Failure> {
    let device = queue.device().clone();
    let (staging, mapping) = staging(&device, BufferUse::Readback, group.bytes_of(pages))?;
    for batch in batches(group, pages) {
        let to = |part: &Part| staging.range(part.staged_at, part.on_device.len_bytes);
        let copy = |part: &Part| Command::Copy { from: part.on_device.clone(), to: to(part) };
        queue.run(&[CommandList::record(&device, batch.iter().map(copy).collect())?])?;
        mapping.invalidate()?;
        payload.extend_from_slice(&mapping.bytes()[..len_bytes(&batch) as usize]);
    }
    Ok(())
}

/// Writes what [`read_pages`] has read to these physical pages. Nothing may be in flight.
///
/// # Panics
/// If the payload has another length than the pages.
pub fn write_pages(
    queue: &mut SubmissionQueue,
    group: &KvBuffers,
    pages: &[u32],
    mut payload: &[u8],
) -> Result<(), Failure> {
    assert_eq!(group.bytes_of(pages), payload.len() as u64, "the payload is that of the pages");
    let device = queue.device().clone();
    let (staging, mut mapping) = staging(&device, BufferUse::Staging, payload.len() as u64)?;
    for batch in batches(group, pages) {
        let now;
        (now, payload) = payload.split_at(len_bytes(&batch) as usize);
        mapping.bytes_mut()[..now.len()].copy_from_slice(now);
        mapping.flush()?;
        let from = |part: &Part| staging.range(part.staged_at, part.on_device.len_bytes);
        let copy = |part: &Part| Command::Copy { from: from(part), to: part.on_device.clone() };
        queue.run(&[CommandList::record(&device, batch.iter().map(copy).collect())?])?;
    }
    Ok(())
}

fn staging(device: &Arc<Device>, usage: BufferUse, len_bytes: u64) -> Result<(Arc<Buffer>, Mapping), Failure> {
    let Allocation { buffer, mapping } = Buffer::create(device, len_bytes.clamp(1, STAGING_BYTES), usage)?;
    Ok((buffer, mapping.expect("uploads and readbacks are host-visible")))
}

/// Parts that fill the buffer in between, again and again.
fn batches(group: &KvBuffers, pages: &[u32]) -> Vec<Vec<Part>> {
    let mut batches = Vec::new();
    let mut staged_at = STAGING_BYTES;
    for BufferRange { buffer, mut offset_bytes, len_bytes: mut left } in group.ranges(pages) {
        while left > 0 {
            if staged_at == STAGING_BYTES {
                batches.push(Vec::new());
                staged_at = 0;
            }
            let now = left.min(STAGING_BYTES - staged_at);
            let part = Part { on_device: buffer.range(offset_bytes, now), staged_at };
            batches.last_mut().expect("one was just pushed").push(part);
            (staged_at, offset_bytes, left) = (staged_at + now, offset_bytes + now, left - now);
        }
    }
    batches
}

fn len_bytes(batch: &[Part]) -> u64 {
    batch.iter().map(|part| part.on_device.len_bytes).sum()
}
