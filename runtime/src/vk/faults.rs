//! Fault injection (feature `fault-injection`, for tests): a layer between the runtime and ash that fails one Vulkan call.
//!
//! ash calls through tables of function pointers. Each function that can fail is replaced in its table by one of the same type,
//! which counts calls and then either fails or calls the original. The state is one for the whole process, so that tests that use
//! it run one at a time.

use std::sync::{Condvar, Mutex, MutexGuard, RwLock};

use ash::vk;

use crate::vk::{Failure, Named};

/// Which call fails, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Index of the call after [`inject`]; 0 is the first.
    pub call: u64,
    /// How it fails.
    pub kind: FaultKind,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The device is lost: all its calls fail until another is created.
    DeviceLost,
    /// The same, and the next device is lost as many calls after its creation.
    DeviceLostTwice,
    /// The device is lost, and no device can be created until [`inject`] is called again.
    DeviceRemoved,
    /// This call fails for lack of device memory; later ones succeed.
    OutOfDeviceMemory,
    /// This call fails for lack of host memory; later ones succeed.
    OutOfHostMemory,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    calls: u64,
    failed: Option<&'static str>,
    lost: bool,
    removed: bool,
    /// Number of calls when the device was created.
    created: u64,
}

static STATE: Mutex<State> =
    Mutex::new(State { fault: None, calls: 0, failed: None, lost: false, removed: false, created: 0 });

struct Reads {
    limit: Option<u64>,
    begun: u64,
}

static READS: Mutex<Reads> = Mutex::new(Reads { limit: None, begun: 0 });
static READ: Condvar = Condvar::new();

/// Resets the count and sets the fault; `None`: calls are only counted.
pub fn inject(fault: Option<Fault>) {
    *state() = State { fault, ..State::default() };
}

/// Number of calls since [`inject`], and the name of the one that was failed.
pub fn injected() -> (u64, Option<&'static str>) {
    let state = state();
    (state.calls, state.failed)
}

/// The instance with its functions replaced.
pub fn of_instance(raw: ash::Instance) -> ash::Instance {
    let mut table = raw.fp_v1_0().clone();
    instance_calls::replace(&mut table);
    ash::Instance::from_parts_1_3(raw.handle(), table, raw.fp_v1_1().clone(), raw.fp_v1_3().clone())
}

/// The device with its functions replaced.
pub fn of_device(raw: ash::Device) -> ash::Device {
    // A new device works.
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

/// Counts a call of a function that is not replaced.
pub fn before(call: &'static str) -> Result<(), Failure> {
    fail_or_count(call, false).map_or(Ok(()), Err).named(call)
}

/// Allows this many reads of weights, in the order in which they begin; later ones block until the limit changes. `None`: no
/// limit.
pub fn limit_reads(limit: Option<u64>) {
    *reads() = Reads { limit, begun: 0 };
    READ.notify_all();
}

/// Called before a part of the weights is read; blocks at the limit.
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

/// Counts a call; returns the error code if it must fail.
fn fail_or_count(call: &'static str, of_device: bool) -> Option<vk::Result> {
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
    state.failed = Some(call);
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

/// Replacements for a table's functions: for each its field, Vulkan name, type and parameters.
macro_rules! layer {
    (
        $module:ident, $table:ty, $of_device:literal;
        $($field:ident $call:literal $kind:ident ($($name:ident: $type:ty),*);)*
    ) => {
        mod $module {
            use super::*;

            pub fn replace(table: &mut $table) {
                $(
                    // All tables of a loaded driver have the same functions; a reloaded driver may have others.
                    *$field::REAL.write().unwrap() = Some(table.$field);
                    table.$field = $field::call;
                )*
            }

            $(
                mod $field {
                    use super::*;

                    pub static REAL: RwLock<Option<vk::$kind>> = RwLock::new(None);

                    /// # Safety
                    /// That of the original.
                    pub unsafe extern "system" fn call($($name: $type),*) -> vk::Result {
                        if let Some(code) = fail_or_count($call, $of_device) {
                            return code;
                        }
                        let real = REAL.read().unwrap().expect("set before it is replaced");
                        // SAFETY: the caller meets the original's requirements.
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
    /// Calls outside of recovery: those of the validation layer and of pipeline statistics.
    const ELSEWHERE: [&str; 5] = [
        "vkCreateDebugUtilsMessengerEXT",
        "vkEnumerateInstanceLayerProperties",
        "vkGetPipelineExecutablePropertiesKHR",
        "vkGetPipelineExecutableStatisticsKHR",
        "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR",
    ];

    #[test]
    fn every_call_that_is_named_can_be_failed() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vk");
        let files =
            std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
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
