//! Weight bytes from the file to the device, once, without repacking, each slice in the way that was chosen for its tier.

use std::sync::Arc;

use artifacts::MappedFile;

use crate::error::LoadError;
use crate::reader::Reader;
use crate::residency::Role;
use crate::vk::memory::{Allocation, Buffer, Mapping};
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

/// What one copy moves; there are two such buffers.
const STAGING_BYTES: u64 = 64 << 20;

impl Slice {
    /// `fresh` was allocated for `way`.
    pub fn new(way: Way, file_offset_bytes: u64, len_bytes: u64, fresh: Allocation) -> Slice {
        Slice { way, file_offset_bytes, len_bytes, buffer: fresh.buffer, mapping: fresh.mapping }
    }

    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }
}

/// Fills the slices' buffers; `progress` hears bytes done and in all.
///
/// # Errors
/// When the file cannot be read, or a copy fails.
pub fn fill(source: &Source<'_>, slices: Vec<Slice>, progress: &mut dyn FnMut(u64, u64)) -> Result<(), LoadError> {
    let total: u64 = slices.iter().map(|slice| slice.len_bytes).sum();
    let mut done = 0;
    let mut advance = |bytes: u64| {
        done += bytes;
        progress(done, total);
    };
    advance(0);
    let mut of_way = Way::ALL.map(|_| Vec::new());
    slices.into_iter().for_each(|slice| of_way[slice.way as usize].push(slice));
    let [imported, mapped, hosted, staged] = of_way;
    fault_in(source.file, &imported, &mut advance)?;
    read_in_place(&Reader::cached(source.file), mapped, &mut advance)?;
    read_in_place(&Reader::direct(source.file), hosted, &mut advance)?;
    copy_through_staging(source, &staged, &mut advance)
}

fn fault_in(file: &MappedFile, slices: &[Slice], advance: &mut dyn FnMut(u64)) -> Result<(), LoadError> {
    let pieces = slices.iter().map(|slice| slice.file_offset_bytes..slice.file_offset_bytes + slice.len_bytes);
    Reader::cached(file).fault_in(pieces, advance)
}

fn read_in_place(reader: &Reader<'_>, mut slices: Vec<Slice>, advance: &mut dyn FnMut(u64)) -> Result<(), LoadError> {
    let targets = slices.iter_mut().map(|slice| {
        let mapping = slice.mapping.as_mut().expect("slices that are read in place have a mapping");
        (slice.file_offset_bytes, &mut mapping.bytes_mut()[..slice.len_bytes as usize])
    });
    reader.read(targets, advance)?;
    for mapping in slices.iter().filter_map(|slice| slice.mapping.as_ref()) {
        mapping.flush()?;
    }
    Ok(())
}

/// While the device copies from one buffer, the other is filled.
fn copy_through_staging(source: &Source<'_>, slices: &[Slice], advance: &mut dyn FnMut(u64)) -> Result<(), LoadError> {
    if slices.is_empty() {
        return Ok(());
    }
    let reader = Reader::cached(source.file);
    let mut stages = [Stage::create(source)?, Stage::create(source)?];
    let mut turn = 0;
    for slice in slices {
        for at in (0..slice.len_bytes).step_by(STAGING_BYTES as usize) {
            let now = STAGING_BYTES.min(slice.len_bytes - at);
            let stage = &mut stages[turn % 2];
            stage.lane.wait()?;
            let bytes = &mut stage.mapping.bytes_mut()[..now as usize];
            reader.read([(slice.file_offset_bytes + at, bytes)], advance)?;
            stage.mapping.flush()?;
            let copy = Command::Copy { from: stage.buffer.range(0, now), to: slice.buffer.range(at, now) };
            stage.lane.start(CommandList::record(source.device, vec![copy])?)?;
            turn += 1;
        }
    }
    for stage in &mut stages {
        stage.lane.wait()?;
    }
    Ok(())
}

struct Stage {
    /// Dropped first: it waits for the copy that reads the buffer.
    lane: Lane,
    mapping: Mapping,
    buffer: Arc<Buffer>,
}

impl Stage {
    fn create(source: &Source<'_>) -> Result<Stage, LoadError> {
        let Allocation { buffer, mapping } = Buffer::create(source.device, STAGING_BYTES, Role::Staging)?;
        let mapping = mapping.expect("staging buffers are host-visible");
        Ok(Stage { lane: Lane::create(source.device, source.timeout)?, mapping, buffer })
    }
}
