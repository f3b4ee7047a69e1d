//! Unsafe room A: a file as bytes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::UncheckedAdvice;

/// A read-only map of a whole file.
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: memmap2::Mmap,
}

/// What is hashed between two releases.
const HASHED_BYTES: usize = 64 << 20;

impl MappedFile {
    /// Maps `path`. An artifact must not be cut while it is mapped; the operating system ends the reader if it is.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the map is private to this value and only handed out as shared bytes; artifacts are replaced by
        // rename, never rewritten in place, so the bytes stay put for whoever mapped them.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(MappedFile { path: path.to_owned(), file, map })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Tells the system that this process needs the pages of `range` no more for now. They stay in the page cache, and are
    /// mapped again when they are read again: a program that goes through a large file once stays small.
    pub fn release(&self, range: Range<usize>) {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.map.len(), "{range:?} of a map of {} bytes", self.map.len());
        // SAFETY: the map is of a file, shared with it and never written through, so the pages that are dropped read the
        // same when they are faulted in again.
        let advised = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        // Only memory is at stake: a kernel that refuses keeps the pages.
        drop(advised);
    }

    /// Feeds the whole file to `hasher` on all cores, releasing what is behind.
    pub fn hash_into(&self, hasher: &mut blake3::Hasher) {
        for start in (0..self.map.len()).step_by(HASHED_BYTES) {
            let end = self.map.len().min(start + HASHED_BYTES);
            hasher.update_rayon(&self.map[start..end]);
            self.release(start..end);
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for reads that bypass the map.
    pub fn file(&self) -> &File {
        &self.file
    }
}
