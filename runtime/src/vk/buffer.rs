//! Buffers, each with an allocation of its own, and mappings of those that are host-visible.

use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;

use crate::device::memory_types::{BufferUse, rank_memory_types};
use crate::vk::device::Device;
use crate::vk::host_memory::{HostImport, HostMemory};
use crate::vk::{Failure, Named, faults};

/// A storage buffer. Threads share it by `Arc`.
pub struct Buffer {
    device: Arc<Device>,
    pub(super) raw: vk::Buffer,
    memory: vk::DeviceMemory,
    len_bytes: u64,
    memory_type: usize,
    /// The host memory that `memory` was imported from.
    host: Option<HostMemory>,
}

/// The host's only view of a buffer's bytes. When it may be accessed: rule 1 of the folder's `mod.rs`.
pub struct Mapping {
    buffer: Arc<Buffer>,
    start: NonNull<u8>,
}

/// Makes host writes to a part of a mapping visible to the device while other threads write other parts.
#[derive(Clone, Copy)]
pub struct Flush<'m> {
    buffer: &'m Buffer,
}

/// A range of a buffer's bytes.
#[derive(Clone)]
pub struct BufferRange {
    pub buffer: Arc<Buffer>,
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

/// A new buffer, with a mapping if its memory is host-visible.
pub struct Allocation {
    pub buffer: Arc<Buffer>,
    pub mapping: Option<Mapping>,
}

/// Largest nonCoherentAtomSize that Vulkan allows.
const ATOM_BYTES: u64 = 256;

impl Buffer {
    /// Allocates from the best memory type with free memory. The contents are undefined.
    pub fn create(device: &Arc<Device>, len_bytes: u64, usage: BufferUse) -> Result<Allocation, Failure> {
        Buffer::create_from(device, request(len_bytes), usage)
    }

    /// The same for a buffer that is written on the transfer queue and read on the compute queue.
    pub fn create_for_copies(device: &Arc<Device>, len_bytes: u64, usage: BufferUse) -> Result<Allocation, Failure> {
        // Concurrent sharing instead of ownership transfers: drivers make no difference, and no barriers are needed.
        match device.families.sharing() {
            None => Buffer::create(device, len_bytes, usage),
            Some(families) => {
                let shared = request(len_bytes).sharing_mode(vk::SharingMode::CONCURRENT);
                Buffer::create_from(device, shared.queue_family_indices(&families), usage)
            }
        }
    }

    fn create_from(
        device: &Arc<Device>,
        request: vk::BufferCreateInfo<'_>,
        usage: BufferUse,
    ) -> Result<Allocation, Failure> {
        let len_bytes = request.size;
        // SAFETY: a plain request; the buffer is destroyed below on failure, else by its owner.
        let raw = unsafe { device.raw.create_buffer(&request, None) }.named("vkCreateBuffer")?;
        match allocate(device, raw, usage, None) {
            Ok((memory, memory_type)) => {
                let buffer =
                    Arc::new(Buffer { device: device.clone(), raw, memory, len_bytes, memory_type, host: None });
                let mapping = buffer.kind().host_visible.then(|| Mapping::map(&buffer)).transpose()?;
                Ok(Allocation { buffer, mapping })
            }
            Err(failure) => {
                // SAFETY: made above, bound to nothing and used nowhere.
                unsafe { device.raw.destroy_buffer(raw, None) };
                Err(failure)
            }
        }
    }

    /// A buffer over `host` memory, without a copy, in the best memory type of `usage` that the driver accepts. There is
    /// a mapping if the memory may be written.
    ///
    /// # Errors
    /// Why the driver does not accept it; follows a colon in messages.
    pub fn import(
        device: &Arc<Device>,
        len_bytes: u64,
        usage: BufferUse,
        mut host: HostMemory,
    ) -> Result<Allocation, String> {
        let import = device.host_import.as_ref().ok_or("the driver imports no host memory")?;
        let (start, whole_bytes) = host.start();
        let import_bytes = len_bytes.next_multiple_of(import.align_bytes);
        if !(start as u64).is_multiple_of(import.align_bytes) || import_bytes > whole_bytes {
            return Err(format!("the driver imports only whole blocks of {} bytes", import.align_bytes));
        }
        let handle = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle);
        let to_text = |failure: Failure| format!("{} failed with {}", failure.call, failure.code);
        // SAFETY: a plain request of the extension that the device was opened with; destroyed below on failure, else by its
        // owner.
        let raw = unsafe { device.raw.create_buffer(&request(len_bytes).push_next(&mut external), None) }
            .named("vkCreateBuffer")
            .map_err(to_text)?;
        match import_memory(device, import, raw, usage, (start, import_bytes)) {
            Ok((memory, memory_type)) => {
                let writable = host.is_writable();
                let host = Some(host);
                let buffer = Arc::new(Buffer { device: device.clone(), raw, memory, len_bytes, memory_type, host });
                let start = NonNull::new(start).expect("a mapping has no null address");
                let mapping = writable.then(|| Mapping { buffer: buffer.clone(), start });
                Ok(Allocation { buffer, mapping })
            }
            Err(failure) => {
                // SAFETY: made above, bound to nothing and used nowhere.
                unsafe { device.raw.destroy_buffer(raw, None) };
                Err(to_text(failure))
            }
        }
    }

