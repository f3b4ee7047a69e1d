//! Large reads of the artifact on several threads, which leave nothing in the system's page cache unless it is kept.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;

use memmap2::{Advice, MmapMut};
use unicorn_artifact::MappedFile;

use crate::error::LoadError;
use crate::load::page_cache::PageCache;
use crate::parallel;
use crate::vk::faults;

/// Reads ranges of the artifact; threads share it.
pub struct Reader<'a> {
    file: &'a MappedFile,
    cache: &'a PageCache<'a>,
    /// The file opened for direct reads, which bypass the page cache; `None`: the page cache is kept, or the file system has no
    /// such reads.
    direct: Option<File>,
    /// Direct reads go to their target without an intermediate page.
    is_direct_to_target: bool,
}

/// Disks reach their bandwidth with several reads in flight, and a thread that waits for one takes no core.
const MIN_THREADS: usize = 4;
/// Each thread has up to 6 MiB of buffers, and 16 readers saturate memory.
const MAX_THREADS: usize = 32;
/// Direct reads have lengths and memory addresses that are multiples of this.
const DIRECT_ALIGN_BYTES: usize = 4 << 10;
/// Size of one read from the page cache. Four of them stay within a readahead window of 8 MiB; reads beyond it restart
/// readahead with small pages. Other windows and more threads were not measured.
pub const CACHED_READ_BYTES: usize = 1 << 20;
/// Size of one direct read: a large page.
const DIRECT_READ_BYTES: usize = 2 << 20;

thread_local! {
    /// The page through which this thread's direct reads go.
    static INTERMEDIATE: RefCell<Option<MmapMut>> = const { RefCell::new(None) };
}

impl<'a> Reader<'a> {
    /// A reader into any memory. What is not in the page cache is read directly into a page of this process and copied,
    /// because direct reads into a driver's mapping fail.
    pub fn new(file: &'a MappedFile, cache: &'a PageCache<'a>) -> Reader<'a> {
        let direct = if cache.is_kept() { None } else { file.open_direct().ok() };
        Reader { file, cache, direct, is_direct_to_target: false }
    }

    /// A reader into page-aligned memory of this process.
    pub fn into_process_memory(file: &'a MappedFile, cache: &'a PageCache<'a>) -> Reader<'a> {
        Reader { is_direct_to_target: true, ..Reader::new(file, cache) }
    }

    /// How many bytes to read at a time.
    pub fn part_bytes(&self) -> usize {
        if self.direct.is_some() { DIRECT_READ_BYTES } else { CACHED_READ_BYTES }
    }

    /// Fills `target` from `offset_bytes` of the file on: from the page cache what is there, the rest directly.
    pub fn read(&self, offset_bytes: u64, target: &mut [u8]) -> Result<(), LoadError> {
        self.try_read(offset_bytes, target).map_err(|error| self.error(error))
    }

    /// Reads a range of the mapped file into the page cache.
    pub fn fault_in(&self, range: Range<u64>) -> Result<(), LoadError> {
        self.file.fault_in(range.start as usize..range.end as usize).map_err(|error| self.error(error))
    }

    fn try_read(&self, offset_bytes: u64, target: &mut [u8]) -> io::Result<()> {
        let end = offset_bytes + target.len() as u64;
        let done = match &self.direct {
            Some(direct) if !self.file.is_cached(offset_bytes as usize..end as usize) => {
                let whole_blocks = target.len() / DIRECT_ALIGN_BYTES * DIRECT_ALIGN_BYTES;
                self.read_direct(direct, offset_bytes, &mut target[..whole_blocks])?
            }
            _ => 0,
        };
        self.file.file().read_exact_at(&mut target[done..], offset_bytes + done as u64)?;
        self.cache.mark_read(offset_bytes..end);
        Ok(())
    }

    /// Fills whole blocks and returns their length in bytes; 0: the file system supports no direct reads here.
    fn read_direct(&self, direct: &File, offset_bytes: u64, blocks: &mut [u8]) -> io::Result<usize> {
        let read = if self.is_direct_to_target {
            direct.read_exact_at(blocks, offset_bytes)
        } else {
            read_through_page(direct, offset_bytes, blocks)
        };
        // A file system may open a file for direct reads and then refuse them.
        let is_unsupported =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported);
        match read {
            Err(error) if is_unsupported(&error) => Ok(0),
            read => read.map(|()| blocks.len()),
        }
    }

    fn error(&self, source: io::Error) -> LoadError {
        LoadError::File { path: self.file.path().to_owned(), source }
    }
}

/// Reads through a large page, which stays in the core's cache.
fn read_through_page(direct: &File, offset_bytes: u64, blocks: &mut [u8]) -> io::Result<()> {
    INTERMEDIATE.with_borrow_mut(|intermediate| {
        let page = match intermediate {
            Some(page) => page,
            none => none.insert(large_page()?),
        };
        let first_byte = page.as_ptr().align_offset(DIRECT_READ_BYTES);
        let offsets = (offset_bytes..).step_by(DIRECT_READ_BYTES);
        blocks.chunks_mut(DIRECT_READ_BYTES).zip(offsets).try_for_each(|(blocks, offset_bytes)| {
            let read = &mut page[first_byte..][..blocks.len()];
            direct.read_exact_at(read, offset_bytes)?;
            blocks.copy_from_slice(read);
            Ok(())
        })
    })
}

/// Memory that contains an aligned large page.
fn large_page() -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(2 * DIRECT_READ_BYTES)?;
    // Without large pages, small ones are used.
    let _ = memory.advise(Advice::HugePage);
    Ok(memory)
}

/// Does `work` on every part on as many threads as reads profit from, in order. `done` is called with each result on the
/// calling thread; returning `Break` leaves the parts that were not begun.
///
/// # Errors
/// The first error of `work`. Parts that were begun are completed.
pub fn for_each_part<P: Send, R: Send>(
    parts: Vec<P>,
    work: impl Fn(P) -> Result<R, LoadError> + Sync,
    done: &mut dyn FnMut(R) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, LoadError> {
    let threads = parallel::cores().clamp(MIN_THREADS, MAX_THREADS).min(parts.len());
    // Tests limit how many parts are begun: counted in order, under the queue's lock.
    let parts = parts.into_iter().inspect(|_| faults::before_reading());
    parallel::for_each(threads, parts, work, done)
}
