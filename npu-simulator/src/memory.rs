//! Buffers of host and array: writes of one side are visible to the other after a synchronisation.

use std::collections::BTreeMap;
use std::sync::Arc;

use unicorn_runtime::npu::driver::{BufferKind, DeviceBuffer, Direction, HEAP_BYTES, SharedPages};

/// Begin of the window of the device's own addresses, on Phoenix.
const HEAP_AT: u64 = 0x400_0000;
/// Alignment of addresses in the window.
const HEAP_ALIGN: u64 = 32 << 10;
/// Begin of this process's memory, where the device uses the process's addresses.
const SHARED_AT: u64 = 0x7f00_0000_0000;
const PAGE_BYTES: u64 = 4096;

/// All buffers of an open node.
pub struct Memory {
    buffers: BTreeMap<u32, Buffer>,
    has_heap: bool,
    next_handle: u32,
    next_in_heap: u64,
    next_shared: u64,
}

struct Buffer {
    kind: BufferKind,
    address: u64,
    /// Bytes that the host wrote; none of memory that a GPU has, too.
    host: Vec<u8>,
    /// Memory that a GPU has, too, in the place of the host's bytes.
    pages: Option<Arc<SharedPages>>,
    /// Bytes that the array reads; none for a command, which the driver reads.
    array: Vec<u8>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            buffers: BTreeMap::new(),
            has_heap: false,
            next_handle: 1,
            next_in_heap: HEAP_AT,
            next_shared: SHARED_AT,
        }
    }
}

impl Memory {
    pub fn has_heap(&self) -> bool {
        self.has_heap
    }

    pub fn create(&mut self, kind: BufferKind, bytes: u64) -> Result<DeviceBuffer, String> {
        if bytes == 0 {
            return Err("buffer of 0 bytes".into());
        }
        let address = match kind {
            BufferKind::Heap if self.has_heap => return Err("a second heap, expected one".into()),
            BufferKind::Heap if bytes != HEAP_BYTES => {
                return Err(format!("heap of {bytes} bytes, expected {HEAP_BYTES}"));
            }
            BufferKind::Heap => {
                self.has_heap = true;
                HEAP_AT
            }
            BufferKind::Device if !self.has_heap => return Err("buffer of the heap before the heap".into()),
            BufferKind::Device => {
                let end = self.next_in_heap + bytes;
                if end > HEAP_AT + HEAP_BYTES {
                    return Err(format!("{bytes} bytes do not fit into the heap"));
                }
                std::mem::replace(&mut self.next_in_heap, end.next_multiple_of(HEAP_ALIGN))
            }
            BufferKind::Shared | BufferKind::Command => {
                // A page between two buffers, so that an access beyond one is in no other.
                let end = (self.next_shared + bytes).next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
                std::mem::replace(&mut self.next_shared, end)
            }
        };
        let handle = self.next_handle;
        self.next_handle += 1;
        if kind != BufferKind::Heap {
            // Not zeros, so that reads before the first write are detected.
            let array = if kind == BufferKind::Command { Vec::new() } else { vec![0xa5; bytes as usize] };
            self.buffers.insert(handle, Buffer { kind, address, host: vec![0; bytes as usize], pages: None, array });
        }
        Ok(DeviceBuffer { handle, bytes, address })
    }

    /// A buffer over pages of the process.
    pub fn share(&mut self, pages: Arc<SharedPages>) -> Result<DeviceBuffer, String> {
        let made = self.create(BufferKind::Shared, pages.bytes() as u64)?;
        let buffer = self.buffers.get_mut(&made.handle).expect("just made");
        (buffer.host, buffer.pages) = (Vec::new(), Some(pages));
        Ok(made)
    }

    pub fn free(&mut self, handle: u32) -> Result<(), String> {
        self.buffers.remove(&handle).map(drop).ok_or_else(|| unknown(handle))
    }

    pub fn host(&mut self, handle: u32) -> Result<&mut [u8], String> {
        let buffer = self.buffers.get_mut(&handle).ok_or_else(|| unknown(handle))?;
        match buffer.pages {
            Some(_) => Err(format!("buffer {handle} is a GPU's, too")),
            None => Ok(&mut buffer.host),
        }
    }

    pub fn sync(&mut self, handle: u32, direction: Direction) -> Result<(), String> {
        let buffer = self.buffers.get_mut(&handle).ok_or_else(|| unknown(handle))?;
        match (direction, &buffer.pages) {
            _ if buffer.kind == BufferKind::Command => {}
            (Direction::ToDevice, Some(pages)) => pages.read(&mut buffer.array),
            (Direction::FromDevice, Some(pages)) => pages.write(&buffer.array),
            (Direction::ToDevice, None) => buffer.array.copy_from_slice(&buffer.host),
            (Direction::FromDevice, None) => buffer.host.copy_from_slice(&buffer.array),
        }
        Ok(())
    }

    /// The bytes of a command, as the driver reads them.
    pub fn command(&mut self, handle: u32) -> Result<&mut [u8], String> {
        match self.buffers.get_mut(&handle) {
            Some(buffer) if buffer.kind == BufferKind::Command => Ok(&mut buffer.host),
            _ => Err(format!("buffer {handle} is no command's")),
        }
    }

    /// Whether a control image may be stored there.
    pub fn is_in_heap(&self, handle: u32) -> bool {
        self.buffers.get(&handle).is_some_and(|buffer| buffer.kind == BufferKind::Device)
    }

    /// `bytes` bytes from `address` on, as the array reads them, of a buffer of this kind in `pinned`.
    pub fn array(&mut self, kind: BufferKind, address: u64, bytes: usize, pinned: &[u32]) -> Result<&mut [u8], String> {
        let holds = |buffer: &Buffer| {
            buffer.kind == kind && (buffer.address..buffer.address + buffer.array.len() as u64).contains(&address)
        };
        let found = self.buffers.iter_mut().find(|(_, buffer)| holds(buffer));
        let (handle, buffer) = found.ok_or_else(|| format!("address {address:#x} is in no {kind:?} buffer"))?;
        if !pinned.contains(handle) {
            return Err(format!("buffer {handle} at {address:#x} is none of the command's arguments"));
        }
        let at = (address - buffer.address) as usize;
        let len = buffer.array.len();
        let range = buffer.array.get_mut(at..at.saturating_add(bytes));
        range.ok_or_else(|| format!("{bytes} bytes at {at} of buffer {handle}, which has {len}"))
    }
}

fn unknown(handle: u32) -> String {
    format!("buffer {handle} is unknown")
}