    /// A buffer whose memory another driver can have, too, by the dma-buf; no view of the host.
    ///
    /// # Errors
    /// Why the driver exports none; follows a colon in messages.
    pub fn export(device: &Arc<Device>, len_bytes: u64, usage: BufferUse) -> Result<(Arc<Buffer>, OwnedFd), String> {
        let functions = device.dma_buf.as_ref().ok_or("the driver exports no memory")?;
        let handle = vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle);
        let to_text = |failure: Failure| format!("{} failed with {}", failure.call, failure.code);
        // SAFETY: a plain request of the extensions that the device was opened with; destroyed below on failure, else by its
        // owner.
        let raw = unsafe { device.raw.create_buffer(&request(len_bytes).push_next(&mut external), None) }
            .named("vkCreateBuffer")
            .map_err(to_text)?;
        let (memory, memory_type) = allocate(device, raw, usage, Some(handle)).map_err(|failure| {
            // SAFETY: made above, bound to nothing and used nowhere.
            unsafe { device.raw.destroy_buffer(raw, None) };
            to_text(failure)
        })?;
        // From here on Drop cleans up.
        let buffer = Arc::new(Buffer { device: device.clone(), raw, memory, len_bytes, memory_type, host: None });
        faults::before("vkGetMemoryFdKHR").map_err(to_text)?;
        let request = vk::MemoryGetFdInfoKHR::default().memory(memory).handle_type(handle);
        // SAFETY: the memory was allocated to be exported in this way.
        let fd = unsafe { functions.get_memory_fd(&request) }.named("vkGetMemoryFdKHR").map_err(to_text)?;
        // SAFETY: a new descriptor, which the call above gave to its caller.
        Ok((buffer, unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The whole buffer.
    pub fn whole(self: &Arc<Buffer>) -> BufferRange {
        self.range(0, self.len_bytes)
    }

    pub fn range(self: &Arc<Buffer>, offset_bytes: u64, len_bytes: u64) -> BufferRange {
        let end = offset_bytes.checked_add(len_bytes);
        assert!(
            end.is_some_and(|end| end <= self.len_bytes),
            "range {offset_bytes} + {len_bytes} exceeds a buffer of {} bytes",
            self.len_bytes
        );
        BufferRange { buffer: self.clone(), offset_bytes, len_bytes }
    }

    /// Index into the device's heaps.
    pub fn heap(&self) -> usize {
        self.kind().heap
    }

    /// Whether it is imported host memory.
    pub fn is_imported(&self) -> bool {
        self.host.is_some()
    }

    pub fn is_device_local(&self) -> bool {
        self.kind().device_local
    }

    fn kind(&self) -> crate::device::facts::MemoryType {
        self.device.facts().memory_types[self.memory_type]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.device.is_stuck() {
            std::mem::forget(self.host.take());
            return;
        }
        // SAFETY: descriptor pools and command lists that use the buffer hold an Arc of it, so none is left; freeing the
        // memory unmaps it, and the mapping holds an Arc, too.
        unsafe {
            self.device.raw.destroy_buffer(self.raw, None);
            self.device.raw.free_memory(self.memory, None);
        }
    }
}

impl Mapping {
    /// Called once a buffer, by `create_from`: two mappings would alias the same bytes.
    fn map(buffer: &Arc<Buffer>) -> Result<Mapping, Failure> {
        // SAFETY: the memory is host-visible and not mapped yet.
        let start =
            unsafe { buffer.device.raw.map_memory(buffer.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
                .named("vkMapMemory")?;
        let start = NonNull::new(start.cast()).expect("a successful map is not null");
        Ok(Mapping { buffer: buffer.clone(), start })
    }

    /// All bytes, for reading.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the map, or the pages that were imported, cover the buffer's length and live as long as `buffer`; there is
        // no other view of them, and the device does not write them meanwhile (rule 1).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.buffer.len_bytes as usize) }
    }

    /// All bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.buffer.len_bytes as usize) }
    }

    /// The bytes, to be written in parts, and the flush that each part needs.
    pub fn parts_mut(&mut self) -> (&mut [u8], Flush<'_>) {
        // SAFETY: as in `bytes_mut`; `Flush` has no view of the bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.buffer.len_bytes as usize) };
        (bytes, Flush { buffer: &self.buffer })
    }

    /// Writes little-endian words from word `at` on.
    pub fn write_words(&mut self, at: usize, words: &[u32]) {
        let target = self.part_mut(4 * at, 4 * words.len());
        for (bytes, word) in target.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads little-endian words from word `at` on.
    pub fn read_words(&self, at: usize, words: &mut [u32]) {
        let source = self.part(4 * at, 4 * words.len());
        for (bytes, word) in source.chunks_exact(4).zip(words) {
            *word = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        }
    }

    fn part(&self, offset: usize, len: usize) -> &[u8] {
        assert!(is_inside(offset, len, self.buffer.len_bytes), "part of a mapping");
        // SAFETY: inside the map, as asserted; the device does not write these bytes meanwhile (rule 1).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }

    fn part_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(is_inside(offset, len, self.buffer.len_bytes), "part of a mapping");
        // SAFETY: inside the map, as asserted; the device does not touch these bytes meanwhile (rule 1), and `&mut self`
        // makes it the host's only view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }

    /// Makes the host's writes visible to the device.
    pub fn flush(&self) -> Result<(), Failure> {
        if self.buffer.kind().host_coherent {
            return Ok(());
        }
        // SAFETY: the memory is mapped as a whole.
        unsafe { self.buffer.device.raw.flush_mapped_memory_ranges(&[self.all()]) }.named("vkFlushMappedMemoryRanges")
    }

    /// Makes the device's writes visible to the host.
    pub fn invalidate(&self) -> Result<(), Failure> {
        if self.buffer.kind().host_coherent {
            return Ok(());
        }
        // SAFETY: the memory is mapped as a whole.
        unsafe { self.buffer.device.raw.invalidate_mapped_memory_ranges(&[self.all()]) }
            .named("vkInvalidateMappedMemoryRanges")
    }

    fn all(&self) -> vk::MappedMemoryRange<'_> {
        vk::MappedMemoryRange::default().memory(self.buffer.memory).offset(0).size(vk::WHOLE_SIZE)
    }
}

impl Flush<'_> {
    /// Flushes `range`, which begins at a multiple of [`ATOM_BYTES`].
    pub fn flush(&self, range: Range<u64>) -> Result<(), Failure> {
        if self.buffer.kind().host_coherent {
            return Ok(());
        }
        assert!(range.start.is_multiple_of(ATOM_BYTES), "{range:?} of a mapping");
        let end = range.end.next_multiple_of(ATOM_BYTES);
        let len_bytes = if end >= self.buffer.len_bytes { vk::WHOLE_SIZE } else { end - range.start };
        let part = vk::MappedMemoryRange::default().memory(self.buffer.memory).offset(range.start).size(len_bytes);
        // SAFETY: inside memory that is mapped as a whole.
        unsafe { self.buffer.device.raw.flush_mapped_memory_ranges(&[part]) }.named("vkFlushMappedMemoryRanges")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.buffer.host.is_some() {
            return;
        }
        // SAFETY: mapped in `map`, unmapped once; the memory is alive through `buffer`.
        unsafe { self.buffer.device.raw.unmap_memory(self.buffer.memory) };
    }
}

// SAFETY: the pointer is to memory that any thread may use, and `Mapping` is its only owner.
unsafe impl Send for Mapping {}

fn request(len_bytes: u64) -> vk::BufferCreateInfo<'static> {
    assert!(len_bytes > 0, "Vulkan has no empty buffers");
    vk::BufferCreateInfo::default()
        .size(len_bytes)
        .usage(
            vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST,
        )
        .sharing_mode(vk::SharingMode::EXCLUSIVE)
}

/// Imports host memory (address and length) for `buffer` and binds it. Only coherent types are considered: imported memory is not
/// mapped by Vulkan, so that it cannot be flushed.
fn import_memory(
    device: &Device,
    import: &HostImport,
    buffer: vk::Buffer,
    usage: BufferUse,
    (start, import_bytes): (*mut u8, u64),
) -> Result<(vk::DeviceMemory, usize), Failure> {
    let handle = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
    let mut host = vk::MemoryHostPointerPropertiesEXT::default();
    faults::before("vkGetMemoryHostPointerPropertiesEXT")?;
    // SAFETY: the pointer is to pages of this process; the driver only queries their properties.
    unsafe {
        (import.functions.fp().get_memory_host_pointer_properties_ext)(
            device.raw.handle(),
            handle,
            start.cast(),
            &mut host,
        )
    }
    .result()
    .named("vkGetMemoryHostPointerPropertiesEXT")?;
    // SAFETY: the buffer belongs to the device.
    let needs = unsafe { device.raw.get_buffer_memory_requirements(buffer) };
    let types = host.memory_type_bits & needs.memory_type_bits;
    let fits = |&kind: &usize| types & (1 << kind) != 0 && device.facts().memory_types[kind].host_coherent;
    let no_type = Failure { call: "import into this tier's memory", code: vk::Result::ERROR_FEATURE_NOT_PRESENT };
    let kind = rank_memory_types(device.facts(), usage).into_iter().find(fits).ok_or(no_type)?;
    if needs.size > import_bytes {
        return Err(no_type);
    }
    let mut pages = vk::ImportMemoryHostPointerInfoEXT::default().handle_type(handle).host_pointer(start.cast());
    let request = vk::MemoryAllocateInfo::default()
        .allocation_size(import_bytes)
        .memory_type_index(kind as u32)
        .push_next(&mut pages);
    // SAFETY: whole pages with the driver's alignment, of a type that it accepts for them; the buffer keeps them alive longer
    // than this memory.
    let memory = unsafe { device.raw.allocate_memory(&request, None) }.named("vkAllocateMemory")?;
    bind(device, buffer, memory)?;
    Ok((memory, kind))
}

/// Whether `len` bytes from `offset` on lie within `limit_bytes`, also where their sum wraps.
fn is_inside(offset: usize, len: usize, limit_bytes: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end as u64 <= limit_bytes)
}

