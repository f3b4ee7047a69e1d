//! The layer that counts calls and fails one of them. It has every function that the runtime uses and that returns a result, except
//! those of extensions, which [`before`](super::before) precedes.

use std::sync::RwLock;

use ash::vk;

use super::outcome::{Outcome, outcome};

/// Names of all calls that the layer counts.
pub fn layered_calls() -> Vec<&'static str> {
    [instance_calls::CALLS, device_calls::CALLS].concat()
}

/// Fields of ash's tables that the layer replaces, in the order of [`layered_calls`].
pub fn layered_fields() -> Vec<&'static str> {
    [instance_calls::FIELDS, device_calls::FIELDS].concat()
}

pub fn replace_in_instance(table: &mut ash::InstanceFnV1_0) {
    instance_calls::replace(table);
}

pub fn replace_in_device(table: &mut ash::DeviceFnV1_0) {
    device_calls::replace(table);
}

/// Replacements for a table's functions: for each its field, Vulkan name, type and parameters.
macro_rules! layer {
    (
        $module:ident, $table:ty, $of_device:literal;
        $($field:ident $call:literal $kind:ident ($($name:ident: $type:ty),*);)*
    ) => {
        mod $module {
            use super::*;

            /// Vulkan's names of the calls, and those of the table's fields.
            pub const CALLS: &[&str] = &[$($call),*];
            pub const FIELDS: &[&str] = &[$(stringify!($field)),*];

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
                        let code = match outcome($call, $of_device) {
                            Outcome::Fails(code) => return code,
                            Outcome::Works => vk::Result::SUCCESS,
                            Outcome::WorksAndFails(code) => code,
                        };
                        let real = REAL.read().unwrap().expect("set before it is replaced");
                        // SAFETY: the caller meets the original's requirements.
                        let done = unsafe { real($($name),*) };
                        if done == vk::Result::SUCCESS { code } else { done }
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
    device_wait_idle "vkDeviceWaitIdle" PFN_vkDeviceWaitIdle
        (device: vk::Device);
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
