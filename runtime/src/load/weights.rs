//! Weight bytes from the file to the device, once, without repacking: piece by piece along a route, each slice in the way
//! that was chosen for its tier.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::LoadError;
use crate::load::order::{PIECE_BYTES, Route};
use crate::load::page_cache::PageCache;
use crate::load::reader::{CACHED_BYTES, Reader, on_all_cores};
use crate::load::upload_path::{Source, Way};
use crate::memory::residency::Role;
use crate::vk::memory::{Allocation, Buffer, Flush, Mapping};
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Lane;

/// One weight slice on its way.
pub struct Slice {
    way: Way,
    /// Of its first byte in the file.
    file_offset_bytes: u64,
    len_bytes: u64,
    /// At least as long.
    buffer: Arc<Buffer>,
    /// Present where the host writes the buffer's memory.
    mapping: Option<Mapping>,
}

/// What one submission copies. A GPU takes its time for each of them (of 1 MiB, an H200 was done with 17 GB/s, of 4 with 24), and large
/// ones are more memory to make.
const STAGE_BYTES: usize = 4 << 20;

/// What a piece's arrival is told to: its place on the route. Who breaks off wants no more of them.
pub type Arrived<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

impl Slice {
    /// `fresh` was allocated for `way`.
    pub fn new(way: Way, file_offset_bytes: u64, len_bytes: u64, fresh: Allocation) -> Slice {
        Slice { way, file_offset_bytes, len_bytes, buffer: fresh.buffer, mapping: fresh.mapping }
    }

    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn in_file(&self) -> Range<u64> {
        self.file_offset_bytes..self.file_offset_bytes + self.len_bytes
    }
}

