//! A file as bytes: the only unsafe code of this crate.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use memmap2::UncheckedAdvice;

use crate::hash::Update;

/// A read-only map of a whole file.
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: memmap2::Mmap,
}

/// Whether other programs can write a file (`F_SETLEASE` of fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// They wait until it is given back, up to the 45 s of `/proc/sys/fs/lease-break-time`.
    Held,
    /// One of them has the file open.
    Refused,
    /// They can: the file system has no leases, or the file belongs to another user.
    Unavailable,
}

/// The smallest page size of any system.
const PAGE_BYTES: usize = 4 << 10;
/// Bytes that are hashed between two releases.
const HASHED_BYTES: usize = 64 << 20;
/// Of Linux's `asm-generic/fcntl.h`.
const F_SETSIG: libc::c_int = 10;

impl MappedFile {
    /// Maps `path`. An artifact must not be cut while it is mapped; the operating system ends the reader if it is.
    ///
    /// # Errors
    /// When it is not a regular file, or cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = open_regular(path)?;
        // SAFETY: the map is private to this value and only handed out as shared bytes; artifacts are replaced by
        // rename, never rewritten in place, so the bytes of an existing mapping do not change.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(MappedFile { path: path.to_owned(), file, map })
    }

    /// All of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Releases the pages of `range` from this process (`madvise`). They stay in the page cache, and are mapped again when they are read
    /// again, so that a program that reads a large file once needs little memory.
    pub fn release(&self, range: Range<usize>) {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.map.len(), "{range:?} of a map of {} bytes", self.map.len());
        // SAFETY: the map is of a file, shared with it and never written through, so the pages that are dropped read the
        // same when they are faulted in again.
        let advised = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        // An error is ignored: the pages then stay mapped.
        drop(advised);
    }

    /// Reads the pages of `range` into memory and maps them, so that the next reader does not wait.
    ///
    /// # Errors
    /// When the file has become shorter than the range, or cannot be read.
    pub fn fault_in(&self, range: Range<usize>) -> io::Result<()> {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.map.len(), "{range:?} of a map of {} bytes", self.map.len());
        match self.map.advise_range(memmap2::Advice::PopulateRead, start, end - start) {
            // Linux before 5.14 does not support the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for byte in self.map[start..end].iter().step_by(PAGE_BYTES) {
                    std::hint::black_box(*byte);
                }
                Ok(())
            }
            // A page after the file's end; reading it would end the process.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Err(io::ErrorKind::UnexpectedEof.into()),
            result => result,
        }
    }

    /// Advises the system that this process does not need its cached copy of `range` again. Pages that a process has mapped stay.
    pub fn release_cache(&self, range: Range<u64>) {
        let (offset, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
        // SAFETY: advice on an open file; it has no pointer argument, and at worst the pages are read again.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
    }

    /// Whether most pages of `range` are in the system's cache, as far as it reports: for a process that may not write the file, it
    /// may report all of them as cached.
    pub fn is_cached(&self, range: Range<usize>) -> bool {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.map.len(), "{range:?} of a map of {} bytes", self.map.len());
        let page_bytes = page_bytes();
        let first = start / page_bytes * page_bytes;
        let mut pages = vec![0u8; (end - first).div_ceil(page_bytes)];
        let address = self.map[first..].as_ptr().cast_mut().cast();
        // SAFETY: the range is inside the map and begins at a page, and `pages` has a byte for each of its pages.
        let succeeded = unsafe { libc::mincore(address, end - first, pages.as_mut_ptr()) } == 0;
        let cached = pages.iter().filter(|&page| page & 1 == 1).count();
        !succeeded || 2 * cached > pages.len()
    }

    /// The same file, opened for reads that bypass the system's cache. Addresses, offsets and lengths must be multiples of
    /// 4096 bytes.
    ///
    /// # Errors
    /// On file systems that have no such reads, such as tmpfs.
    pub fn open_direct(&self) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Until [`MappedFile::give_back_lease`], no program can cut or write the file. Those that try wait.
    pub fn take_lease(&self) -> Lease {
        let descriptor = self.file.as_raw_fd();
        // SAFETY: arguments and result are numbers, and the descriptor is open. The signal for a program that waits would be SIGIO, which
        // ends the process; SIGURG does nothing by default.
        let taken = unsafe {
            libc::fcntl(descriptor, F_SETSIG, libc::SIGURG);
            libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_RDLCK)
        };
        match io::Error::last_os_error().kind() {
            _ if taken == 0 => Lease::Held,
            io::ErrorKind::WouldBlock => Lease::Refused,
            _ => Lease::Unavailable,
        }
    }

    /// Does nothing where none is held.
    pub fn give_back_lease(&self) {
        // SAFETY: arguments and result are numbers, and the descriptor is open.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }

    /// Feeds the whole file to `hasher` by `update`, releasing the pages that were read.
    pub fn hash_into(&self, hasher: &mut blake3::Hasher, update: Update) {
        for start in (0..self.map.len()).step_by(HASHED_BYTES) {
            let end = self.map.len().min(start + HASHED_BYTES);
            update(hasher, &self.map[start..end]);
            self.release(start..end);
        }
    }

    /// Path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for reads that bypass the map.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// From now on a read after the end of a mapped file that was cut reaches only the handlers of SIGBUS that are installed after this
/// call: the standard library's, which detects stack overflows, would end the process.
pub fn release_sigbus() {
    // SAFETY: the default action of a signal runs no code of this program, and Linux reports stack overflows as SIGSEGV.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// Opens a regular file for reading; pipes, sockets, devices and folders are refused.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a named pipe waits for a writer. It does nothing to regular files.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Size of a page of memory on this system.
fn page_bytes() -> usize {
    // SAFETY: argument and result are numbers.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page_bytes).unwrap_or(PAGE_BYTES)
}
