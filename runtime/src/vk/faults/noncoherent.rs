//! Simulates memory that is not coherent, for devices such as llvmpipe whose only memory type is coherent. It lists three types, of
//! which one is coherent, and maps a shadow copy of the others to the host. Bytes pass between memory and shadow only by a flush or
//! an invalidation, so that each one that is missing gives a wrong result.
//!
//! ```text
//! host ──► shadow, full of 0xa5 ──flush──► the driver's memory ──► device
//!          shadow            ◄─invalidate─ the driver's memory
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};

use ash::vk::{self, Handle};

/// Devices that are opened from now on have memory that is not coherent, if all that they have is one coherent type.
pub fn simulate_noncoherent_memory(is_on: bool) {
    IS_ON.store(is_on, Ordering::SeqCst);
}

static IS_ON: AtomicBool = AtomicBool::new(false);

/// The types that are listed, all of them the driver's one. The first is coherent, so that host memory, which is imported as the
/// driver's type 0, is as well.
const TYPES: [vk::MemoryPropertyFlags; 3] = [
    COHERENT,
    vk::MemoryPropertyFlags::from_raw(
        vk::MemoryPropertyFlags::DEVICE_LOCAL.as_raw() | vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw(),
    ),
    vk::MemoryPropertyFlags::from_raw(
        vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw() | vk::MemoryPropertyFlags::HOST_CACHED.as_raw(),
    ),
];
const COHERENT: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw() | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// The largest nonCoherentAtomSize that Vulkan allows: ranges are whole atoms, or end with the memory.
const ATOM_BYTES: u64 = 256;
/// Byte that the host reads without an invalidation.
const UNDEFINED: u8 = 0xa5;

static INSTANCE: RwLock<Option<ash::InstanceFnV1_0>> = RwLock::new(None);
static DEVICE: RwLock<Option<ash::DeviceFnV1_0>> = RwLock::new(None);

struct Doubles {
    /// Devices that were opened while the simulation was on.
    devices: BTreeSet<u64>,
    /// Their memory that is not coherent.
    memories: BTreeMap<u64, Memory>,
}

struct Memory {
    len_bytes: u64,
    mapped: Option<Mapped>,
}

struct Mapped {
    shadow: Vec<Line>,
    /// Address of the driver's mapping; a number, because pointers are not `Send`.
    real: usize,
}

/// Aligned as Vulkan aligns mappings.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read and written through a pointer")] [u8; 64]);

static DOUBLES: Mutex<Doubles> = Mutex::new(Doubles { devices: BTreeSet::new(), memories: BTreeMap::new() });

pub fn replace_in_instance(table: &mut ash::InstanceFnV1_0) {
    *INSTANCE.write().unwrap() = Some(table.clone());
    table.get_physical_device_memory_properties = memory_properties;
    table.create_device = create_device;
}

pub fn replace_in_device(table: &mut ash::DeviceFnV1_0) {
    *DEVICE.write().unwrap() = Some(table.clone());
    table.get_buffer_memory_requirements = buffer_requirements;
    table.allocate_memory = allocate;
    table.free_memory = free;
    table.map_memory = map;
    table.unmap_memory = unmap;
    table.flush_mapped_memory_ranges = flush;
    table.invalidate_mapped_memory_ranges = invalidate;
}

fn doubles() -> MutexGuard<'static, Doubles> {
    DOUBLES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn instance() -> ash::InstanceFnV1_0 {
    INSTANCE.read().unwrap().clone().expect("set before anything is replaced")
}

fn device() -> ash::DeviceFnV1_0 {
    DEVICE.read().unwrap().clone().expect("set before anything is replaced")
}

/// Whether this device's memory is simulated.
///
/// # Safety
/// `physical` is a device of a live instance.
unsafe fn is_doubled(physical: vk::PhysicalDevice) -> bool {
    let mut memory = vk::PhysicalDeviceMemoryProperties::default();
    // SAFETY: the caller's.
    unsafe { (instance().get_physical_device_memory_properties)(physical, &mut memory) };
    let kinds = memory.memory_types_as_slice();
    IS_ON.load(Ordering::SeqCst) && kinds.len() == 1 && kinds[0].property_flags.contains(COHERENT)
}

/// # Safety
/// That of the original, as for all below.
unsafe extern "system" fn memory_properties(
    physical: vk::PhysicalDevice,
    found: *mut vk::PhysicalDeviceMemoryProperties,
) {
    // SAFETY: the caller meets the original's requirements; the original wrote the struct.
    unsafe {
        (instance().get_physical_device_memory_properties)(physical, found);
        if is_doubled(physical) {
            (*found).memory_type_count = TYPES.len() as u32;
            for (kind, flags) in (*found).memory_types.iter_mut().zip(TYPES) {
                *kind = vk::MemoryType { property_flags: flags, heap_index: 0 };
            }
        }
    }
}

unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    request: *const vk::DeviceCreateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    made: *mut vk::Device,
) -> vk::Result {
    // SAFETY: the caller meets the original's requirements; on success, the original wrote the handle.
    unsafe {
        let done = (instance().create_device)(physical, request, callbacks, made);
        if done == vk::Result::SUCCESS {
            let mut doubles = doubles();
            let handle = (*made).as_raw();
            // A new device may have the handle of one that is gone.
            if is_doubled(physical) {
                doubles.devices.insert(handle)
            } else {
                doubles.devices.remove(&handle)
            };
        }
        done
    }
}

