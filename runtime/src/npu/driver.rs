//! What a driver of the NPU does for this runtime, one function for each of its calls.
//!
//! Order of calls, which a driver enforces: a heap before everything else; a context; its units, once; commands, whose buffers are all
//! named when they are submitted. Memory that the host wrote is synchronised before a command, and what the array wrote after it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use unicorn_artifact::NpuProgram;

use super::error::NpuError;
pub use super::ioctl::SharedPages;

/// What a driver reports about its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuFacts {
    /// Name of the driver and its version.
    pub driver: String,
    /// Version of the firmware.
    pub firmware: String,
    /// Columns of the array.
    pub columns: u32,
    /// Rows of the array.
    pub rows: u32,
    /// Rows of cores.
    pub core_rows: u32,
    /// Current clock of the array; `None`: it has none.
    pub clock_mhz: Option<u32>,
}

impl NpuFacts {
    /// Whether it is the array of Phoenix and Hawk Point (XDNA1), which an artifact calls `npu1`.
    pub fn is_npu1(&self) -> bool {
        (self.columns, self.rows) == (5, 6)
    }
}

/// Kinds of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// The window of the device's own addresses: one a process, [`HEAP_BYTES`] long.
    Heap,
    /// A part of the heap: instruction streams and control images.
    Device,
    /// Memory of the host that the array reads and writes.
    Shared,
    /// A command packet.
    Command,
}

pub use unicorn_artifact::npu::HEAP_BYTES;

/// Tensors of one command: the driver copies 19 words, of which five are the stream's.
pub const MAX_TENSORS: usize = 7;
/// Commands of a context that were submitted and not waited for: the driver's queue of a context.
pub const MAX_RUNNING: usize = 4;
/// Compute units of a context: bits of a command's first mask.
pub const MAX_UNITS: usize = 32;

/// A buffer of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBuffer {
    /// The driver's handle.
    pub handle: u32,
    /// Size as it was requested.
    pub bytes: u64,
    /// Address that the array and its firmware use.
    pub address: u64,
}

/// Memory that a GPU has, too.
pub enum SharedMemory {
    /// Pages of this process, which the buffer keeps in place.
    Pages(Arc<SharedPages>),
    /// A buffer that the GPU's driver has exported, and its length in bytes.
    DmaBuf(OwnedFd, u64),
}

/// Which caches are synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What the host wrote becomes visible to the array.
    ToDevice,
    /// What the array wrote becomes visible to the host.
    FromDevice,
}

/// One configuration of the array.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'p> {
    /// A buffer of the heap with the control image.
    pub image: DeviceBuffer,
    /// The program that runs in it.
    pub program: &'p NpuProgram,
}

/// A driver and its device.
pub trait Driver: Send {
    /// What the driver reports about its device.
    fn facts(&self) -> &NpuFacts;

    /// Whether the array is configured by control images, as the hardware is.
    fn needs_control(&self) -> bool;

    /// # Errors
    /// When memory is exhausted, or the call is out of order.
    fn create_buffer(&mut self, kind: BufferKind, bytes: u64) -> Result<DeviceBuffer, NpuError>;

    /// A buffer of kind [`BufferKind::Shared`] of memory that a GPU has, too, without a view of the host; `None`: the driver makes none of this memory.
    ///
    /// # Errors
    /// When the driver fails in another way.
    fn share(&mut self, _memory: &SharedMemory) -> Result<Option<DeviceBuffer>, NpuError> {
        Ok(None)
    }

    /// # Errors
    /// When the handle is unknown, or that of a command that has not ended.
    fn free_buffer(&mut self, buffer: DeviceBuffer) -> Result<(), NpuError>;

    /// The host's view of a buffer.
    ///
    /// # Errors
    /// When the handle is unknown.
    fn bytes(&mut self, buffer: DeviceBuffer) -> Result<&mut [u8], NpuError>;

    /// # Errors
    /// When the handle is unknown.
    fn sync(&mut self, buffer: DeviceBuffer, direction: Direction) -> Result<(), NpuError>;

    /// Creates a context of `columns` columns.
    ///
    /// # Errors
    /// [`NpuError::Busy`] while other programs have them.
    fn create_context(&mut self, columns: u32) -> Result<u32, NpuError>;

    /// Gives a context its units, at most [`MAX_UNITS`], once.
    ///
    /// # Errors
    /// When the call is out of order.
    fn configure(&mut self, context: u32, units: &[Unit<'_>]) -> Result<(), NpuError>;

    /// Ends a context and whatever it runs.
    ///
    /// # Errors
    /// When the handle is unknown.
    fn destroy_context(&mut self, context: u32) -> Result<(), NpuError>;

    /// Submits the packet in `command`; returns its number. The driver keeps `arguments` in place until it has ended.
    ///
    /// # Errors
    /// When the context has no units, or the packet is malformed.
    fn submit(&mut self, context: u32, command: DeviceBuffer, arguments: &[DeviceBuffer]) -> Result<u64, NpuError>;

    /// Waits for a command; `false`: it has not ended in time.
    ///
    /// # Errors
    /// When the handle or the number is unknown.
    fn wait(&mut self, context: u32, number: u64, timeout: Duration) -> Result<bool, NpuError>;
}
