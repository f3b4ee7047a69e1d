//! Pages of the KV cache to the host and back, by several threads, each through a buffer that host and device can access.
//!
//! ```text
//! payload   ├── 4 MiB ──┼── 4 MiB ──┼─ … ─┤     each in the buffer of the next idle thread
//! places      ├ K of a layer ┤├ V ┤   ├ K of the next ┤   what of it is where on the device
//! ```

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::memory::buffers::KvBuffers;
use crate::memory::staging::{STAGING_BYTES, StagingPool};
use crate::parallel;
use crate::vk::Failure;
use crate::vk::buffer::{Buffer, BufferRange};
use crate::vk::command_list::{Command, CommandList};

/// Most threads that copy at the same time: each reads and hashes, so that they are what limits the rate. Their buffers are kept from one transfer to
/// the next, because drivers take a millisecond and more to allocate one, while all sequences wait.
const MAX_THREADS: usize = 16;

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

/// Reads the bytes of these physical pages of a KV group, in the order of [`unicorn_artifact::kv_segment`]. Nothing may be in flight.
pub fn read_pages(staging: &StagingPool, group: &KvBuffers, pages: &[u32], payload: &mut [u8]) -> Result<(), Failure> {
    if pages.is_empty() {
        return Ok(());
    }
    let places: Vec<Place> = places(group, pages, pages.len() as u32, 0).collect();
    let parts = parts(payload.len() as u64).zip(payload.chunks_mut(STAGING_BYTES));
    let read = |(part, bytes): (Range<u64>, &mut [u8])| {
        let mut buffer = staging.take()?;
        let command = |staged, on_device| Command::Copy { from: on_device, to: staged };
        buffer.queue.run(&[CommandList::record(staging.device(), copies(&places, &part, &buffer.buffer, command))?])?;
        buffer.mapping.invalidate()?;
        bytes.copy_from_slice(&buffer.mapping.bytes()[..bytes.len()]);
        staging.put_back(buffer);
        Ok(())
    };
    parallel::for_each(threads(), parts, read, &mut |()| ControlFlow::Continue(())).map(drop)
}

/// Writes what `places`, in their order, have of a payload of `len_bytes`, whose parts `read` gives by where they begin: several at the same time,
/// in no order. Returns what it returned of each part, in their order; `None`: one could not be read. Nothing may be in flight.
pub fn write_places<R: Send>(
    staging: &StagingPool,
    places: &[Place],
    len_bytes: u64,
    read: &(dyn Fn(u64, &mut [u8]) -> Option<R> + Sync),
) -> Result<Option<Vec<R>>, Failure> {
    let write = |part: Range<u64>| {
        let mut buffer = staging.take()?;
        let result = read(part.start, &mut buffer.mapping.bytes_mut()[..(part.end - part.start) as usize]);
        if result.is_some() {
            buffer.mapping.flush()?;
            let command = |staged, on_device| Command::Copy { from: staged, to: on_device };
            let copies = copies(places, &part, &buffer.buffer, command);
            buffer.queue.run(&[CommandList::record(staging.device(), copies)?])?;
        }
        staging.put_back(buffer);
        Ok(result.map(|result| (part.start, result)))
    };
    let mut results = Vec::new();
    let flow = parallel::for_each(threads(), parts(len_bytes), write, &mut |result| match result {
        Some(result) => {
            results.push(result);
            ControlFlow::Continue(())
        }
        None => ControlFlow::Break(()),
    })?;
    results.sort_unstable_by_key(|(begin, _)| *begin);
    Ok(flow.is_continue().then(|| results.into_iter().map(|(_, result)| result).collect()))
}

fn threads() -> usize {
    parallel::cores().min(MAX_THREADS)
}

/// Ranges of a payload that each fill a buffer.
fn parts(len_bytes: u64) -> impl Iterator<Item = Range<u64>> + Send {
    (0..len_bytes).step_by(STAGING_BYTES).map(move |begin| begin..len_bytes.min(begin + STAGING_BYTES as u64))
}

/// A command for what each place has of a part of the payload: with the range of the staging buffer, and that on the device.
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