unsafe extern "system" fn buffer_requirements(of: vk::Device, buffer: vk::Buffer, found: *mut vk::MemoryRequirements) {
    // SAFETY: the caller meets the original's requirements; the original wrote the struct.
    unsafe {
        (device().get_buffer_memory_requirements)(of, buffer, found);
        if doubles().devices.contains(&of.as_raw()) {
            (*found).memory_type_bits = (1 << TYPES.len()) - 1;
        }
    }
}

unsafe extern "system" fn allocate(
    of: vk::Device,
    request: *const vk::MemoryAllocateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    made: *mut vk::DeviceMemory,
) -> vk::Result {
    let is_doubled = doubles().devices.contains(&of.as_raw());
    // SAFETY: the caller meets the original's requirements; the driver's one type has index 0.
    unsafe {
        let listed = *request;
        let real = vk::MemoryAllocateInfo { memory_type_index: 0, ..listed };
        let request = if is_doubled { &raw const real } else { request };
        let done = (device().allocate_memory)(of, request, callbacks, made);
        if done == vk::Result::SUCCESS && is_doubled && TYPES[listed.memory_type_index as usize] != COHERENT {
            let memory = Memory { len_bytes: listed.allocation_size, mapped: None };
            doubles().memories.insert((*made).as_raw(), memory);
        }
        done
    }
}

unsafe extern "system" fn free(
    of: vk::Device,
    memory: vk::DeviceMemory,
    callbacks: *const vk::AllocationCallbacks<'_>,
) {
    doubles().memories.remove(&memory.as_raw());
    // SAFETY: the caller meets the original's requirements.
    unsafe { (device().free_memory)(of, memory, callbacks) };
}

unsafe extern "system" fn map(
    of: vk::Device,
    memory: vk::DeviceMemory,
    offset: vk::DeviceSize,
    size: vk::DeviceSize,
    flags: vk::MemoryMapFlags,
    data: *mut *mut c_void,
) -> vk::Result {
    // SAFETY: the caller meets the original's requirements; on success, the original wrote the address.
    unsafe {
        let done = (device().map_memory)(of, memory, offset, size, flags, data);
        if done == vk::Result::SUCCESS
            && let Some(Memory { len_bytes, mapped }) = doubles().memories.get_mut(&memory.as_raw())
        {
            assert!(offset == 0 && size == vk::WHOLE_SIZE, "memory is mapped as a whole");
            let shadow = vec![Line([UNDEFINED; 64]); len_bytes.div_ceil(64) as usize];
            let mapped = mapped.insert(Mapped { shadow, real: (*data).expose_provenance() });
            *data = mapped.shadow.as_mut_ptr().cast();
        }
        done
    }
}

unsafe extern "system" fn unmap(of: vk::Device, memory: vk::DeviceMemory) {
    // What was not flushed is lost.
    if let Some(memory) = doubles().memories.get_mut(&memory.as_raw()) {
        memory.mapped = None;
    }
    // SAFETY: the caller meets the original's requirements.
    unsafe { (device().unmap_memory)(of, memory) };
}

unsafe extern "system" fn flush(of: vk::Device, count: u32, ranges: *const vk::MappedMemoryRange<'_>) -> vk::Result {
    // SAFETY: the caller meets the original's requirements.
    unsafe {
        copy(count, ranges, |shadow, real, len| copy_nonoverlapping(shadow, real, len));
        (device().flush_mapped_memory_ranges)(of, count, ranges)
    }
}

unsafe extern "system" fn invalidate(
    of: vk::Device,
    count: u32,
    ranges: *const vk::MappedMemoryRange<'_>,
) -> vk::Result {
    // SAFETY: the caller meets the original's requirements.
    unsafe {
        let done = (device().invalidate_mapped_memory_ranges)(of, count, ranges);
        copy(count, ranges, |shadow, real, len| copy_nonoverlapping(real, shadow, len));
        done
    }
}

/// Calls `copy` with the addresses of each range in the shadow and in the driver's memory, and its length.
///
/// # Safety
/// There are `count` ranges, of mapped memory.
unsafe fn copy(count: u32, ranges: *const vk::MappedMemoryRange<'_>, mut copy: impl FnMut(*mut u8, *mut u8, usize)) {
    let mut doubles = doubles();
    for index in 0..count as usize {
        // SAFETY: the caller's.
        let range = unsafe { *ranges.add(index) };
        let Some(Memory { len_bytes, mapped }) = doubles.memories.get_mut(&range.memory.as_raw()) else {
            panic!("coherent memory needs no flush, and no invalidation");
        };
        let size = if range.size == vk::WHOLE_SIZE { *len_bytes - range.offset } else { range.size };
        let is_whole = |at: u64| at.is_multiple_of(ATOM_BYTES);
        assert!(
            is_whole(range.offset) && (range.size == vk::WHOLE_SIZE || is_whole(size)),
            "{range:?}: parts of atoms"
        );
        assert!(range.offset + size <= *len_bytes, "{range:?} of {len_bytes} bytes");
        let Mapped { shadow, real } = mapped.as_mut().expect("only what is mapped is flushed");
        let real = std::ptr::with_exposed_provenance_mut::<u8>(*real);
        let shadow = shadow.as_mut_ptr().cast::<u8>();
        // SAFETY: the range lies inside both, as asserted.
        unsafe { copy(shadow.add(range.offset as usize), real.add(range.offset as usize), size as usize) };
    }
}
