//! Weight bytes from the file to the device, once, without repacking: read straight into the buffer where the host sees
//! its memory, else through two alternating staging buffers.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use artifacts::MappedFile;

use crate::error::LoadError;
use crate::residency::Role;
use crate::vk::device::Device;
use crate::vk::memory::{Allocation, Buffer, Mapping};
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Lane;

/// One weight slice on its way.
pub struct Slice {
    /// Of its first byte in the file.
    pub file_offset_bytes: u64,
    pub len_bytes: u64,
    /// At least as long.
    pub buffer: Arc<Buffer>,
    /// Present where the host sees the buffer's memory.
    pub mapping: Option<Mapping>,
}

/// What one thread reads at a time.
const PIECE_BYTES: usize = 8 << 20;
/// What one copy moves; there are two such buffers.
const STAGING_BYTES: u64 = 64 << 20;

/// Fills the slices' buffers; `progress` hears bytes done and in all. Returns how it was done, for people.
///
/// # Errors
/// When the file cannot be read, or a copy fails.
pub fn fill(
    device: &Arc<Device>,
    file: &MappedFile,
    slices: Vec<Slice>,
    timeout: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<String, LoadError> {
    let total: u64 = slices.iter().map(|slice| slice.len_bytes).sum();
    let mut done = 0;
    let mut advance = |bytes: u64| {
        done += bytes;
        progress(done, total);
    };
    advance(0);
    let (direct, staged): (Vec<Slice>, Vec<Slice>) = slices.into_iter().partition(|slice| slice.mapping.is_some());
    let way = match (direct.is_empty(), staged.is_empty()) {
        (false, true) => "reads straight into device memory",
        (true, false) => "staging copies",
        (false, false) => "reads straight into device memory, and staging copies",
        (true, true) => "nothing to load",
    };
    read_in_place(file, direct, &mut advance)?;
    copy_through_staging(device, file, &staged, timeout, &mut advance)?;
    Ok(way.into())
}

fn read_in_place(file: &MappedFile, mut slices: Vec<Slice>, advance: &mut dyn FnMut(u64)) -> Result<(), LoadError> {
    let mut pieces = Vec::new();
    for slice in &mut slices {
        let mapping = slice.mapping.as_mut().expect("slices without a mapping are staged");
        pieces.extend(cut(&mut mapping.bytes_mut()[..slice.len_bytes as usize], slice.file_offset_bytes));
    }
    read_pieces(file, pieces, advance)?;
    for mapping in slices.iter().filter_map(|slice| slice.mapping.as_ref()) {
        mapping.flush()?;
    }
    Ok(())
}

/// While the device copies from one buffer, the other is filled.
fn copy_through_staging(
    device: &Arc<Device>,
    file: &MappedFile,
    slices: &[Slice],
    timeout: Duration,
    advance: &mut dyn FnMut(u64),
) -> Result<(), LoadError> {
    if slices.is_empty() {
        return Ok(());
    }
    let mut stages = [Stage::create(device, timeout)?, Stage::create(device, timeout)?];
    let mut turn = 0;
    for slice in slices {
        for at in (0..slice.len_bytes).step_by(STAGING_BYTES as usize) {
            let now = STAGING_BYTES.min(slice.len_bytes - at);
            let stage = &mut stages[turn % 2];
            stage.lane.wait()?;
            let bytes = &mut stage.mapping.bytes_mut()[..now as usize];
            read_pieces(file, cut(bytes, slice.file_offset_bytes + at).collect(), advance)?;
            stage.mapping.flush()?;
            let copy = Command::Copy { from: stage.buffer.range(0, now), to: slice.buffer.range(at, now) };
            stage.lane.start(CommandList::record(device, vec![copy])?)?;
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
    fn create(device: &Arc<Device>, timeout: Duration) -> Result<Stage, LoadError> {
        let Allocation { buffer, mapping } = Buffer::create(device, STAGING_BYTES, Role::Staging)?;
        let mapping = mapping.expect("staging buffers are host-visible");
        Ok(Stage { lane: Lane::create(device, timeout)?, mapping, buffer })
    }
}

/// Where in the file, and where to.
type Piece<'a> = (u64, &'a mut [u8]);

fn cut(bytes: &mut [u8], file_offset_bytes: u64) -> impl Iterator<Item = Piece<'_>> {
    bytes
        .chunks_mut(PIECE_BYTES)
        .enumerate()
        .map(move |(index, piece)| (file_offset_bytes + (index * PIECE_BYTES) as u64, piece))
}

/// Reads on all cores; `advance` hears the length of each piece when it is there.
fn read_pieces(file: &MappedFile, pieces: Vec<Piece<'_>>, advance: &mut dyn FnMut(u64)) -> Result<(), LoadError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
    let queue = Mutex::new(pieces.into_iter());
    let (sender, receiver) = mpsc::channel();
    let read = thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || read_until_empty(file.file(), queue, &sender));
        }
        drop(sender);
        // Leaving early drops the receiver, which tells the threads to stop.
        for piece in receiver {
            advance(piece?);
        }
        Ok(())
    });
    read.map_err(|source| LoadError::File { path: file.path().to_owned(), source })
}

fn read_until_empty(file: &File, queue: &Mutex<std::vec::IntoIter<Piece<'_>>>, sender: &mpsc::Sender<io::Result<u64>>) {
    loop {
        let next = queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        let Some((offset_bytes, piece)) = next else { return };
        let read = file.read_exact_at(piece, offset_bytes).map(|()| piece.len() as u64);
        if sender.send(read).is_err() {
            return;
        }
    }
}
