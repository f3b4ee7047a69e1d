//! Weight bytes from the file to the device, once, without repacking: piece by piece along a route, each slice in the way
//! that was chosen for its tier.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::error::LoadError;
use crate::reader::{Reader, on_all_cores, on_all_cores_beside};
use crate::residency::Role;
use crate::route::{PIECE_BYTES, Route};
use crate::vk::memory::{Allocation, Buffer, Flush, Mapping};
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Lane;
use crate::ways::{Source, Way};

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

/// What a piece's arrival is told to: its place on the route. Who breaks off wants no more of them.
pub type Arrived<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

/// What one submission copies; there are two such buffers. Some pieces, so that all cores read.
const STAGING_BYTES: u64 = 8 * PIECE_BYTES;
/// What one core reads at a time, so that many cores have something to do, and that the file is read nearly in order, as
/// systems like it that read ahead.
const READ_BYTES: u64 = 2 << 20;

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
    let mut parcels: Vec<Option<Parcel<'_>>> = route.pieces().iter().map(|_| None).collect();
    for (slice, index) in slices.iter_mut().zip(0..) {
        for (parcel, &place) in slice.parcels(route.places(index)).zip(route.places(index)) {
            parcels[place] = Some(parcel);
        }
    }
    let mut parcels = parcels.into_iter().flatten().peekable();
    let (cached, direct) = (Reader::cached(source.file), Reader::direct(source.file));
    let mut stages = None;
    while let Some(way) = parcels.peek().map(|next| next.way) {
        let run: Vec<Parcel<'_>> = std::iter::from_fn(|| parcels.next_if(|next| next.way == way)).collect();
        let flow = match way {
            Way::Import => on_all_cores(run, |parcel| parcel.fault_in(&cached), arrived)?,
            Way::Map => read_in_place(&cached, run, arrived)?,
            Way::Host => read_in_place(&direct, run, arrived)?,
            Way::Staging => {
                let stages = match &mut stages {
                    Some(stages) => stages,
                    none => none.insert([Stage::create(source)?, Stage::create(source)?]),
                };
                copy_through(stages, source, &cached, run, arrived)?
            }
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

impl Parcel<'_> {
    fn fault_in(self, reader: &Reader<'_>) -> Result<usize, LoadError> {
        reader.fault_in(self.file_offset_bytes..self.file_offset_bytes + self.len_bytes)?;
        Ok(self.place)
    }
}

/// What one core reads at a time.
struct Part<'b> {
    /// Index of the parcel, and how far behind its begin.
    parcel: usize,
    begin: u64,
    bytes: &'b mut [u8],
}

/// Cuts where each of some parcels is read to.
fn parts<'b>(targets: impl IntoIterator<Item = &'b mut [u8]>) -> Vec<Part<'b>> {
    let mut parts = Vec::new();
    for (parcel, bytes) in targets.into_iter().enumerate() {
        let chunks = bytes.chunks_mut(READ_BYTES as usize).zip((0..).step_by(READ_BYTES as usize));
        parts.extend(chunks.map(|(bytes, begin)| Part { parcel, begin, bytes }));
    }
    parts
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
    let parts = parts(targets);
    let mut parts_left = vec![0; parcels.len()];
    parts.iter().for_each(|part| parts_left[part.parcel] += 1);
    let read = |part: Part<'_>| {
        let Parcel { file_offset_bytes, offset_bytes, .. } = parcels[part.parcel];
        reader.read(file_offset_bytes + part.begin, part.bytes)?;
        let begin = offset_bytes + part.begin;
        flushes[part.parcel].flush(begin..begin + part.bytes.len() as u64)?;
        Ok(part.parcel)
    };
    on_all_cores(parts, read, &mut |parcel: usize| {
        parts_left[parcel] -= 1;
        if parts_left[parcel] == 0 { arrived(parcels[parcel].place) } else { ControlFlow::Continue(()) }
    })
}

/// While the device copies from one buffer, the other is filled. The first lots are small, so that what steps read first is
/// there soon.
fn copy_through(
    stages: &mut [Stage; 2],
    source: &Source<'_>,
    reader: &Reader<'_>,
    mut parcels: Vec<Parcel<'_>>,
    arrived: &mut Arrived<'_>,
) -> Result<ControlFlow<()>, LoadError> {
    let [mut idle, mut busy] = stages.each_mut();
    let mut lot = 1;
    while !parcels.is_empty() {
        let rest = parcels.split_off(parcels.len().min(lot));
        if idle.send(source, reader, &parcels, || busy.finish(arrived))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        parcels = rest;
        lot = (2 * lot).min((STAGING_BYTES / PIECE_BYTES) as usize);
        std::mem::swap(&mut idle, &mut busy);
    }
    busy.finish(arrived)
}

struct Stage {
    /// Dropped first: it waits for the copies that read the buffer.
    lane: Lane,
    mapping: Mapping,
    buffer: Arc<Buffer>,
    /// Places of what is being copied.
    under_way: Vec<usize>,
}

impl Stage {
    fn create(source: &Source<'_>) -> Result<Stage, LoadError> {
        let Allocation { buffer, mapping } = Buffer::create(source.device, STAGING_BYTES, Role::Staging)?;
        let mapping = mapping.expect("staging buffers are host-visible");
        let lane = Lane::create(source.device, source.timeout)?;
        Ok(Stage { lane, mapping, buffer, under_way: Vec::new() })
    }

    /// Reads parcels, for which there is room, and lets the device copy them; `meanwhile` is done beside the reads.
    fn send(
        &mut self,
        source: &Source<'_>,
        reader: &Reader<'_>,
        parcels: &[Parcel<'_>],
        meanwhile: impl FnOnce() -> Result<ControlFlow<()>, LoadError>,
    ) -> Result<ControlFlow<()>, LoadError> {
        let chunks = self.mapping.bytes_mut().chunks_mut(PIECE_BYTES as usize);
        let chunks = parcels.iter().zip(chunks).map(|(parcel, chunk)| &mut chunk[..parcel.len_bytes as usize]);
        let read = |part: Part<'_>| reader.read(parcels[part.parcel].file_offset_bytes + part.begin, part.bytes);
        let flow = on_all_cores_beside(meanwhile, parts(chunks), read, &mut |()| ControlFlow::Continue(()))?;
        if flow.is_break() {
            return Ok(flow);
        }
        self.mapping.flush()?;
        let copy = |(parcel, at): (&Parcel<'_>, u64)| Command::Copy {
            from: self.buffer.range(at, parcel.len_bytes),
            to: parcel.buffer.range(parcel.offset_bytes, parcel.len_bytes),
        };
        let copies = parcels.iter().zip((0..).step_by(PIECE_BYTES as usize)).map(copy).collect();
        self.lane.start(CommandList::record_copies(source.device, copies)?)?;
        self.under_way.extend(parcels.iter().map(|parcel| parcel.place));
        Ok(flow)
    }

    /// Waits for what was sent, and tells of it.
    fn finish(&mut self, arrived: &mut Arrived<'_>) -> Result<ControlFlow<()>, LoadError> {
        self.lane.wait()?;
        Ok(self.under_way.drain(..).try_for_each(arrived))
    }
}
