//! The kernel's driver amdxdna, by its ioctls.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::diagnosis::{check_firmware, missing};
use super::driver::{
    BufferKind, DeviceBuffer, Direction, Driver, HEAP_BYTES, MAX_UNITS, NpuFacts, SharedMemory, SharedPages, Unit,
};
use super::error::NpuError;
use super::ioctl::{Mapping, Node};
use super::uapi;
use crate::device::machine::Machine;
use crate::device::sysfs::names;

/// The kernel's name of this driver.
const NAME: &str = "amdxdna_accel_driver";
/// Operations of a column in a cycle, by which the driver chooses a clock: those of its own table for this NPU.
const MAX_OPC: u32 = 2048;

/// An NPU of this machine.
pub struct Amdxdna {
    node: Node,
    facts: NpuFacts,
    heap: Option<Heap>,
    buffers: BTreeMap<u32, Held>,
    contexts: BTreeMap<u32, Context>,
}

struct Heap {
    mapping: Mapping,
}

/// Where the bytes of a buffer are.
enum Held {
    /// In memory that a GPU has, too; pages of this process stay in place as long.
    Shared {
        _mapping: Mapping,
        _pages: Option<Arc<SharedPages>>,
    },
    Mapped(Mapping),
    /// Offset in the heap, and length, in bytes.
    InHeap(usize, usize),
}

struct Context {
    syncobj: u32,
    /// Numbers of commands that were not waited for, and their buffers.
    running: Vec<(u64, Vec<u32>)>,
}

impl Amdxdna {
    /// Opens the first NPU below `root`, which is `/` except in tests.
    ///
    /// # Errors
    /// [`NpuError`] names why there is none, or why it cannot be used.
    pub fn open(root: &Path) -> Result<Amdxdna, NpuError> {
        let folder = root.join("dev/accel");
        let mut others = Vec::new();
        for name in names(&folder) {
            let path = folder.join(&name);
            let denied = |source| NpuError::Denied { path: path.display().to_string(), source };
            let node = Node::open(&path).map_err(denied)?;
            match node.version() {
                Ok((driver, major, minor)) if driver == NAME => {
                    return Amdxdna::of(node, format!("amdxdna {major}.{minor}"));
                }
                Ok((driver, ..)) => others.push(format!("{name} of {driver}")),
                Err(error) => others.push(format!("{name}, which is no DRM node ({error})")),
            }
        }
        match others.is_empty() {
            true => Err(missing(&Machine::read(root))),
            false => {
                Err(NpuError::Missing { cause: format!("no node in /dev/accel is of amdxdna: {}", others.join(", ")) })
            }
        }
    }

    fn of(node: Node, driver: String) -> Result<Amdxdna, NpuError> {
        let array: uapi::AieMetadata = node.info(uapi::QUERY_AIE_METADATA).map_err(call("GET_INFO (array)"))?;
        let firmware: uapi::Firmware = node.info(uapi::QUERY_FIRMWARE_VERSION).map_err(call("GET_INFO (firmware)"))?;
        let clocks: uapi::Clocks = node.info(uapi::QUERY_CLOCK_METADATA).map_err(call("GET_INFO (clocks)"))?;
        let facts = NpuFacts {
            driver,
            firmware: format!("{}.{}.{}.{}", firmware.major, firmware.minor, firmware.patch, firmware.build),
            columns: array.cols.into(),
            rows: array.rows.into(),
            core_rows: array.core.row_count.into(),
            clock_mhz: Some(clocks.array.mhz),
        };
        check_firmware(&facts)?;
        Ok(Amdxdna { node, facts, heap: None, buffers: BTreeMap::new(), contexts: BTreeMap::new() })
    }

    fn context(&mut self, handle: u32) -> Result<&mut Context, NpuError> {
        self.contexts.get_mut(&handle).ok_or_else(|| unknown("context", handle))
    }

