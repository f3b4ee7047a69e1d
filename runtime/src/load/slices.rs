//! Weight slices and the buffers that they are loaded into, allocated as their upload path requires.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unicorn_artifact::{Lease, MappedFile, Tier};

use crate::device::facts::DeviceKind;
use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::load::upload_path::UploadPath;
use crate::memory::buffers::Allocator;
use crate::vk::Failure;
use crate::vk::buffer::{Allocation, Buffer, Mapping};
use crate::vk::device::Device;
use crate::vk::host_memory::HostMemory;

/// The file that weights are read from, and the device that they are loaded onto.
pub struct UploadSource<'a> {
    pub device: &'a Arc<Device>,
    pub file: &'a Arc<MappedFile>,
    /// Timeout of one submission.
    pub timeout: Duration,
    /// Reads go through the page cache and leave the file in it, for the next start.
    pub keeps_page_cache: bool,
}

/// Position of a weight slice in the file, and its tier.
#[derive(Clone, Copy)]
pub struct WeightExtent {
    pub file_offset_bytes: u64,
    pub len_bytes: u64,
    pub tier: Tier,
}

/// One weight slice to be loaded.
pub struct Slice {
    pub(super) path: UploadPath,
    /// Offset of its first byte in the file.
    pub(super) file_offset_bytes: u64,
    pub(super) len_bytes: u64,
    /// The slice's buffer, at least `len_bytes` long.
    pub(super) buffer: Arc<Buffer>,
    /// Present where the host writes the buffer's memory.
    pub(super) mapping: Option<Mapping>,
}

/// Why a slice's buffer could not be allocated.
pub enum AllocationError {
    /// A Vulkan call failed.
    Failed(Failure),
    /// The path is not available here; the reason follows a colon in messages.
    Unavailable(String),
}

/// Buffers are a multiple of this: kernels read words in groups of four, and the verifying kernel blocks of 64 bytes.
const BUFFER_ALIGN_BYTES: u64 = 256;

impl Slice {
    /// A slice in the buffer of `fresh`, which was allocated for `path`.
    pub fn new(path: UploadPath, file_offset_bytes: u64, len_bytes: u64, fresh: Allocation) -> Slice {
        Slice { path, file_offset_bytes, len_bytes, buffer: fresh.buffer, mapping: fresh.mapping }
    }

    /// Allocates every slice for the upload path of its tier, `path_of`.
    ///
    /// # Errors
    /// [`LoadError::OutOfMemory`], and [`LoadError::Residency`] where the path is not available.
    pub fn allocate_all(
        source: &UploadSource<'_>,
        extents: &[WeightExtent],
        path_of: impl Fn(Tier) -> UploadPath,
        allocator: &Allocator<'_>,
    ) -> Result<Vec<Slice>, LoadError> {
        let one = |(index, &WeightExtent { file_offset_bytes, len_bytes, tier }): (usize, &WeightExtent)| {
            let (what, path) = (format!("weight slice {index}"), path_of(tier));
            let fresh = source.allocate(path, file_offset_bytes, len_bytes, allocator.resident_use(tier));
            let fresh = fresh.map_err(|error| match error {
                AllocationError::Failed(failure) => allocator.error(&what, failure),
                AllocationError::Unavailable(reason) => LoadError::Residency {
                    tier,
                    device: source.device.facts().name.clone(),
                    refusals: vec![format!("{path}, of {what}: {reason}")],
                },
            })?;
            Ok(Slice::new(path, file_offset_bytes, len_bytes, fresh))
        };
        extents.iter().enumerate().map(one).collect()
    }

    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether its bytes are pages of the file.
    pub fn is_imported(&self) -> bool {
        self.path == UploadPath::Import
    }

    /// The resident bytes, where the host can read them.
    pub fn mapped_bytes(&self) -> Option<&[u8]> {
        self.mapping.as_ref().map(Mapping::bytes)
    }

    /// Range of the file.
    pub(super) fn in_file(&self) -> Range<u64> {
        self.file_offset_bytes..self.file_offset_bytes + self.len_bytes
    }
}

impl UploadSource<'_> {
    /// Whether the device can read the file's pages where they are. A software device does so by threads of this process, which end it when
    /// a page is gone; others keep the pages, or fail.
    fn may_read_pages(&self) -> bool {
        self.device.facts().kind != DeviceKind::Cpu || self.file.take_lease() != Lease::Unavailable
    }

    /// A buffer for `len_bytes` from `file_offset_bytes` on, for the given path.
    pub fn allocate(
        &self,
        path: UploadPath,
        file_offset_bytes: u64,
        len_bytes: u64,
        usage: BufferUse,
    ) -> Result<Allocation, AllocationError> {
        let buffer_bytes = len_bytes.max(1).next_multiple_of(BUFFER_ALIGN_BYTES);
        match path {
            UploadPath::Import if !self.may_read_pages() => {
                let reason = "the file system has no leases, without which a program that cuts the file ends this one";
                Err(AllocationError::Unavailable(reason.into()))
            }
            UploadPath::Import => {
                let host = HostMemory::File { file: self.file.clone(), offset_bytes: file_offset_bytes };
                Buffer::import(self.device, buffer_bytes, usage, host).map_err(AllocationError::Unavailable)
            }
            UploadPath::Host => {
                let host = HostMemory::anonymous(buffer_bytes)
                    .map_err(|error| AllocationError::Unavailable(error.to_string()))?;
                Buffer::import(self.device, buffer_bytes, usage, host).map_err(AllocationError::Unavailable)
            }
            UploadPath::Map => {
                let fresh = Buffer::create(self.device, buffer_bytes, usage).map_err(AllocationError::Failed)?;
                if fresh.mapping.is_none() {
                    return Err(AllocationError::Unavailable("the host cannot map this tier's memory".into()));
                }
                Ok(fresh)
            }
            UploadPath::Staging => {
                let fresh = Buffer::create_for_copies(self.device, buffer_bytes, usage);
                Ok(Allocation { mapping: None, ..fresh.map_err(AllocationError::Failed)? })
            }
        }
    }
}