/// Fills the slices' buffers along `route`.
///
/// # Errors
/// When the file cannot be read, or a copy fails.
pub fn fill(
    source: &Source<'_>,
    slices: &mut [Slice],
    route: &Route,
    arrived: &mut Arrived<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    // Imported pages stay.
    let read = slices.iter().filter(|slice| slice.way != Way::Import).map(Slice::in_file);
    let cache = PageCache::of(source.file, read);
    let mut parcels: Vec<Option<Parcel<'_>>> = route.pieces().iter().map(|_| None).collect();
    for (slice, index) in slices.iter_mut().zip(0..) {
        for (parcel, &place) in slice.parcels(route.places(index)).zip(route.places(index)) {
            parcels[place] = Some(parcel);
        }
    }
    let mut parcels = parcels.into_iter().flatten().peekable();
    let reader = Reader::new(source.file, &cache);
    let straight = Reader::of_large_pages(source.file, &cache);
    let stages = Stages::default();
    while let Some(way) = parcels.peek().map(|next| next.way) {
        let run: Vec<Parcel<'_>> = std::iter::from_fn(|| parcels.next_if(|next| next.way == way)).collect();
        let flow = match way {
            Way::Import => fault_in(&reader, &run, arrived)?,
            Way::Map => read_in_place(&reader, run, arrived)?,
            Way::Host => read_in_place(&straight, run, arrived)?,
            Way::Staging => copy_through(&stages, source, &reader, &run, arrived)?,
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// A piece with everything that it takes to move it.
struct Parcel<'s> {
    way: Way,
    place: usize,
    file_offset_bytes: u64,
    len_bytes: u64,
    /// In the buffer.
    offset_bytes: u64,
    buffer: &'s Arc<Buffer>,
    /// Where the host writes it in place.
    target: Option<(&'s mut [u8], Flush<'s>)>,
}

impl Slice {
    /// The slice's pieces in its order, which are at `places` of the route.
    fn parcels<'s>(&'s mut self, places: &'s [usize]) -> impl Iterator<Item = Parcel<'s>> {
        let Slice { way, file_offset_bytes, len_bytes, buffer, mapping } = self;
        let (way, file_offset_bytes, len_bytes, buffer) = (*way, *file_offset_bytes, *len_bytes, &*buffer);
        let mut targets = mapping.as_mut().map(|mapping| {
            let (bytes, flush) = mapping.parts_mut();
            bytes[..len_bytes as usize].chunks_mut(PIECE_BYTES as usize).map(move |bytes| (bytes, flush))
        });
        places.iter().zip((0..).step_by(PIECE_BYTES as usize)).map(move |(&place, offset_bytes)| Parcel {
            way,
            place,
            file_offset_bytes: file_offset_bytes + offset_bytes,
            len_bytes: PIECE_BYTES.min(len_bytes - offset_bytes),
            offset_bytes,
            buffer,
            target: targets.as_mut().and_then(Iterator::next),
        })
    }
}

/// What one core reads at a time.
struct Part<B> {
    /// Index of the parcel, and how far behind its begin.
    parcel: usize,
    begin: u64,
    /// Where they go, or how many they are.
    bytes: B,
}

/// Of each parcel's chunks, of which every one but the last has `part_bytes`.
fn parts<B>(part_bytes: usize, chunks: impl Iterator<Item = impl Iterator<Item = B>>) -> Vec<Part<B>> {
    let of_parcel = |(parcel, chunks)| {
        std::iter::zip(chunks, (0..).step_by(part_bytes)).map(move |(bytes, begin)| Part { parcel, begin, bytes })
    };
    chunks.enumerate().flat_map(of_parcel).collect()
}

/// Does `work` on all parts, and tells of each parcel that is whole.
fn part_by_part<B: Send>(
    parcels: &[Parcel<'_>],
    parts: Vec<Part<B>>,
    work: impl Fn(&Parcel<'_>, Part<B>) -> Result<(), LoadError> + Sync,
    arrived: &mut Arrived<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let mut parts_left = vec![0; parcels.len()];
    parts.iter().for_each(|part| parts_left[part.parcel] += 1);
    let work = |part: Part<B>| {
        let parcel = part.parcel;
        work(&parcels[parcel], part).map(|()| parcel)
    };
    on_all_cores(parts, work, &mut |parcel: usize| {
        parts_left[parcel] -= 1;
        if parts_left[parcel] == 0 { arrived(parcels[parcel].place) } else { ControlFlow::Continue(()) }
    })
}

/// The parcels' parts by their lengths.
fn lengths(part_bytes: usize, parcels: &[Parcel<'_>]) -> Vec<Part<u64>> {
    let chunks = |parcel: &Parcel<'_>| {
        let len_bytes = parcel.len_bytes;
        (0..len_bytes).step_by(part_bytes).map(move |begin| (part_bytes as u64).min(len_bytes - begin))
    };
    parts(part_bytes, parcels.iter().map(chunks))
}

/// Brings each parcel's pages into memory, where they stay.
fn fault_in(
    reader: &Reader<'_>,
    parcels: &[Parcel<'_>],
    arrived: &mut Arrived<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let fault_in = |parcel: &Parcel<'_>, part: Part<u64>| {
        let begin = parcel.file_offset_bytes + part.begin;
        reader.fault_in(begin..begin + part.bytes)
    };
    part_by_part(parcels, lengths(CACHED_BYTES, parcels), fault_in, arrived)
}

/// Reads each parcel to where it stays.
fn read_in_place(
    reader: &Reader<'_>,
    mut parcels: Vec<Parcel<'_>>,
    arrived: &mut Arrived<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let targets = parcels.iter_mut().map(|parcel| parcel.target.take());
    let targets = targets.map(|target| target.expect("slices that are read in place have a mapping"));
    let (targets, flushes): (Vec<&mut [u8]>, Vec<Flush<'_>>) = targets.unzip();
    let part_bytes = reader.part_bytes();
    let parts = parts(part_bytes, targets.into_iter().map(|bytes| bytes.chunks_mut(part_bytes)));
    let read = |parcel: &Parcel<'_>, part: Part<&mut [u8]>| {
        reader.read(parcel.file_offset_bytes + part.begin, part.bytes)?;
        let begin = parcel.offset_bytes + part.begin;
        Ok(flushes[part.parcel].flush(begin..begin + part.bytes.len() as u64)?)
    };
    part_by_part(&parcels, parts, read, arrived)
}

/// Reads each part into a buffer from which the device copies it, while other threads read others.
fn copy_through(
    stages: &Stages,
    source: &Source<'_>,
    reader: &Reader<'_>,
    parcels: &[Parcel<'_>],
    arrived: &mut Arrived<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let copy = |parcel: &Parcel<'_>, part: Part<u64>| {
        let mut stage = stages.take(source)?;
        stage.copy(source, reader, parcel, part)?;
        stages.give_back(stage);
        Ok(())
    };
    part_by_part(parcels, lengths(STAGE_BYTES, parcels), copy, arrived)
}

/// As many as threads copied at once; each holds a part.
#[derive(Default)]
struct Stages(Mutex<Vec<Stage>>);

struct Stage {
    lane: Lane,
    mapping: Mapping,
    buffer: Arc<Buffer>,
}

impl Stages {
    fn take(&self, source: &Source<'_>) -> Result<Stage, LoadError> {
        let idle = self.idle().pop();
        idle.map_or_else(|| Stage::create(source), Ok)
    }

    fn give_back(&self, stage: Stage) {
        self.idle().push(stage);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Stage>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Stage {
    fn create(source: &Source<'_>) -> Result<Stage, LoadError> {
        let Allocation { buffer, mapping } = Buffer::create(source.device, STAGE_BYTES as u64, Role::Staging)?;
        let mapping = mapping.expect("staging buffers are host-visible");
        Ok(Stage { lane: Lane::create(source.device, source.timeout)?, mapping, buffer })
    }

    /// Returns when the part is where it stays.
    fn copy(
        &mut self,
        source: &Source<'_>,
        reader: &Reader<'_>,
        parcel: &Parcel<'_>,
        part: Part<u64>,
    ) -> Result<(), LoadError> {
        let bytes = &mut self.mapping.bytes_mut()[..part.bytes as usize];
        reader.read(parcel.file_offset_bytes + part.begin, bytes)?;
        self.mapping.flush()?;
        let copy = Command::Copy {
            from: self.buffer.range(0, part.bytes),
            to: parcel.buffer.range(parcel.offset_bytes + part.begin, part.bytes),
        };
        Ok(self.lane.run(&[CommandList::record_copies(source.device, vec![copy])?])?)
    }
}
