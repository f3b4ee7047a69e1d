//! Large reads of the artifact on all cores, which leave nothing behind in the system's page cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, mpsc};
use std::thread;

use artifacts::MappedFile;

use crate::error::LoadError;

pub struct Reader<'a> {
    file: &'a MappedFile,
    /// Open for reads that go past the page cache.
    direct: Option<File>,
}

/// What one thread reads at a time.
const PIECE_BYTES: usize = 8 << 20;
/// Disks want several reads at a time, and a thread that waits for one costs nothing.
const LEAST_THREADS: usize = 4;
/// Direct reads come in multiples of this.
const BLOCK_BYTES: usize = 4 << 10;

impl<'a> Reader<'a> {
    /// Reads through the page cache.
    pub fn cached(file: &'a MappedFile) -> Reader<'a> {
        Reader { file, direct: None }
    }

    /// Reads past the page cache where the file system can. The memory that is read into begins on a page.
    pub fn direct(file: &'a MappedFile) -> Reader<'a> {
        Reader { file, direct: file.open_direct().ok() }
    }

    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Fills every target from its offset in the file on; `advance` hears the length of each piece when it is there.
    pub fn read<'t>(
        &self,
        targets: impl IntoIterator<Item = (u64, &'t mut [u8])>,
        advance: &mut dyn FnMut(u64),
    ) -> Result<(), LoadError> {
        let cut = |(offset_bytes, bytes): (u64, &'t mut [u8])| {
            let offsets = (offset_bytes..).step_by(PIECE_BYTES);
            offsets.zip(bytes.chunks_mut(PIECE_BYTES))
        };
        let pieces: Vec<_> = targets.into_iter().flat_map(cut).collect();
        self.on_all_cores(pieces, advance, |(offset_bytes, piece)| {
            self.read_piece(offset_bytes, piece).map(|()| piece.len() as u64)
        })
    }

    /// Brings ranges of the map into memory.
    pub fn fault_in(
        &self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        advance: &mut dyn FnMut(u64),
    ) -> Result<(), LoadError> {
        let cut = |range: Range<u64>| {
            let end = range.end as usize;
            range.step_by(PIECE_BYTES).map(move |start| start as usize..end.min(start as usize + PIECE_BYTES))
        };
        let pieces: Vec<_> = ranges.into_iter().flat_map(cut).collect();
        self.on_all_cores(pieces, advance, |piece| self.file.fault_in(piece.clone()).map(|()| piece.len() as u64))
    }

    fn read_piece(&self, offset_bytes: u64, piece: &mut [u8]) -> io::Result<()> {
        let whole_blocks = piece.len() / BLOCK_BYTES * BLOCK_BYTES;
        let past_cache = match &self.direct {
            Some(direct) => direct.read_exact_at(&mut piece[..whole_blocks], offset_bytes).map(|()| whole_blocks),
            None => Ok(0),
        };
        let done = match past_cache {
            // The file system opens files for what it then cannot do.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => 0,
            other => other?,
        };
        let range = offset_bytes + done as u64..offset_bytes + piece.len() as u64;
        self.file.file().read_exact_at(&mut piece[done..], range.start)?;
        self.file.release_cache(range);
        Ok(())
    }

    /// Does `work` on every piece; `advance` hears what it returns.
    fn on_all_cores<P: Send>(
        &self,
        pieces: Vec<P>,
        advance: &mut dyn FnMut(u64),
        work: impl Fn(P) -> io::Result<u64> + Sync,
    ) -> Result<(), LoadError> {
        let threads = thread::available_parallelism().map_or(1, usize::from).max(LEAST_THREADS).min(pieces.len());
        let queue = Mutex::new(pieces.into_iter());
        let next = || queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        let (sender, receiver) = mpsc::channel();
        let done = thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, next, work) = (sender.clone(), &next, &work);
                scope.spawn(move || {
                    // The receiver is gone when a piece has failed.
                    while let Some(piece) = next() {
                        if sender.send(work(piece)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for piece in receiver {
                advance(piece?);
            }
            Ok(())
        });
        done.map_err(|source| LoadError::File { path: self.file.path().to_owned(), source })
    }
}
