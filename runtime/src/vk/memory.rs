//! Buffers, each with an allocation of its own, and the host's view of those it can see.

use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;

use crate::residency::{Role, rank_memory_types};
use crate::vk::device::Device;
use crate::vk::{Failure, Named};

/// A storage buffer in device memory.
pub struct Buffer {
    device: Arc<Device>,
    pub(super) raw: vk::Buffer,
    memory: vk::DeviceMemory,
    len_bytes: u64,
    memory_type: usize,
}

/// The host's only view of a buffer's bytes. When it may be touched: see the room's rule 1.
pub struct Mapping {
    buffer: Arc<Buffer>,
    start: NonNull<u8>,
}

/// Part of a buffer.
#[derive(Clone)]
pub struct BufferRange {
    pub buffer: Arc<Buffer>,
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

/// A fresh buffer, with a mapping if the host sees the memory that it got.
pub struct Allocation {
    pub buffer: Arc<Buffer>,
    pub mapping: Option<Mapping>,
}

impl Buffer {
    /// Allocates from the best memory type that has room. The contents are undefined.
    pub fn create(device: &Arc<Device>, len_bytes: u64, role: Role) -> Result<Allocation, Failure> {
        assert!(len_bytes > 0, "Vulkan has no empty buffers");
        let request = vk::BufferCreateInfo::default()
            .size(len_bytes)
            .usage(
                vk::BufferUsageFlags::STORAGE_BUFFER
                    | vk::BufferUsageFlags::TRANSFER_SRC
                    | vk::BufferUsageFlags::TRANSFER_DST,
            )
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: a plain request; the buffer is destroyed below on failure, else by its owner.
        let raw = unsafe { device.raw.create_buffer(&request, None) }.named("vkCreateBuffer")?;
        match allocate(device, raw, role) {
            Ok((memory, memory_type)) => {
                let buffer = Arc::new(Buffer { device: device.clone(), raw, memory, len_bytes, memory_type });
                let mapping = buffer.kind().host_visible.then(|| Mapping::of(&buffer)).transpose()?;
                Ok(Allocation { buffer, mapping })
            }
            Err(failure) => {
                // SAFETY: made above, bound to nothing, known to nobody.
                unsafe { device.raw.destroy_buffer(raw, None) };
                Err(failure)
            }
        }
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// All of it.
    pub fn whole(self: &Arc<Buffer>) -> BufferRange {
        self.range(0, self.len_bytes)
    }

    pub fn range(self: &Arc<Buffer>, offset_bytes: u64, len_bytes: u64) -> BufferRange {
        let end = offset_bytes.checked_add(len_bytes);
        assert!(
            end.is_some_and(|end| end <= self.len_bytes),
            "range {offset_bytes} + {len_bytes} ends behind a buffer of {} bytes",
            self.len_bytes
        );
        BufferRange { buffer: self.clone(), offset_bytes, len_bytes }
    }

    pub fn is_device_local(&self) -> bool {
        self.kind().device_local
    }

    fn kind(&self) -> crate::device_plan::MemoryType {
        self.device.facts().memory_types[self.memory_type]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.device.is_stuck() {
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
    /// Called once for a buffer, by `create`: two mappings would be two owners of the same bytes.
    fn of(buffer: &Arc<Buffer>) -> Result<Mapping, Failure> {
        // SAFETY: the memory is host-visible and not mapped yet.
        let start =
            unsafe { buffer.device.raw.map_memory(buffer.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
                .named("vkMapMemory")?;
        let start = NonNull::new(start.cast()).expect("a successful map is not null");
        Ok(Mapping { buffer: buffer.clone(), start })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the map covers the buffer's length and lives as long as `buffer`; nobody else maps it, and the device
        // does not write it meanwhile (rule 1).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.buffer.len_bytes as usize) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.buffer.len_bytes as usize) }
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
        assert!(offset + len <= self.buffer.len_bytes as usize, "part of a mapping");
        // SAFETY: inside the map, as asserted; the device does not write these bytes meanwhile (rule 1).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }

    fn part_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.buffer.len_bytes as usize, "part of a mapping");
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

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, unmapped once; the memory is alive through `buffer`.
        unsafe { self.buffer.device.raw.unmap_memory(self.buffer.memory) };
    }
}

// SAFETY: the pointer is to memory that any thread may use, and `Mapping` is its only owner.
unsafe impl Send for Mapping {}

/// Allocates for `buffer` and binds, trying memory types in the order of their rank.
fn allocate(device: &Device, buffer: vk::Buffer, role: Role) -> Result<(vk::DeviceMemory, usize), Failure> {
    // SAFETY: the buffer belongs to the device.
    let needs = unsafe { device.raw.get_buffer_memory_requirements(buffer) };
    let mut failure = Failure { call: "vkAllocateMemory", code: vk::Result::ERROR_OUT_OF_DEVICE_MEMORY };
    for memory_type in rank_memory_types(device.facts(), role) {
        if needs.memory_type_bits & (1 << memory_type) == 0 {
            continue;
        }
        let mut only = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer);
        let request = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(memory_type as u32)
            .push_next(&mut only);
        // SAFETY: size and type are what the buffer's requirements allow.
        let memory = match unsafe { device.raw.allocate_memory(&request, None) }.named("vkAllocateMemory") {
            Ok(memory) => memory,
            Err(error) if error.is_out_of_memory() => {
                failure = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        // SAFETY: fresh memory of the required size, bound once, at offset 0.
        if let Err(error) = unsafe { device.raw.bind_buffer_memory(buffer, memory, 0) }.named("vkBindBufferMemory") {
            // SAFETY: nothing is bound to it.
            unsafe { device.raw.free_memory(memory, None) };
            return Err(error);
        }
        return Ok((memory, memory_type));
    }
    Err(failure)
}
