//! System calls on a node of /dev/accel, mappings of its buffers, and pages that are shared with a GPU: all unsafe code of this folder.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::npu::uapi::{self, ConfigHead, CuConfig};

/// An open node.
pub struct Node {
    file: File,
}

impl Node {
    /// # Errors
    /// Errors of opening the file.
    pub fn open(path: &Path) -> io::Result<Node> {
        Ok(Node { file: OpenOptions::new().read(true).write(true).open(path)? })
    }

    /// Name of the driver, its major and its minor version.
    ///
    /// # Errors
    /// When the node is not a DRM device.
    pub fn version(&self) -> io::Result<(String, i32, i32)> {
        let mut name = [0u8; 64];
        let mut version =
            uapi::Version { name_len: name.len() as u64, name: name.as_mut_ptr() as u64, ..Default::default() };
        self.call(uapi::VERSION, &mut version)?;
        let len = name.len().min(version.name_len as usize);
        Ok((String::from_utf8_lossy(&name[..len]).into_owned(), version.major, version.minor))
    }

    /// The answer to a query, which is of type `T`.
    ///
    /// # Errors
    /// When the driver does not have the query.
    pub fn info<T: Plain>(&self, param: u32) -> io::Result<T> {
        let mut answer = T::default();
        let buffer = ptr::from_mut(&mut answer) as u64;
        self.call(uapi::GET_INFO, &mut uapi::GetInfo { param, bytes: size_of::<T>() as u32, buffer })?;
        Ok(answer)
    }

    /// A new buffer object's handle.
    ///
    /// # Errors
    /// When memory is exhausted.
    pub fn create_buffer(&self, kind: u32, size: u64) -> io::Result<u32> {
        let mut arguments = uapi::CreateBuffer { size, kind, ..Default::default() };
        self.call(uapi::CREATE_BO, &mut arguments)?;
        Ok(arguments.handle)
    }

    /// The handle of a buffer object over pages of this process.
    ///
    /// # Errors
    /// When the driver makes none of such memory.
    pub fn buffer_of_pages(&self, kind: u32, pages: &SharedPages) -> io::Result<u32> {
        #[repr(C)]
        struct Table {
            head: uapi::MemoryTable,
            entry: uapi::MemoryEntry,
        }
        let size = pages.bytes() as u64;
        let table = Table {
            head: uapi::MemoryTable { dma_buf: -1, count: 1 },
            entry: uapi::MemoryEntry { address: pages.address(), bytes: size },
        };
        let vaddr = ptr::from_ref(&table) as u64;
        let mut arguments = uapi::CreateBuffer { vaddr, size, kind, ..Default::default() };
        self.call(uapi::CREATE_BO, &mut arguments)?;
        Ok(arguments.handle)
    }

    /// The handle of a buffer object that another driver has exported.
    ///
    /// # Errors
    /// When the driver does not take it.
    pub fn buffer_of_dma_buf(&self, dma_buf: BorrowedFd<'_>) -> io::Result<u32> {
        let mut arguments = uapi::PrimeHandle { fd: dma_buf.as_raw_fd(), ..Default::default() };
        self.call(uapi::PRIME_FD_TO_HANDLE, &mut arguments)?;
        Ok(arguments.handle)
    }

    /// # Errors
    /// When the handle is unknown.
    pub fn buffer_info(&self, handle: u32) -> io::Result<uapi::BufferInfo> {
        let mut info = uapi::BufferInfo { handle, ..Default::default() };
        self.call(uapi::GET_BO_INFO, &mut info)?;
        Ok(info)
    }

    /// # Errors
    /// When the handle is unknown.
    pub fn close_buffer(&self, handle: u32) -> io::Result<()> {
        self.call(uapi::GEM_CLOSE, &mut uapi::GemClose { handle, pad: 0 })
    }

    /// # Errors
    /// When the handle is unknown.
    pub fn sync(&self, handle: u32, direction: u32, size: u64) -> io::Result<()> {
        self.call(uapi::SYNC_BO, &mut uapi::SyncBuffer { handle, direction, offset: 0, size })
    }

    /// A new context's handle, and that of its timeline.
    ///
    /// # Errors
    /// When there is no heap, or others have the columns.
    pub fn create_context(&self, num_tiles: u32, max_opc: u32) -> io::Result<(u32, u32)> {
        let qos = uapi::Qos { priority: uapi::NORMAL_PRIORITY, ..Default::default() };
        let mut arguments =
            uapi::CreateContext { qos: ptr::from_ref(&qos) as u64, num_tiles, max_opc, ..Default::default() };
        self.call(uapi::CREATE_HWCTX, &mut arguments)?;
        Ok((arguments.handle, arguments.syncobj))
    }

