//! The functions of XRT's C API, from a library that is loaded at run time: all unsafe code of this folder.
//!
//! Signatures and numbers are those of XRT's `xrt/xrt_device.h`, `xrt_kernel.h`, `xrt_bo.h` and `xrt_mem.h`.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use crate::npu::error::NpuError;

/// Where the library is looked for without a path: as the loader does, then where AMD's own packages put it.
const NAMES: [&str; 2] = ["libxrt_coreutil.so.2", "/opt/xilinx/xrt/lib/libxrt_coreutil.so.2"];

/// `XRT_BO_FLAGS_CACHEABLE`: on an NPU, memory of the device's heap.
pub const FLAGS_HEAP: u64 = 1 << 24;
/// `XRT_BO_FLAGS_HOST_ONLY`: memory of the host.
pub const FLAGS_HOST: u64 = 1 << 29;

/// A handle of the library.
type Raw = *mut c_void;

/// The functions of a library, each with its type.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),* $(; $more:tt)?) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($argument,)* $($more)?) $(-> $result)?,)* }

        /// Names of all of them.
        #[cfg(test)]
        const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        impl Functions {
            fn of(library: NonNull<c_void>, path: &Path) -> Result<Functions, NpuError> {
                Ok(Functions { $($name: {
                    let symbol = symbol(library, stringify!($name)).ok_or_else(|| NpuError::TooOld {
                        what: "XRT's library",
                        found: format!("{} without {}", path.display(), stringify!($name)),
                        expected: "one of XRT 2.14 or later, with its C API",
                    })?;
                    // SAFETY: XRT declares the function of this name with this type.
                    unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument,)* $($more)?) $(-> $result)?>(symbol) }
                },)* })
            }
        }
    };
}

functions! {
    xrtDeviceOpen: fn(c_uint) -> Raw;
    xrtDeviceClose: fn(Raw) -> c_int;
    xrtDeviceLoadXclbin: fn(Raw, *const c_void) -> c_int;
    xrtPLKernelOpen: fn(Raw, *const u8, *const c_char) -> Raw;
    xrtKernelClose: fn(Raw) -> c_int;
    xrtBOAlloc: fn(Raw, usize, u64, c_uint) -> Raw;
    xrtBOSubAlloc: fn(Raw, usize, usize) -> Raw;
    xrtBOFree: fn(Raw) -> c_int;
    xrtBOMap: fn(Raw) -> *mut c_void;
    xrtBOSync: fn(Raw, c_int, usize, usize) -> c_int;
    xrtRunOpen: fn(Raw) -> Raw;
    xrtRunSetArg: fn(Raw, c_int; ...) -> c_int;
    xrtRunStart: fn(Raw) -> c_int;
    xrtRunWaitFor: fn(Raw, c_uint) -> c_int;
    xrtRunClose: fn(Raw) -> c_int;
}

fn symbol(library: NonNull<c_void>, name: &str) -> Option<NonNull<c_void>> {
    let name = CString::new(name).expect("a name has no 0");
    // SAFETY: the library is open, and the name ends with a 0.
    NonNull::new(unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) })
}

/// An open library. It stays loaded: XRT's threads do.
pub struct Library {
    functions: Functions,
    /// Where it was found.
    pub path: PathBuf,
}

/// A handle that the library gave; it is freed by the function of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(NonNull<c_void>);

// SAFETY: XRT's objects belong to no thread; the driver uses them one call at a time, through `&mut`.
unsafe impl Send for Handle {}

/// An argument of a run.
pub enum Argument {
    Number64(u64),
    Number32(u32),
    Buffer(Handle),
}

impl Library {
    /// Opens the library at `path`; `None`: where it usually is.
    ///
    /// # Errors
    /// When there is none, or it lacks a function.
    pub fn open(path: Option<&Path>) -> Result<Library, NpuError> {
        let paths = path.map_or_else(|| NAMES.iter().map(PathBuf::from).collect(), |path| vec![path.to_owned()]);
        let found = paths.iter().find_map(|path| {
            let name = CString::new(path.as_os_str().as_bytes()).ok()?;
            // SAFETY: the name ends with a 0. Code of the library's initialisers runs: the user chose XRT.
            NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
                .map(|one| (one, path))
        });
        let Some((library, path)) = found else {
            return Err(NpuError::NoXrt { tried: paths });
        };
        Ok(Library { functions: Functions::of(library, path)?, path: path.clone() })
    }

    pub fn open_device(&self, index: u32) -> Result<Handle, NpuError> {
        // SAFETY: the function takes any number.
        given("xrtDeviceOpen", unsafe { (self.functions.xrtDeviceOpen)(index) })
    }

    pub fn close_device(&self, device: Handle) {
        // SAFETY: the device is open, and its handle is not used again by its one caller, which is dropped.
        unsafe { (self.functions.xrtDeviceClose)(device.0.as_ptr()) };
    }

    pub fn load(&self, device: Handle, xclbin: &[u8]) -> Result<(), NpuError> {
        // SAFETY: the device is open; the file has its own length in its head, and XRT copies it.
        done("xrtDeviceLoadXclbin", unsafe {
            (self.functions.xrtDeviceLoadXclbin)(device.0.as_ptr(), xclbin.as_ptr().cast())
        })
    }

    pub fn open_kernel(&self, device: Handle, identity: &[u8; 16], name: &str) -> Result<Handle, NpuError> {
        let name = CString::new(name).expect("a name has no 0");
        // SAFETY: the device is open, the identity has 16 bytes, and the name ends with a 0.
        given("xrtPLKernelOpen", unsafe {
            (self.functions.xrtPLKernelOpen)(device.0.as_ptr(), identity.as_ptr(), name.as_ptr())
        })
    }

