//! Pages of the KV cache to the host and back, through a buffer that both can access.
//!
//! ```text
//! payload   ├──── 16 MiB ────┼──── 16 MiB ────┼─ … ─┤     one after the other in the same buffer
//! places      ├ K of a layer ┤├ V ┤   ├ K of the next ┤   what of it is where on the device
//! ```

use std::ops::Range;
use std::sync::Arc;

use crate::device::memory_types::BufferUse;
use crate::memory::buffers::KvBuffers;
use crate::vk::Failure;
use crate::vk::buffer::{Allocation, Buffer, BufferRange, Mapping};
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::submission::SubmissionQueue;

/// Largest size of the buffer in between. Parts of a payload begin at multiples of it.
const STAGING_BYTES: u64 = 16 << 20;

/// The buffer in between, in memory that the host reads fast, too: it hashes there what it has read from a file. It is kept from one transfer to the
/// next, because drivers take a millisecond and more to allocate such memory, while all sequences wait.
#[derive(Default)]
pub struct StagingBuffer(Option<(Arc<Buffer>, Mapping)>);

impl StagingBuffer {
    /// The buffer, for a payload of `len_bytes`, or parts of it.
    fn of(&mut self, device: &Arc<Device>, len_bytes: u64) -> Result<(Arc<Buffer>, &mut Mapping), Failure> {
        let len_bytes = len_bytes.clamp(1, STAGING_BYTES);
        self.0.take_if(|(buffer, _)| buffer.len_bytes() < len_bytes);
        if self.0.is_none() {
            let Allocation { buffer, mapping } = Buffer::create(device, len_bytes, BufferUse::Readback)?;
            self.0 = Some((buffer, mapping.expect("readbacks are host-visible")));
        }
        let (buffer, mapping) = self.0.as_mut().expect("it was just made");
        Ok((buffer.clone(), mapping))
    }
}

/// A range of a device buffer, and where its bytes are in a payload.
pub struct Place {
    at: u64,
    on_device: BufferRange,
}

impl Place {
    fn end(&self) -> u64 {
        self.at + self.on_device.len_bytes
    }
}

/// Where these physical pages of a KV group, the first of `n_pages`, are in a payload whose bytes of the group begin at `at`, in the order of
/// [`unicorn_artifact::kv_segment`].
pub fn places(group: &KvBuffers, pages: &[u32], n_pages: u32, at: u64) -> impl Iterator<Item = Place> {
    let (taken, all) = (group.part_bytes(pages.len() as u64), group.part_bytes(n_pages.into()));
    let mut done = 0;
    group.ranges(pages).map(move |on_device| {
        let place = at + done / taken * all + done % taken;
        done += on_device.len_bytes;
        Place { at: place, on_device }
    })
}

/// Appends the bytes of these physical pages of a KV group to `payload`, in the order of [`unicorn_artifact::kv_segment`]. Nothing may be
/// in flight.
pub fn read_pages(
    queue: &mut SubmissionQueue,
    staging: &mut StagingBuffer,
    group: &KvBuffers,
    pages: &[u32],
    payload: &mut Vec<u8>,
) -> Result<(), Failure> {
    if pages.is_empty() {
        return Ok(());
    }
    let device = queue.device().clone();
    let places: Vec<Place> = places(group, pages, pages.len() as u32, 0).collect();
    let len_bytes = group.bytes_of(pages);
    let (staging, mapping) = staging.of(&device, len_bytes)?;
    payload.reserve_exact(len_bytes as usize);
    for part in parts(len_bytes) {
        let copies =
            copies(&places, &part, &staging, |staged, on_device| Command::Copy { from: on_device, to: staged });
        queue.run(&[CommandList::record(&device, copies)?])?;
        mapping.invalidate()?;
        payload.extend_from_slice(&mapping.bytes()[..(part.end - part.start) as usize]);
    }
    Ok(())
}

/// Writes what `places`, in their order, have of a payload of `len_bytes`, which `read` gives part after part; false: it could not. Nothing
/// may be in flight.
pub fn write_places(
    queue: &mut SubmissionQueue,
    staging: &mut StagingBuffer,
    places: &[Place],
    len_bytes: u64,
    read: &mut dyn FnMut(&mut [u8]) -> bool,
) -> Result<bool, Failure> {
    let device = queue.device().clone();
    let (staging, mapping) = staging.of(&device, len_bytes)?;
    for part in parts(len_bytes) {
        if !read(&mut mapping.bytes_mut()[..(part.end - part.start) as usize]) {
            return Ok(false);
        }
        mapping.flush()?;
        let copies = copies(places, &part, &staging, |staged, on_device| Command::Copy { from: staged, to: on_device });
        queue.run(&[CommandList::record(&device, copies)?])?;
    }
    Ok(true)
}

/// Ranges of a payload that fill the buffer in between, one after the other.
fn parts(len_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len_bytes).step_by(STAGING_BYTES as usize).map(move |begin| begin..len_bytes.min(begin + STAGING_BYTES))
}

/// A command for what each place has of a part of the payload: with the range of the buffer in between, and that on the device.
fn copies(
    places: &[Place],
    part: &Range<u64>,
    staging: &Arc<Buffer>,
    command: impl Fn(BufferRange, BufferRange) -> Command,
) -> Vec<Command> {
    let first = places.partition_point(|place| place.end() <= part.start);
    let of_part = places[first..].iter().take_while(|place| place.at < part.end);
    let copy = |place: &Place| {
        let (begin, end) = (place.at.max(part.start), place.end().min(part.end));
        let BufferRange { buffer, offset_bytes, .. } = &place.on_device;
        let on_device = buffer.range(offset_bytes + begin - place.at, end - begin);
        command(staging.range(begin - part.start, end - begin), on_device)
    };
    of_part.map(copy).collect()
}
