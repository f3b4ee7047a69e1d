//! Faults on purpose (feature `fault-injection`, for tests): a layer between us and ash that fails one Vulkan call.
//!
//! Calls go through tables of function pointers. Here each function that can fail is replaced in its table by one of the
//! same type, which counts, and then either fails or calls the real one. Nothing above this file knows. Tests that use it
//! run one at a time: there is one count for the whole process.

use std::sync::{Condvar, Mutex, MutexGuard, RwLock};

use ash::vk;

use crate::vk::{Failure, Named};

/// The call that fails, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// 0: the first call after [`inject`].
    pub call: u64,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The device is lost: all its calls fail until another is created.
    DeviceLost,
    /// The same, and the next device as many calls after it was created.
    DeviceLostTwice,
    /// The device is lost and no longer there, until [`inject`] is called again.
    DeviceRemoved,
    /// This call finds no device memory; the next may.
    OutOfDeviceMemory,
    /// This call finds no host memory; the next may.
    OutOfHostMemory,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    calls: u64,
    struck: Option<&'static str>,
    lost: bool,
    removed: bool,
    /// Calls when the device was created.
    created: u64,
}

static STATE: Mutex<State> =
    Mutex::new(State { fault: None, calls: 0, struck: None, lost: false, removed: false, created: 0 });

struct Reads {
    limit: Option<u64>,
    begun: u64,
}

static READS: Mutex<Reads> = Mutex::new(Reads { limit: None, begun: 0 });
static READ: Condvar = Condvar::new();

/// Starts the count anew; `None`: only counts.
pub fn inject(fault: Option<Fault>) {
    *state() = State { fault, ..State::default() };
}

/// Calls since [`inject`], and the one that was failed.
pub fn injected() -> (u64, Option<&'static str>) {
    let state = state();
    (state.calls, state.struck)
}

/// Puts the layer between `raw` and us.
pub fn of_instance(raw: ash::Instance) -> ash::Instance {
    let mut table = raw.fp_v1_0().clone();
    instance_calls::replace(&mut table);
    ash::Instance::from_parts_1_3(raw.handle(), table, raw.fp_v1_1().clone(), raw.fp_v1_3().clone())
}

/// Puts the layer between `raw` and us.
pub fn of_device(raw: ash::Device) -> ash::Device {
    // A new device is a sound one.
    let mut state = state();
    let was_lost = std::mem::take(&mut state.lost);
    let (before, now) = (state.created, state.calls);
    state.created = now;
    let again = state.fault.filter(|fault| was_lost && fault.kind == FaultKind::DeviceLostTwice);
    if let Some(Fault { call, .. }) = again {
        state.fault = Some(Fault { call: now + call - before, kind: FaultKind::DeviceLost });
    }
    drop(state);
    let mut table = raw.fp_v1_0().clone();
    device_calls::replace(&mut table);
    let (vulkan11, vulkan12, vulkan13) = (raw.fp_v1_1().clone(), raw.fp_v1_2().clone(), raw.fp_v1_3().clone());
    ash::Device::from_parts_1_3(raw.handle(), table, vulkan11, vulkan12, vulkan13)
}

/// For calls that are in no table of ours.
pub fn before(call: &'static str) -> Result<(), Failure> {
    strike(call, false).map_or(Ok(()), Err).named(call)
}

/// Lets so many reads of weights happen, in the order in which they are begun; those behind wait until there is another
/// limit. `None`: no limit.
pub fn limit_reads(limit: Option<u64>) {
    *reads() = Reads { limit, begun: 0 };
    READ.notify_all();
}