    /// # Errors
    /// When the handle is unknown.
    pub fn destroy_context(&self, handle: u32, syncobj: u32) -> io::Result<()> {
        self.call(uapi::DESTROY_HWCTX, &mut uapi::DestroyContext { handle, pad: 0 })?;
        self.call(uapi::SYNCOBJ_DESTROY, &mut uapi::SyncobjDestroy { handle: syncobj, pad: 0 })
    }

    /// Gives a context its units: control images, by their buffers' handles.
    ///
    /// # Errors
    /// When the context has units already.
    pub fn configure(&self, handle: u32, images: &[u32]) -> io::Result<()> {
        // The head and behind it one entry a unit, in which only the first fields are not 0.
        let mut bytes = (images.len() as u16).to_le_bytes().to_vec();
        bytes.resize(size_of::<ConfigHead>(), 0);
        for image in images {
            bytes.extend(image.to_le_bytes());
            bytes.resize(bytes.len() + size_of::<CuConfig>() - size_of_val(image), 0);
        }
        self.call(
            uapi::CONFIG_HWCTX,
            &mut uapi::ConfigContext {
                handle,
                kind: uapi::CONFIG_CU,
                value: bytes.as_ptr() as u64,
                value_bytes: bytes.len() as u32,
                pad: 0,
            },
        )
    }

    /// Submits one command; returns its number.
    ///
    /// # Errors
    /// When the driver refuses the packet or the handles.
    pub fn submit(&self, context: u32, command: u32, arguments: &[u32]) -> io::Result<u64> {
        let mut exec = uapi::ExecCommand {
            context,
            kind: uapi::SUBMIT_EXEC_BUF,
            // For a single command, the handle itself and not its address.
            commands: u64::from(command),
            args: arguments.as_ptr() as u64,
            command_count: 1,
            arg_count: arguments.len() as u32,
            ..Default::default()
        };
        self.call(uapi::EXEC_CMD, &mut exec)?;
        Ok(exec.seq)
    }

    /// Waits for a point of a timeline; `false`: it was not reached in time.
    ///
    /// # Errors
    /// When the handle is unknown.
    pub fn wait(&self, syncobj: u32, point: u64, timeout: Duration) -> io::Result<bool> {
        let now = monotonic_ns()?;
        let timeout_ns = now.saturating_add(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX));
        let mut wait = uapi::TimelineWait {
            handles: ptr::from_ref(&syncobj) as u64,
            points: ptr::from_ref(&point) as u64,
            timeout_ns,
            count: 1,
            flags: uapi::WAIT_FOR_SUBMIT,
            ..Default::default()
        };
        match self.call(uapi::SYNCOBJ_TIMELINE_WAIT, &mut wait) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// `value` has the type of the ioctl's number, and addresses in it are of valid memory of the length that it declares.
    fn call<T>(&self, number: u32, value: &mut T) -> io::Result<()> {
        assert_eq!(number >> 16 & 0x3fff, size_of::<T>() as u32, "ioctl {number:#x} of another struct");
        loop {
            // SAFETY: the descriptor is open; the struct has the size of the number, which the line above checks, and is valid for
            // reads and writes; every function of this file that puts an address into it keeps that memory until this returns.
            let result = unsafe { libc::ioctl(self.file.as_raw_fd(), number as _, ptr::from_mut(value)) };
            if result >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Structs for which any bytes from the kernel are a valid value.
pub trait Plain: Copy + Default {}

impl Plain for uapi::AieMetadata {}
impl Plain for uapi::Clocks {}
impl Plain for uapi::Firmware {}

fn monotonic_ns() -> io::Result<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is valid for writes.
    match unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) } {
        0 => Ok(time.tv_sec * 1_000_000_000 + time.tv_nsec),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A buffer's pages in this process.
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its pages, which are not tied to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `bytes` of a node from `offset` on, at an address that is a multiple of `align`.
    ///
    /// # Errors
    /// When address space is exhausted, or the offset is not a buffer's.
    pub fn of(node: &Node, offset: u64, bytes: usize, align: usize) -> io::Result<Mapping> {
        let reserved = bytes.checked_add(align).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new range, which replaces nothing.
        let range = unsafe {
            libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        let range = checked(range)?;
        let before = range.as_ptr().align_offset(align);
        // SAFETY: `before` is below `align`, so that `bytes` from there on lie in the reserved range, which is ours to replace.
        let mapped = unsafe {
            libc::mmap(
                range.as_ptr().add(before).cast(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                node.file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        let Ok(start) = checked(mapped) else {
            let error = io::Error::last_os_error();
            unmap(range, 0, reserved);
            return Err(error);
        };
        let page = bytes.next_multiple_of(PAGE_BYTES);
        unmap(range, 0, before);
        unmap(range, before + page, reserved.saturating_sub(before + page));
        Ok(Mapping { start, bytes })
    }

    /// Its address in this process, which the device takes where it shares the process's address space.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// All of it. The caller's `&mut` is exclusive among this process's views; the device writes only while a command runs, when
    /// [`super::amdxdna`] gives no view of the command's buffers.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages are mapped for reads and writes until this is dropped, and any bytes are valid.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.start, 0, self.bytes);
    }
}

/// Pages of this process that a GPU and an NPU access, too. Their drivers are given the address; no reference to the bytes exists.
pub struct SharedPages {
    mapping: Mapping,
}

// SAFETY: bytes are only copied, by callers that know that no device writes them meanwhile; the address does not change.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// At least `bytes` bytes, all 0. Private and anonymous, as GPU drivers require.
    ///
    /// # Errors
    /// When memory is exhausted.
    pub fn new(bytes: u64) -> io::Result<SharedPages> {
        let too_many = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(IMPORT_BYTES));
        let bytes = bytes.filter(|bytes| *bytes > 0).ok_or_else(too_many)?;
        // SAFETY: a new range, which replaces nothing.
        let mapped = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        Ok(SharedPages { mapping: Mapping { start: checked(mapped)?, bytes } })
    }

    /// The bytes of a dma-buf, which another driver has exported.
    ///
    /// # Errors
    /// When its driver maps it into no process.
    pub fn of_dma_buf(dma_buf: BorrowedFd<'_>, bytes: u64) -> io::Result<SharedPages> {
        let bytes = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new range, which replaces nothing.
        let mapped = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, dma_buf.as_raw_fd(), 0)
        };
        Ok(SharedPages { mapping: Mapping { start: checked(mapped)?, bytes } })
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.mapping.address()
    }

