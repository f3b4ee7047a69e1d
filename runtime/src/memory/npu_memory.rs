//! Buffers through which an NPU's activations and outputs pass, in memory that both devices access where their drivers can.
//!
//! ```text
//! dma-buf         the GPU's driver exports a buffer, the NPU's imports it
//! pages           anonymous pages of this process, which both drivers import
//! two buffers     one of each driver, between which the host copies
//! ```

use std::fmt::{self, Display};
use std::sync::Arc;

use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS};

use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::npu::driver::{SharedMemory, SharedPages};
use crate::npu::{NpuDevice, NpuError};
use crate::vk::buffer::{Buffer, Mapping};
use crate::vk::device::Device;
use crate::vk::host_memory::HostMemory;

/// Bytes that pass between the device and an NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuBytes {
    /// Runs of a step.
    pub runs: usize,
    /// Bytes of the largest product's activations.
    pub activations: u64,
    /// Bytes of the largest product's outputs.
    pub outputs: u64,
}

/// How a GPU and an NPU have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NpuMemory {
    /// The host copies between two buffers.
    Copied,
    /// Pages of the host that both drivers have imported.
    Pages,
    /// Memory of the GPU's driver that the NPU's has imported.
    DmaBuf,
}

impl Display for NpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NpuMemory::Copied => "the host copies activations and outputs",
            NpuMemory::Pages => "activations and outputs in pages that both devices access",
            NpuMemory::DmaBuf => "activations and outputs in dma-bufs that both devices access",
        })
    }
}

/// Buffers of all runs, and the host's views of them.
#[derive(Default)]
pub struct NpuBuffers {
    /// One a run: activations and outputs.
    pub buffers: Vec<[Arc<Buffer>; 2]>,
    /// One a run.
    pub views: Vec<NpuViews>,
    /// `None`: there are none.
    pub memory: Option<NpuMemory>,
}

/// Mappings of what passes between the device and an NPU in one run; `None`: both access the memory, and the host passes nothing on.
pub struct NpuViews {
    /// Written by the device.
    pub activations: Option<Mapping>,
    /// Read by the device.
    pub outputs: Option<Mapping>,
}

/// Allocates them; `copied` makes a buffer that the host maps, for a purpose, of a length and use, where the drivers share no memory.
///
/// # Errors
/// Errors of `copied`, and of the NPU's driver.
pub fn allocate(
    device: &Arc<Device>,
    npu: &mut NpuDevice,
    NpuBytes { runs, activations, outputs }: NpuBytes,
    copied: impl Fn(&str, u64, BufferUse) -> Result<(Arc<Buffer>, Mapping), LoadError>,
) -> Result<NpuBuffers, LoadError> {
    let mut all = NpuBuffers::default();
    for run in 0..runs {
        let mut one = |what: &str, argument: usize, bytes: u64, usage: BufferUse| {
            let shared = shared(device, npu, (run, argument), bytes, usage);
            let (buffer, mapping, memory) = match shared.map_err(|source| LoadError::Npu { source })? {
                Some((buffer, memory)) => (buffer, None, memory),
                None => copied(what, bytes, usage).map(|(buffer, view)| (buffer, Some(view), NpuMemory::Copied))?,
            };
            all.memory = Some(all.memory.map_or(memory, |before| before.min(memory)));
            Ok::<_, LoadError>((buffer, mapping))
        };
        let (given, activations) = one("activations for the NPU", ACTIVATIONS, activations, BufferUse::Readback)?;
        let (found, outputs) = one("outputs of the NPU", OUTPUTS, outputs, BufferUse::Upload)?;
        all.buffers.push([given, found]);
        all.views.push(NpuViews { activations, outputs });
    }
    Ok(all)
}

/// A buffer in memory that an argument of a run of the NPU has, too; `None`: one of both drivers shares none.
fn shared(
    device: &Arc<Device>,
    npu: &mut NpuDevice,
    (run, argument): (usize, usize),
    bytes: u64,
    usage: BufferUse,
) -> Result<Option<(Arc<Buffer>, NpuMemory)>, NpuError> {
    if let Ok((buffer, dma_buf)) = Buffer::export(device, bytes, usage)
        && npu.share(run, argument, &SharedMemory::DmaBuf(dma_buf, bytes))?
    {
        return Ok(Some((buffer, NpuMemory::DmaBuf)));
    }
    let Ok(pages) = SharedPages::new(bytes).map(Arc::new) else { return Ok(None) };
    let Ok(imported) = Buffer::import(device, bytes, usage, HostMemory::Shared(pages.clone())) else {
        return Ok(None);
    };
    let is_shared = npu.share(run, argument, &SharedMemory::Pages(pages))?;
    Ok(is_shared.then_some((imported.buffer, NpuMemory::Pages)))
}