    /// The buffer as the driver has placed it.
    fn placed(&mut self, kind: BufferKind, handle: u32, bytes: u64) -> Result<(Held, u64), NpuError> {
        let info = self.node.buffer_info(handle).map_err(call("GET_BO_INFO"))?;
        if kind == BufferKind::Device {
            let heap = self.heap.as_ref().ok_or_else(no_heap)?;
            // The driver gives the address in this process at which the part of the mapped heap begins.
            let at = info.vaddr.checked_sub(heap.mapping.address()).filter(|at| at.saturating_add(bytes) <= HEAP_BYTES);
            let at = at.ok_or_else(|| NpuError::Driver {
                what: format!("buffer of the heap lies at {:#x}, expected an address in the mapped heap", info.vaddr),
            })?;
            return Ok((Held::InHeap(at as usize, bytes as usize), info.xdna_addr));
        }
        let align = if kind == BufferKind::Heap { HEAP_BYTES as usize } else { 4096 };
        let mapping = Mapping::of(&self.node, info.map_offset, bytes as usize, align).map_err(call("mmap"))?;
        // With a shared address space, the device uses the address of this process.
        let address = if info.xdna_addr == uapi::INVALID_ADDRESS { mapping.address() } else { info.xdna_addr };
        Ok((Held::Mapped(mapping), address))
    }
}

impl Driver for Amdxdna {
    fn facts(&self) -> &NpuFacts {
        &self.facts
    }

    fn needs_control(&self) -> bool {
        true
    }

    fn create_buffer(&mut self, kind: BufferKind, bytes: u64) -> Result<DeviceBuffer, NpuError> {
        let number = match kind {
            BufferKind::Heap => uapi::BO_HEAP,
            BufferKind::Device => uapi::BO_DEVICE,
            BufferKind::Shared => uapi::BO_SHARED,
            BufferKind::Command => uapi::BO_COMMAND,
        };
        let handle = self.node.create_buffer(number, bytes).map_err(call("CREATE_BO"))?;
        let placed = self.placed(kind, handle, bytes);
        let (held, address) = placed.inspect_err(|_| drop(self.node.close_buffer(handle)))?;
        match (kind, held) {
            (BufferKind::Heap, Held::Mapped(mapping)) => self.heap = Some(Heap { mapping }),
            (_, held) => drop(self.buffers.insert(handle, held)),
        }
        Ok(DeviceBuffer { handle, bytes, address })
    }

    fn share(&mut self, memory: &SharedMemory) -> Result<Option<DeviceBuffer>, NpuError> {
        let (made, bytes, pages) = match memory {
            SharedMemory::Pages(pages) => {
                (self.node.buffer_of_pages(uapi::BO_SHARED, pages), pages.bytes() as u64, Some(pages.clone()))
            }
            SharedMemory::DmaBuf(dma_buf, bytes) => (self.node.buffer_of_dma_buf(dma_buf.as_fd()), *bytes, None),
        };
        let handle = match made {
            Ok(handle) => handle,
            // Drivers of before Linux 6.18 refuse an address; others, what they cannot attach to.
            Err(error) if is_refusal(&error) => return Ok(None),
            Err(error) => return Err(call("CREATE_BO")(error)),
        };
        let placed = self.placed(BufferKind::Shared, handle, bytes);
        let (held, address) = placed.inspect_err(|_| drop(self.node.close_buffer(handle)))?;
        let held = match held {
            Held::Mapped(mapping) => Held::Shared { _mapping: mapping, _pages: pages },
            other => other,
        };
        self.buffers.insert(handle, held);
        Ok(Some(DeviceBuffer { handle, bytes, address }))
    }

    fn free_buffer(&mut self, buffer: DeviceBuffer) -> Result<(), NpuError> {
        self.buffers.remove(&buffer.handle).ok_or_else(|| unknown("buffer", buffer.handle))?;
        self.node.close_buffer(buffer.handle).map_err(call("GEM_CLOSE"))
    }

    fn bytes(&mut self, buffer: DeviceBuffer) -> Result<&mut [u8], NpuError> {
        let mut running = self.contexts.values().flat_map(|context| &context.running);
        if running.any(|(_, buffers)| buffers.contains(&buffer.handle)) {
            return Err(NpuError::Driver {
                what: format!("buffer {} is of a command that was not waited for", buffer.handle),
            });
        }
        match self.buffers.get_mut(&buffer.handle).ok_or_else(|| unknown("buffer", buffer.handle))? {
            Held::Shared { .. } => Err(NpuError::Driver { what: format!("buffer {} is a GPU's, too", buffer.handle) }),
            Held::Mapped(mapping) => Ok(mapping.bytes()),
            Held::InHeap(at, bytes) => {
                let heap = self.heap.as_mut().ok_or_else(no_heap)?;
                Ok(&mut heap.mapping.bytes()[*at..*at + *bytes])
            }
        }
    }