    pub fn close_kernel(&self, kernel: Handle) -> Result<(), NpuError> {
        // SAFETY: the kernel is open; the driver forgets its handle.
        done("xrtKernelClose", unsafe { (self.functions.xrtKernelClose)(kernel.0.as_ptr()) })
    }

    pub fn allocate(&self, device: Handle, bytes: usize, flags: u64, memory: u32) -> Result<Handle, NpuError> {
        // SAFETY: the device is open.
        given("xrtBOAlloc", unsafe { (self.functions.xrtBOAlloc)(device.0.as_ptr(), bytes, flags, memory) })
    }

    /// A part of a buffer.
    pub fn part(&self, buffer: Handle, bytes: usize, offset: usize) -> Result<Handle, NpuError> {
        // SAFETY: the buffer is allocated; XRT checks the range.
        given("xrtBOSubAlloc", unsafe { (self.functions.xrtBOSubAlloc)(buffer.0.as_ptr(), bytes, offset) })
    }

    pub fn free(&self, buffer: Handle) -> Result<(), NpuError> {
        // SAFETY: the buffer is allocated; the driver forgets its handle and every view of it.
        done("xrtBOFree", unsafe { (self.functions.xrtBOFree)(buffer.0.as_ptr()) })
    }

    /// All `bytes` of a buffer. The caller's `&mut Buffer` makes the view exclusive; no command that uses it runs.
    pub fn bytes<'b>(&self, buffer: &'b mut Handle, bytes: usize) -> Result<&'b mut [u8], NpuError> {
        // SAFETY: the buffer is allocated.
        let mapped = given("xrtBOMap", unsafe { (self.functions.xrtBOMap)(buffer.0.as_ptr()) })?;
        // SAFETY: XRT maps all bytes that were allocated for reads and writes until the buffer is freed, which needs its handle.
        Ok(unsafe { std::slice::from_raw_parts_mut(mapped.0.as_ptr().cast(), bytes) })
    }

    pub fn sync(&self, buffer: Handle, direction: i32, bytes: usize) -> Result<(), NpuError> {
        // SAFETY: the buffer is allocated; XRT checks the range.
        done("xrtBOSync", unsafe { (self.functions.xrtBOSync)(buffer.0.as_ptr(), direction, bytes, 0) })
    }

    pub fn open_run(&self, kernel: Handle) -> Result<Handle, NpuError> {
        // SAFETY: the kernel is open.
        given("xrtRunOpen", unsafe { (self.functions.xrtRunOpen)(kernel.0.as_ptr()) })
    }

    /// The argument's kind has to be that of the kernel's metadata, which [`unicorn_artifact::npu::xclbin`] writes.
    pub fn set_argument(&self, run: Handle, index: i32, argument: &Argument) -> Result<(), NpuError> {
        let (run, set) = (run.0.as_ptr(), self.functions.xrtRunSetArg);
        // SAFETY: the run is open, and XRT reads one argument of the type that the metadata gives for `index`.
        done("xrtRunSetArg", unsafe {
            match argument {
                Argument::Number64(value) => set(run, index, *value),
                Argument::Number32(value) => set(run, index, *value),
                Argument::Buffer(buffer) => set(run, index, buffer.0.as_ptr()),
            }
        })
    }

    pub fn start(&self, run: Handle) -> Result<(), NpuError> {
        // SAFETY: the run is open, and its arguments are set.
        done("xrtRunStart", unsafe { (self.functions.xrtRunStart)(run.0.as_ptr()) })
    }

    /// State of a command (ERT) when it has ended, or after that many milliseconds.
    pub fn wait(&self, run: Handle, milliseconds: u32) -> i32 {
        // SAFETY: the run was started.
        unsafe { (self.functions.xrtRunWaitFor)(run.0.as_ptr(), milliseconds) }
    }

    pub fn close_run(&self, run: Handle) -> Result<(), NpuError> {
        // SAFETY: the run is open; the driver forgets its handle.
        done("xrtRunClose", unsafe { (self.functions.xrtRunClose)(run.0.as_ptr()) })
    }
}

fn given(call: &'static str, handle: Raw) -> Result<Handle, NpuError> {
    NonNull::new(handle).map(Handle).ok_or_else(|| failed(call))
}

fn done(call: &'static str, status: c_int) -> Result<(), NpuError> {
    if status == 0 { Ok(()) } else { Err(failed(call)) }
}

/// XRT puts the reason into errno.
fn failed(call: &'static str) -> NpuError {
    NpuError::Call { call, source: io::Error::last_os_error() }
}

#[cfg(test)]
mod tests {
    use test_support::skip;

    use super::*;

    /// Read from its file: it needs the libraries of its own system.
    #[test]
    fn debians_xrt_has_the_functions() {
        let Some(path) = std::env::var_os("XRT_LIBRARY") else {
            return skip("xrt library", "XRT_LIBRARY names no libxrt_coreutil.so.2");
        };
        let file = std::fs::read(path).unwrap();
        let has = |name: &str| {
            let name = [b"\0", name.as_bytes(), b"\0"].concat();
            file.windows(name.len()).any(|bytes| bytes == name)
        };
        let missing: Vec<&&str> = FUNCTIONS.iter().filter(|name| !has(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        // The check itself: what XRT's own code calls it, and no library has.
        assert!(!has("xrtKernelOpen"));
    }
}
