//! Copies weight bytes from the file to the device, once and unchanged: chunk by chunk in load order, each slice over its path.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::load::order::{LoadOrder, WEIGHT_CHUNK_BYTES};
use crate::load::page_cache::PageCache;
use crate::load::reader::{CACHED_READ_BYTES, Reader, for_each_part};
use crate::load::slices::{Slice, UploadSource};
use crate::load::upload_path::UploadPath;
use crate::memory::staging::{STAGING_BYTES, StagingBuffer, StagingPool};
use crate::vk::buffer::{Buffer, Flush};
use crate::vk::command_list::{Command, CommandList};

/// Called with a chunk's position in the load order when the chunk is complete. Returning `Break` stops the iteration.
pub type OnChunk<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

/// Fills the slices' buffers in `order`; returns when all of it is on the device, or after a `Break`.
///
/// # Errors
/// When the file cannot be read, or a copy fails.
pub fn fill(
    source: &UploadSource<'_>,
    slices: &mut [Slice],
    order: &LoadOrder,
    on_chunk: &mut OnChunk<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    // Imported pages stay in the page cache.
    let read = slices.iter().filter(|slice| slice.path != UploadPath::Import).map(Slice::in_file);
    let cache = PageCache::new(source.file, read, source.keeps_page_cache);
    let mut transfers: Vec<Option<Transfer<'_>>> = order.chunks().iter().map(|_| None).collect();
    for (slice, index) in slices.iter_mut().zip(0..) {
        for (transfer, &position) in slice.transfers(order.positions(index)).zip(order.positions(index)) {
            transfers[position] = Some(transfer);
        }
    }
    let mut transfers = transfers.into_iter().flatten().peekable();
    let reader = Reader::new(source.file, &cache);
    let in_place = Reader::into_process_memory(source.file, &cache);
    let staging = StagingPool::new(source.device, source.timeout, BufferUse::Staging);
    while let Some(path) = transfers.peek().map(|next| next.path) {
        let run: Vec<Transfer<'_>> = std::iter::from_fn(|| transfers.next_if(|next| next.path == path)).collect();
        let flow = match path {
            UploadPath::Import => fault_in(&reader, &run, on_chunk)?,
            UploadPath::Map => read_in_place(&reader, run, on_chunk)?,
            UploadPath::Host => read_in_place(&in_place, run, on_chunk)?,
            UploadPath::Staging => copy_staged(&staging, source, &reader, &run, on_chunk)?,
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// One chunk with all that is needed to load it.
struct Transfer<'s> {
    path: UploadPath,
    /// Position in the load order.
    position: usize,
    file_offset_bytes: u64,
    len_bytes: u64,
    /// Offset in `buffer`.
    offset_bytes: u64,
    buffer: &'s Arc<Buffer>,
    /// The mapped bytes, where the host writes them in place.
    target: Option<(&'s mut [u8], Flush<'s>)>,
}

impl Slice {
    /// The slice's chunks by offset; `positions` are their positions in the load order.
    fn transfers<'s>(&'s mut self, positions: &'s [usize]) -> impl Iterator<Item = Transfer<'s>> {
        let Slice { path, file_offset_bytes, len_bytes, buffer, mapping } = self;
        let (path, file_offset_bytes, len_bytes, buffer) = (*path, *file_offset_bytes, *len_bytes, &*buffer);
        let mut targets = mapping.as_mut().map(|mapping| {
            let (bytes, flush) = mapping.parts_mut();
            bytes[..len_bytes as usize].chunks_mut(WEIGHT_CHUNK_BYTES as usize).map(move |bytes| (bytes, flush))
        });
        let offsets = (0..).step_by(WEIGHT_CHUNK_BYTES as usize);
        positions.iter().zip(offsets).map(move |(&position, offset_bytes)| Transfer {
            path,
            position,
            file_offset_bytes: file_offset_bytes + offset_bytes,
            len_bytes: WEIGHT_CHUNK_BYTES.min(len_bytes - offset_bytes),
            offset_bytes,
            buffer,
            target: targets.as_mut().and_then(Iterator::next),
        })
    }
}

/// Part of a chunk that one thread loads at a time.
struct Part<B> {
    /// Index into the transfers.
    transfer: usize,
    /// Offset in the chunk.
    begin: u64,
    /// The mapped bytes, or their number.
    bytes: B,
}

/// The parts of each transfer, given their `bytes`. All but the last of a transfer have `part_bytes`.
fn parts<B>(part_bytes: usize, bytes: impl Iterator<Item = impl Iterator<Item = B>>) -> Vec<Part<B>> {
    let of_transfer = |(transfer, bytes)| {
        std::iter::zip(bytes, (0..).step_by(part_bytes)).map(move |(bytes, begin)| Part { transfer, begin, bytes })
    };
    bytes.enumerate().flat_map(of_transfer).collect()
}

/// Does `work` on all parts on several threads, and reports each chunk whose parts are complete.
fn load_parts<B: Send>(
    transfers: &[Transfer<'_>],
    parts: Vec<Part<B>>,
    work: impl Fn(&Transfer<'_>, Part<B>) -> Result<(), LoadError> + Sync,
    on_chunk: &mut OnChunk<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let mut parts_left = vec![0; transfers.len()];
    parts.iter().for_each(|part| parts_left[part.transfer] += 1);
    let work = |part: Part<B>| {
        let transfer = part.transfer;
        work(&transfers[transfer], part).map(|()| transfer)
    };
    for_each_part(parts, work, &mut |transfer: usize| {
        parts_left[transfer] -= 1;
        if parts_left[transfer] == 0 { on_chunk(transfers[transfer].position) } else { ControlFlow::Continue(()) }
    })
}

/// The transfers' parts by length.
fn part_lengths(part_bytes: usize, transfers: &[Transfer<'_>]) -> Vec<Part<u64>> {
    let lengths = |transfer: &Transfer<'_>| {
        let len_bytes = transfer.len_bytes;
        (0..len_bytes).step_by(part_bytes).map(move |begin| (part_bytes as u64).min(len_bytes - begin))
    };
    parts(part_bytes, transfers.iter().map(lengths))
}

/// [`UploadPath::Import`]: reads the mapped file's pages into the page cache, where the device reads them.
fn fault_in(
    reader: &Reader<'_>,
    transfers: &[Transfer<'_>],
    on_chunk: &mut OnChunk<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let fault_in = |transfer: &Transfer<'_>, part: Part<u64>| {
        let begin = transfer.file_offset_bytes + part.begin;
        reader.fault_in(begin..begin + part.bytes)
    };
    load_parts(transfers, part_lengths(CACHED_READ_BYTES, transfers), fault_in, on_chunk)
}

/// [`UploadPath::Map`] and [`UploadPath::Host`]: reads into the buffers' mappings.
fn read_in_place(
    reader: &Reader<'_>,
    mut transfers: Vec<Transfer<'_>>,
    on_chunk: &mut OnChunk<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let targets = transfers.iter_mut().map(|transfer| transfer.target.take());
    let targets = targets.map(|target| target.expect("slices that are read in place have a mapping"));
    let (targets, flushes): (Vec<&mut [u8]>, Vec<Flush<'_>>) = targets.unzip();
    let part_bytes = reader.part_bytes();
    let parts = parts(part_bytes, targets.into_iter().map(|bytes| bytes.chunks_mut(part_bytes)));
    let read = |transfer: &Transfer<'_>, part: Part<&mut [u8]>| {
        reader.read(transfer.file_offset_bytes + part.begin, part.bytes)?;
        let begin = transfer.offset_bytes + part.begin;
        Ok(flushes[part.transfer].flush(begin..begin + part.bytes.len() as u64)?)
    };
    load_parts(&transfers, parts, read, on_chunk)
}

/// [`UploadPath::Staging`]: each thread reads a part into a staging buffer, and the device copies it.
fn copy_staged(
    staging: &StagingPool,
    source: &UploadSource<'_>,
    reader: &Reader<'_>,
    transfers: &[Transfer<'_>],
    on_chunk: &mut OnChunk<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let copy = |transfer: &Transfer<'_>, part: Part<u64>| {
        let mut buffer = staging.take()?;
        copy_part(&mut buffer, source, reader, transfer, &part)?;
        staging.put_back(buffer);
        Ok(())
    };
    load_parts(transfers, part_lengths(STAGING_BYTES, transfers), copy, on_chunk)
}

/// Returns when the part is in the slice's buffer.
fn copy_part(
    staging: &mut StagingBuffer,
    source: &UploadSource<'_>,
    reader: &Reader<'_>,
    transfer: &Transfer<'_>,
    part: &Part<u64>,
) -> Result<(), LoadError> {
    let bytes = &mut staging.mapping.bytes_mut()[..part.bytes as usize];
    reader.read(transfer.file_offset_bytes + part.begin, bytes)?;
    staging.mapping.flush()?;
    let copy = Command::Copy {
        from: staging.buffer.range(0, part.bytes),
        to: transfer.buffer.range(transfer.offset_bytes + part.begin, part.bytes),
    };
    Ok(staging.queue.run(&[CommandList::record_copies(source.device, vec![copy])?])?)
}
