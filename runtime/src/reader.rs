//! Large reads of the artifact on all cores, which leave nothing behind in the system's page cache.

use std::fs::File;
use std::io;
use std::iter;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, mpsc};
use std::thread;

use artifacts::{MappedFile, cores};

use crate::error::LoadError;
use crate::page_cache::PageCache;
use crate::vk::faults;

pub struct Reader<'a> {
    file: &'a MappedFile,
    cache: &'a PageCache<'a>,
    /// Open for reads that go past the page cache.
    direct: Option<File>,
}

/// Disks want several reads at a time, and a thread that waits for one costs nothing.
const LEAST_THREADS: usize = 4;
/// Direct reads come in multiples of this.
const BLOCK_BYTES: usize = 4 << 10;
/// What one core reads at a time. Four of them stay within what the system reads ahead of one reader where that is 8 MiB: who
/// leaves it makes the system begin anew, with small pages. Other windows, and more cores, were not measured.
const CACHED_BYTES: usize = 1 << 20;
/// The same where nobody reads ahead.
const DIRECT_BYTES: usize = 2 << 20;

impl<'a> Reader<'a> {
    /// Reads through the page cache.
    pub fn cached(file: &'a MappedFile, cache: &'a PageCache<'a>) -> Reader<'a> {
        Reader { file, cache, direct: None }
    }

    /// Reads past the page cache what is not there, where the file system can. The memory that is read into begins on a page.
    pub fn direct(file: &'a MappedFile, cache: &'a PageCache<'a>) -> Reader<'a> {
        Reader { file, cache, direct: file.open_direct().ok() }
    }

    /// What to read at a time.
    pub fn part_bytes(&self) -> usize {
        if self.direct.is_some() { DIRECT_BYTES } else { CACHED_BYTES }
    }

    /// Fills `piece` from its offset in the file on.
    pub fn read(&self, offset_bytes: u64, piece: &mut [u8]) -> Result<(), LoadError> {
        faults::before_reading();
        self.try_read(offset_bytes, piece).map_err(|error| self.error(error))
    }

    /// Brings a range of the map into memory.
    pub fn fault_in(&self, range: Range<u64>) -> Result<(), LoadError> {
        faults::before_reading();
        self.file.fault_in(range.start as usize..range.end as usize).map_err(|error| self.error(error))
    }

    fn try_read(&self, offset_bytes: u64, piece: &mut [u8]) -> io::Result<()> {
        let whole_blocks = piece.len() / BLOCK_BYTES * BLOCK_BYTES;
        let end = offset_bytes + piece.len() as u64;
        let past_cache = match &self.direct {
            Some(direct) if !self.file.is_cached(offset_bytes as usize..end as usize) => {
                direct.read_exact_at(&mut piece[..whole_blocks], offset_bytes).map(|()| whole_blocks)
            }
            _ => Ok(0),
        };
        let done = match past_cache {
            // The file system opens files for what it then cannot do.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => 0,
            other => other?,
        };
        self.file.file().read_exact_at(&mut piece[done..], offset_bytes + done as u64)?;
        self.cache.has_been_read(offset_bytes..end);
        Ok(())
    }

    fn error(&self, source: io::Error) -> LoadError {
        LoadError::File { path: self.file.path().to_owned(), source }
    }
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
    let threads = cores::count().max(LEAST_THREADS).min(pieces.len());
    let queue = Mutex::new(pieces.into_iter());
    let next = || queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
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