    /// Length: whole blocks that any driver imports.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// Copies the first bytes, which no device writes meanwhile.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn read(&self, to: &mut [u8]) {
        assert!(to.len() <= self.bytes(), "{} bytes of {}", to.len(), self.bytes());
        // SAFETY: both ranges are valid for as many bytes, and no reference to the pages exists, so that they do not overlap.
        unsafe { ptr::copy_nonoverlapping(self.mapping.start.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Replaces the first bytes, which no device reads or writes meanwhile.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn write(&self, from: &[u8]) {
        assert!(from.len() <= self.bytes(), "{} bytes of {}", from.len(), self.bytes());
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.mapping.start.as_ptr(), from.len()) };
    }
}

const PAGE_BYTES: usize = 4096;
/// Addresses and lengths of imported memory are multiples of at most this.
const IMPORT_BYTES: usize = 64 << 10;

fn checked(mapped: *mut c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(mapped.cast::<u8>()) {
        Some(start) if mapped != libc::MAP_FAILED => Ok(start),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unmaps a part of a range that this file has mapped and that is no longer used.
fn unmap(range: NonNull<u8>, from: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the callers own the range and drop what they unmap; it fails only for an address that is not a page's.
        unsafe { libc::munmap(range.as_ptr().wrapping_add(from).cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn shared_pages_are_whole_blocks_of_zeros_that_keep_what_is_written() {
        let pages = SharedPages::new(70_000).unwrap();
        assert_eq!(pages.bytes(), 2 * IMPORT_BYTES);
        assert!(pages.address().is_multiple_of(PAGE_BYTES as u64));
        let mut found = [1; 8];
        pages.read(&mut found);
        assert_eq!(found, [0; 8]);
        pages.write(&[7, 8, 9]);
        pages.read(&mut found);
        assert_eq!(found, [7, 8, 9, 0, 0, 0, 0, 0]);
        assert!(SharedPages::new(0).is_err() && SharedPages::new(u64::MAX).is_err());
        // Any file that can be mapped has bytes as a dma-buf has.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[5; 4096]).unwrap();
        let mapped = SharedPages::of_dma_buf(file.as_fd(), 4096).unwrap();
        mapped.write(&[6, 7]);
        mapped.read(&mut found);
        assert_eq!(found, [6, 7, 5, 5, 5, 5, 5, 5]);
        let (nothing, _) = std::io::pipe().unwrap();
        assert!(SharedPages::of_dma_buf(nothing.as_fd(), 4096).is_err());
    }
}
