//! Host memory that is imported as device memory without a copy (VK_EXT_external_memory_host).

use std::io;
use std::sync::Arc;

use ash::{ext, vk};
use memmap2::{Advice, MmapMut};
use unicorn_artifact::MappedFile;

use crate::npu::driver::SharedPages;
use crate::vk::instance::Instance;

/// Host memory that a buffer imports and owns.
pub enum HostMemory {
    /// Pages of a mapped file from `offset_bytes` on; read only.
    File { file: Arc<MappedFile>, offset_bytes: u64 },
    /// Private pages of this process, written through the buffer's mapping.
    Anonymous(MmapMut),
    /// Pages that an NPU accesses, too; the host has no view of them by the buffer.
    Shared(Arc<SharedPages>),
}

/// The extension's functions and alignment for one device.
pub struct HostImport {
    pub(super) functions: ext::external_memory_host::Device,
    /// Alignment of addresses and lengths.
    pub(super) align_bytes: u64,
}

impl HostMemory {
    /// Zeroed pages for at least `len_bytes`; large pages where the system has them.
    pub fn anonymous(len_bytes: u64) -> io::Result<HostMemory> {
        let map = MmapMut::map_anon(len_bytes.next_multiple_of(HUGE_PAGE_BYTES) as usize)?;
        // Without large pages, small ones are used.
        let _ = map.advise(Advice::HugePage);
        Ok(HostMemory::Anonymous(map))
    }

    /// Its address, and the length of the whole pages from there on.
    pub(super) fn start(&mut self) -> (*mut u8, u64) {
        match self {
            HostMemory::File { file, offset_bytes } => {
                let bytes = &file.bytes()[*offset_bytes as usize..];
                // A file is mapped to the end of its last page.
                (bytes.as_ptr().cast_mut(), (bytes.len() as u64).next_multiple_of(PAGE_BYTES))
            }
            HostMemory::Anonymous(map) => (map.as_mut_ptr(), map.len() as u64),
            HostMemory::Shared(pages) => (pages.address() as *mut u8, pages.bytes() as u64),
        }
    }

    pub(super) fn is_writable(&self) -> bool {
        matches!(self, HostMemory::Anonymous(_))
    }
}

/// Page size that is assumed; with larger pages, the address does not meet the driver's alignment and the import is refused.
const PAGE_BYTES: u64 = 4 << 10;
const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl HostImport {
    /// Functions and alignment of a device that was opened with the extension.
    pub(super) fn of(instance: &Instance, physical: vk::PhysicalDevice, device: &ash::Device) -> HostImport {
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut chain = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
        // SAFETY: the device has Vulkan 1.1 and the struct's extension.
        unsafe { instance.raw.get_physical_device_properties2(physical, &mut chain) };
        HostImport {
            functions: ext::external_memory_host::Device::new(&instance.raw, device),
            align_bytes: host.min_imported_host_pointer_alignment,
        }
    }
}