    fn sync(&mut self, buffer: DeviceBuffer, direction: Direction) -> Result<(), NpuError> {
        let direction = match direction {
            Direction::ToDevice => uapi::SYNC_TO_DEVICE,
            Direction::FromDevice => uapi::SYNC_FROM_DEVICE,
        };
        self.node.sync(buffer.handle, direction, buffer.bytes).map_err(call("SYNC_BO"))
    }

    fn create_context(&mut self, columns: u32) -> Result<u32, NpuError> {
        let made = self.node.create_context(columns * self.facts.core_rows, MAX_OPC);
        // The kernel's allocator of columns gives ENODEV when no partition is free.
        let (handle, syncobj) = made.map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY | libc::ENOSPC | libc::EAGAIN | libc::ENODEV) => {
                NpuError::Busy { call: "CREATE_HWCTX", source }
            }
            _ => call("CREATE_HWCTX")(source),
        })?;
        self.contexts.insert(handle, Context { syncobj, running: Vec::new() });
        Ok(handle)
    }

    fn configure(&mut self, context: u32, units: &[Unit<'_>]) -> Result<(), NpuError> {
        assert!(units.len() <= MAX_UNITS, "{} units, expected at most {MAX_UNITS}", units.len());
        let images: Vec<u32> = units.iter().map(|unit| unit.image.handle).collect();
        self.node.configure(context, &images).map_err(call("CONFIG_HWCTX"))
    }

    fn destroy_context(&mut self, context: u32) -> Result<(), NpuError> {
        let Context { syncobj, .. } = self.contexts.remove(&context).ok_or_else(|| unknown("context", context))?;
        self.node.destroy_context(context, syncobj).map_err(call("DESTROY_HWCTX"))
    }

    fn submit(&mut self, context: u32, command: DeviceBuffer, arguments: &[DeviceBuffer]) -> Result<u64, NpuError> {
        let handles: Vec<u32> = arguments.iter().map(|argument| argument.handle).collect();
        let number = self.node.submit(context, command.handle, &handles).map_err(call("EXEC_CMD"))?;
        let buffers = handles.into_iter().chain([command.handle]).collect();
        self.context(context)?.running.push((number, buffers));
        Ok(number)
    }

    fn wait(&mut self, context: u32, number: u64, timeout: Duration) -> Result<bool, NpuError> {
        let syncobj = self.context(context)?.syncobj;
        let is_done = self.node.wait(syncobj, number, timeout).map_err(call("SYNCOBJ_TIMELINE_WAIT"))?;
        if is_done {
            self.context(context)?.running.retain(|(running, _)| *running > number);
        }
        Ok(is_done)
    }
}

/// Whether the driver has no such way of sharing memory, or not for this memory.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOTTY | libc::EOPNOTSUPP | libc::ENODEV | libc::EFAULT | libc::EPERM | libc::ENOSYS)
    )
}

fn no_heap() -> NpuError {
    NpuError::Driver { what: "there is no heap, expected one before other buffers".into() }
}

fn unknown(what: &str, handle: u32) -> NpuError {
    NpuError::Driver { what: format!("{what} {handle} is unknown") }
}

/// What a failed call means.
fn call(call: &'static str) -> impl Fn(io::Error) -> NpuError {
    move |source| match source.raw_os_error() {
        // The driver does not have the call or the query.
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => NpuError::TooOld {
            what: "NPU's driver amdxdna",
            found: format!("one without {call} ({source})"),
            expected: "that of Linux 6.14 or later: install a newer kernel",
        },
        _ => NpuError::Call { call, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_no_npu_are_named() {
        let root = tempfile::tempdir().unwrap();
        let error = |root: &Path| Amdxdna::open(root).err().expect("no NPU").to_string();
        assert!(error(root.path()).contains("no AMD NPU"));
        std::fs::create_dir_all(root.path().join("dev/accel")).unwrap();
        std::fs::write(root.path().join("dev/accel/accel0"), "").unwrap();
        let found = error(root.path());
        assert!(found.contains("no node in /dev/accel is of amdxdna: accel0, which is no DRM node"), "{found}");
    }

    #[test]
    fn an_unknown_call_is_an_old_driver() {
        let error = call("GET_INFO (array)")(io::Error::from_raw_os_error(libc::ENOTTY)).to_string();
        assert!(error.contains("too old: found one without GET_INFO (array)") && error.contains("6.14"), "{error}");
    }
}