/// Called before a piece of the weights is read.
pub fn before_reading() {
    let mut reads = reads();
    while reads.limit.is_some_and(|limit| reads.begun >= limit) {
        reads = READ.wait(reads).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
    reads.begun += 1;
}

fn reads() -> MutexGuard<'static, Reads> {
    READS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Counts a call; the code that it fails with, if it is to fail.
fn strike(call: &'static str, of_device: bool) -> Option<vk::Result> {
    let mut state = state();
    let now = state.calls;
    state.calls += 1;
    if of_device && state.lost {
        return Some(vk::Result::ERROR_DEVICE_LOST);
    }
    if state.removed {
        return Some(vk::Result::ERROR_INITIALIZATION_FAILED);
    }
    let fault = state.fault.filter(|fault| fault.call == now)?;
    state.struck = Some(call);
    Some(match fault.kind {
        FaultKind::DeviceLost | FaultKind::DeviceLostTwice | FaultKind::DeviceRemoved => {
            state.lost = true;
            state.removed = fault.kind == FaultKind::DeviceRemoved;
            vk::Result::ERROR_DEVICE_LOST
        }
        FaultKind::OutOfDeviceMemory => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        FaultKind::OutOfHostMemory => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
    })
}

/// A table's functions: for each its field, its name in Vulkan, its type and its parameters.
macro_rules! layer {
    (
        $room:ident, $table:ty, $of_device:literal;
        $($field:ident $call:literal $kind:ident ($($name:ident: $type:ty),*);)*
    ) => {
        mod $room {
            use super::*;

            pub fn replace(table: &mut $table) {
                $(
                    // All live tables of one driver have the same; one that was unloaded may come back elsewhere.
                    *$field::REAL.write().unwrap() = Some(table.$field);
                    table.$field = $field::call;
                )*
            }

            $(
                mod $field {
                    use super::*;

                    pub static REAL: RwLock<Option<vk::$kind>> = RwLock::new(None);

                    /// # Safety
                    /// That of the real one.
                    pub unsafe extern "system" fn call($($name: $type),*) -> vk::Result {
                        if let Some(code) = strike($call, $of_device) {
                            return code;
                        }
                        let real = REAL.read().unwrap().expect("replaced after it was known");
                        // SAFETY: the caller owes what the real one asks for.
                        unsafe { real($($name),*) }
                    }
                }
            )*
        }
    };
}

type Callbacks<'a> = *const vk::AllocationCallbacks<'a>;

layer! {
    instance_calls, ash::InstanceFnV1_0, false;
    enumerate_physical_devices "vkEnumeratePhysicalDevices" PFN_vkEnumeratePhysicalDevices
        (instance: vk::Instance, count: *mut u32, devices: *mut vk::PhysicalDevice);
    enumerate_device_extension_properties "vkEnumerateDeviceExtensionProperties" PFN_vkEnumerateDeviceExtensionProperties
        (device: vk::PhysicalDevice, layer: *const std::ffi::c_char, count: *mut u32, list: *mut vk::ExtensionProperties);
    create_device "vkCreateDevice" PFN_vkCreateDevice
        (physical: vk::PhysicalDevice, request: *const vk::DeviceCreateInfo<'_>, callbacks: Callbacks<'_>,
         device: *mut vk::Device);
}

layer! {
    device_calls, ash::DeviceFnV1_0, true;
    create_buffer "vkCreateBuffer" PFN_vkCreateBuffer
        (device: vk::Device, request: *const vk::BufferCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::Buffer);
    allocate_memory "vkAllocateMemory" PFN_vkAllocateMemory
        (device: vk::Device, request: *const vk::MemoryAllocateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::DeviceMemory);
    bind_buffer_memory "vkBindBufferMemory" PFN_vkBindBufferMemory
        (device: vk::Device, buffer: vk::Buffer, memory: vk::DeviceMemory, offset: vk::DeviceSize);
    map_memory "vkMapMemory" PFN_vkMapMemory
        (device: vk::Device, memory: vk::DeviceMemory, offset: vk::DeviceSize, size: vk::DeviceSize,
         flags: vk::MemoryMapFlags, data: *mut *mut std::ffi::c_void);
    flush_mapped_memory_ranges "vkFlushMappedMemoryRanges" PFN_vkFlushMappedMemoryRanges
        (device: vk::Device, count: u32, ranges: *const vk::MappedMemoryRange<'_>);
    invalidate_mapped_memory_ranges "vkInvalidateMappedMemoryRanges" PFN_vkInvalidateMappedMemoryRanges
        (device: vk::Device, count: u32, ranges: *const vk::MappedMemoryRange<'_>);
    create_fence "vkCreateFence" PFN_vkCreateFence
        (device: vk::Device, request: *const vk::FenceCreateInfo<'_>, callbacks: Callbacks<'_>, made: *mut vk::Fence);
    queue_submit "vkQueueSubmit" PFN_vkQueueSubmit
        (queue: vk::Queue, count: u32, submits: *const vk::SubmitInfo<'_>, fence: vk::Fence);
    wait_for_fences "vkWaitForFences" PFN_vkWaitForFences
        (device: vk::Device, count: u32, fences: *const vk::Fence, all: vk::Bool32, timeout: u64);
    reset_fences "vkResetFences" PFN_vkResetFences
        (device: vk::Device, count: u32, fences: *const vk::Fence);
    create_command_pool "vkCreateCommandPool" PFN_vkCreateCommandPool
        (device: vk::Device, request: *const vk::CommandPoolCreateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::CommandPool);
    allocate_command_buffers "vkAllocateCommandBuffers" PFN_vkAllocateCommandBuffers
        (device: vk::Device, request: *const vk::CommandBufferAllocateInfo<'_>, made: *mut vk::CommandBuffer);
    begin_command_buffer "vkBeginCommandBuffer" PFN_vkBeginCommandBuffer
        (list: vk::CommandBuffer, request: *const vk::CommandBufferBeginInfo<'_>);
    end_command_buffer "vkEndCommandBuffer" PFN_vkEndCommandBuffer
        (list: vk::CommandBuffer);
    create_descriptor_set_layout "vkCreateDescriptorSetLayout" PFN_vkCreateDescriptorSetLayout
        (device: vk::Device, request: *const vk::DescriptorSetLayoutCreateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::DescriptorSetLayout);
    create_pipeline_layout "vkCreatePipelineLayout" PFN_vkCreatePipelineLayout
        (device: vk::Device, request: *const vk::PipelineLayoutCreateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::PipelineLayout);
    create_shader_module "vkCreateShaderModule" PFN_vkCreateShaderModule
        (device: vk::Device, request: *const vk::ShaderModuleCreateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::ShaderModule);
    create_compute_pipelines "vkCreateComputePipelines" PFN_vkCreateComputePipelines
        (device: vk::Device, cache: vk::PipelineCache, count: u32, requests: *const vk::ComputePipelineCreateInfo<'_>,
         callbacks: Callbacks<'_>, made: *mut vk::Pipeline);
    create_descriptor_pool "vkCreateDescriptorPool" PFN_vkCreateDescriptorPool
        (device: vk::Device, request: *const vk::DescriptorPoolCreateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::DescriptorPool);
    allocate_descriptor_sets "vkAllocateDescriptorSets" PFN_vkAllocateDescriptorSets
        (device: vk::Device, request: *const vk::DescriptorSetAllocateInfo<'_>, made: *mut vk::DescriptorSet);
    create_query_pool "vkCreateQueryPool" PFN_vkCreateQueryPool
        (device: vk::Device, request: *const vk::QueryPoolCreateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::QueryPool);
    get_query_pool_results "vkGetQueryPoolResults" PFN_vkGetQueryPoolResults
        (device: vk::Device, pool: vk::QueryPool, first: u32, count: u32, size: usize, data: *mut std::ffi::c_void,
         stride: vk::DeviceSize, flags: vk::QueryResultFlags);
    create_pipeline_cache "vkCreatePipelineCache" PFN_vkCreatePipelineCache
        (device: vk::Device, request: *const vk::PipelineCacheCreateInfo<'_>, callbacks: Callbacks<'_>,
         made: *mut vk::PipelineCache);
    get_pipeline_cache_data "vkGetPipelineCacheData" PFN_vkGetPipelineCacheData
        (device: vk::Device, cache: vk::PipelineCache, size: *mut usize, data: *mut std::ffi::c_void);
}

#[cfg(test)]
mod tests {
    /// Calls that no test of recovery makes: those of the validation layer, and of looking at kernels.
    const ELSEWHERE: [&str; 5] = [
        "vkCreateDebugUtilsMessengerEXT",
        "vkEnumerateInstanceLayerProperties",
        "vkGetPipelineExecutablePropertiesKHR",
        "vkGetPipelineExecutableStatisticsKHR",
        "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR",
    ];

    #[test]
    fn every_call_that_is_named_can_be_failed() {
        let room = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vk");
        let files = std::fs::read_dir(room).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let sources: Vec<String> = files.collect();
        let here = include_str!("faults.rs");
        for source in &sources {
            for part in source.split(".named(\"").skip(1) {
                let call = part.split('"').next().unwrap();
                let known = ELSEWHERE.contains(&call)
                    || here.contains(&format!(" \"{call}\" PFN_"))
                    || sources.iter().any(|other| other.contains(&format!("faults::before(\"{call}\")")));
                assert!(known, "{call} is not in the layer of faults.rs");
            }
        }
    }
}
