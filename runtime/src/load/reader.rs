//! Large reads of the artifact on all cores, which leave nothing behind in the system's page cache.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::iter;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, mpsc};
use std::thread;

use memmap2::{Advice, MmapMut};
use unicorn_artifact::{MappedFile, cores};

use crate::error::LoadError;
use crate::load::page_cache::PageCache;
use crate::vk::faults;

pub struct Reader<'a> {
    file: &'a MappedFile,
    cache: &'a PageCache<'a>,
    /// Open for reads that go past the page cache; `None`: the file system has none.
    direct: Option<File>,
    /// Such reads go where they belong at once, not by way of other memory.
    is_straight: bool,
}

/// Disks want several reads at a time, and a thread that waits for one costs nothing.
const LEAST_THREADS: usize = 4;
/// Each has up to 6 MiB of its own, and what sixteen read is as much as memory takes.
const MOST_THREADS: usize = 32;
/// Direct reads come in multiples of this, and begin in memory at one.
const BLOCK_BYTES: usize = 4 << 10;
/// What one core reads of the page cache at a time. Four of them stay within what the system reads ahead of one reader where that
/// is 8 MiB: who leaves it makes the system begin anew, with small pages. Other windows, and more cores, were not measured.
pub const CACHED_BYTES: usize = 1 << 20;
/// The same where nobody reads ahead: a large page.
const DIRECT_BYTES: usize = 2 << 20;

thread_local! {
    /// Where a core's direct reads go first.
    static DETOUR: RefCell<Option<MmapMut>> = const { RefCell::new(None) };
}

impl<'a> Reader<'a> {
    /// For memory of any kind: what is not cached is read past the cache into memory of this process and copied, for direct reads
    /// do not reach a driver's memory.
    pub fn new(file: &'a MappedFile, cache: &'a PageCache<'a>) -> Reader<'a> {
        Reader { file, cache, direct: file.open_direct().ok(), is_straight: false }
    }

    /// For large pages of this process; whatever is read begins on a page.
    pub fn of_large_pages(file: &'a MappedFile, cache: &'a PageCache<'a>) -> Reader<'a> {
        Reader { is_straight: true, ..Reader::new(file, cache) }
    }

    /// What to read at a time.
    pub fn part_bytes(&self) -> usize {
        if self.direct.is_some() { DIRECT_BYTES } else { CACHED_BYTES }
    }

    /// Fills `piece` from its offset in the file on: out of the page cache what is there, and else past it.
    pub fn read(&self, offset_bytes: u64, piece: &mut [u8]) -> Result<(), LoadError> {
        self.try_read(offset_bytes, piece).map_err(|error| self.error(error))
    }

    /// Brings a range of the map into memory.
    pub fn fault_in(&self, range: Range<u64>) -> Result<(), LoadError> {
        self.file.fault_in(range.start as usize..range.end as usize).map_err(|error| self.error(error))
    }

    fn try_read(&self, offset_bytes: u64, piece: &mut [u8]) -> io::Result<()> {
        let end = offset_bytes + piece.len() as u64;
        let done = match &self.direct {
            Some(direct) if !self.file.is_cached(offset_bytes as usize..end as usize) => {
                let whole_blocks = piece.len() / BLOCK_BYTES * BLOCK_BYTES;
                self.read_past_cache(direct, offset_bytes, &mut piece[..whole_blocks])?
            }
            _ => 0,
        };
        self.file.file().read_exact_at(&mut piece[done..], offset_bytes + done as u64)?;
        self.cache.has_been_read(offset_bytes..end);
        Ok(())
    }

    /// Fills whole blocks and says how many bytes they are; 0: the file system cannot.
    fn read_past_cache(&self, direct: &File, offset_bytes: u64, blocks: &mut [u8]) -> io::Result<usize> {
        let read = if self.is_straight {
            direct.read_exact_at(blocks, offset_bytes)
        } else {
            read_by_detour(direct, offset_bytes, blocks)
        };
        // A file system may open files for what it then cannot do.
        let cannot =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported);
        match read {
            Err(error) if cannot(&error) => Ok(0),
            read => read.map(|()| blocks.len()),
        }
    }

    fn error(&self, source: io::Error) -> LoadError {
        LoadError::File { path: self.file.path().to_owned(), source }
    }
}

/// By way of a large page that stays in the core's cache.
fn read_by_detour(direct: &File, offset_bytes: u64, blocks: &mut [u8]) -> io::Result<()> {
    DETOUR.with_borrow_mut(|detour| {
        let page = match detour {
            Some(page) => page,
            none => none.insert(large_page()?),
        };
        let first_byte = page.as_ptr().align_offset(DIRECT_BYTES);
        let offsets = (offset_bytes..).step_by(DIRECT_BYTES);
        blocks.chunks_mut(DIRECT_BYTES).zip(offsets).try_for_each(|(blocks, offset_bytes)| {
            let read = &mut page[first_byte..][..blocks.len()];
            direct.read_exact_at(read, offset_bytes)?;
            blocks.copy_from_slice(read);
            Ok(())
        })
    })
}

/// Memory that holds one, wherever it begins.
fn large_page() -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(2 * DIRECT_BYTES)?;
    // Small pages do as well.
    let _ = memory.advise(Advice::HugePage);
    Ok(memory)
}

/// Does `work` on every piece, begun in their order; `done` hears what it returns, and may break off.
///
/// # Errors
/// The first of `work`'s; pieces that were begun are still ended.
pub fn on_all_cores<P: Send, R: Send>(
    pieces: Vec<P>,
    work: impl Fn(P) -> Result<R, LoadError> + Sync,
    done: &mut dyn FnMut(R) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, LoadError> {
    let threads = cores::count().clamp(LEAST_THREADS, MOST_THREADS).min(pieces.len());
    let queue = Mutex::new(pieces.into_iter());
    let next = || {
        let mut pieces = queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let piece = pieces.next()?;
        // A limit is of the first pieces, whichever thread has come further with its own.
        faults::before_reading();
        Some(piece)
    };
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let (next, work) = (&next, &work);
        cores::start(scope, threads, move || {
            // The receiver is gone when a piece has failed, or nobody wants the rest.
            while let Some(piece) = next() {
                if sender.send(work(piece)).is_err() {
                    return;
                }
            }
        });
        // If no thread could be started, all pieces are left.
        let left = iter::from_fn(|| next().map(work));
        for piece in receiver.into_iter().chain(left) {
            if done(piece?).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}