/// Binds fresh `memory`; frees it on failure.
fn bind(device: &Device, buffer: vk::Buffer, memory: vk::DeviceMemory) -> Result<(), Failure> {
    // SAFETY: fresh memory of the required size, bound once, at offset 0.
    let bound = unsafe { device.raw.bind_buffer_memory(buffer, memory, 0) }.named("vkBindBufferMemory");
    if bound.is_err() {
        // SAFETY: nothing is bound to it.
        unsafe { device.raw.free_memory(memory, None) };
    }
    bound
}

/// Allocates memory for `buffer` and binds it, trying memory types by rank.
/// `export`: the kind of handle by which the memory is given to other drivers.
fn allocate(
    device: &Device,
    buffer: vk::Buffer,
    usage: BufferUse,
    export: Option<vk::ExternalMemoryHandleTypeFlags>,
) -> Result<(vk::DeviceMemory, usize), Failure> {
    // SAFETY: the buffer belongs to the device.
    let needs = unsafe { device.raw.get_buffer_memory_requirements(buffer) };
    let mut failure = Failure { call: "vkAllocateMemory", code: vk::Result::ERROR_OUT_OF_DEVICE_MEMORY };
    for memory_type in rank_memory_types(device.facts(), usage) {
        if needs.memory_type_bits & (1 << memory_type) == 0 {
            continue;
        }
        let mut only = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer);
        let request = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(memory_type as u32)
            .push_next(&mut only);
        let mut exported = export.map(|kind| vk::ExportMemoryAllocateInfo::default().handle_types(kind));
        let request = match &mut exported {
            Some(exported) => request.push_next(exported),
            None => request,
        };
        // SAFETY: size and type are what the buffer's requirements allow.
        let memory = match unsafe { device.raw.allocate_memory(&request, None) }.named("vkAllocateMemory") {
            Ok(memory) => memory,
            Err(error) if error.is_out_of_memory() => {
                failure = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        bind(device, buffer, memory)?;
        return Ok((memory, memory_type));
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_mapping_do_not_wrap() {
        assert!(is_inside(0, 8, 8) && is_inside(8, 0, 8));
        assert!(!is_inside(1, 8, 8) && !is_inside(usize::MAX, 1, 8) && !is_inside(2, usize::MAX, 8));
    }
}
