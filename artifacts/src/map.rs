//! Unsafe room A: a file as bytes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A read-only map of a whole file.
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: memmap2::Mmap,
}

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

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for reads that bypass the map.
    pub fn file(&self) -> &File {
        &self.file
    }
}
