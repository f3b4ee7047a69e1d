//! Reads [`DeviceFacts`] from the driver.

use ash::{ext, khr, nv, vk};

use crate::device::facts::{DeviceFacts, DeviceFeatures, DeviceKind, Heap, MemoryType};
use crate::error::LoadError;
use crate::vk::features::{Extensions, FeatureChain};
use crate::vk::instance::Instance;
use crate::vk::{Failure, Named, faults};

impl Instance {
    /// Facts of every device, in the loader's order.
    ///
    /// # Errors
    /// When a Vulkan call fails.
    pub fn devices(&self) -> Result<Vec<DeviceFacts>, LoadError> {
        let devices = self.physical_devices()?;
        let facts = devices.into_iter().enumerate().map(|(index, device)| read(self, index, device));
        Ok(facts.collect::<Result<_, Failure>>()?)
    }
}

/// Facts of one device. Devices older than Vulkan 1.2 have no features and no subgroup sizes.
///
/// # Errors
/// When the driver does not list its extensions: without them, other kernels would be chosen.
fn read(instance: &Instance, index: usize, device: vk::PhysicalDevice) -> Result<DeviceFacts, Failure> {
    // SAFETY: the device belongs to the instance.
    let core = unsafe { instance.raw.get_physical_device_properties(device) };
    let version = core.api_version;
    let extensions = extensions(instance, device, version)?;
    let (heaps, memory_types) = memory(instance, device, extensions.memory_budget);
    let mut facts = DeviceFacts {
        index,
        uuid: [0; 16],
        name: text(core.device_name_as_c_str()),
        driver: String::new(),
        vendor_id: core.vendor_id,
        device_id: core.device_id,
        kind: match core.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
            vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        },
        api_version: (vk::api_version_major(version), vk::api_version_minor(version), vk::api_version_patch(version)),
        subgroup_size: 0,
        min_subgroup_size: 0,
        max_subgroup_size: 0,
        subgroup_arithmetic: false,
        shared_memory_bytes: core.limits.max_compute_shared_memory_size,
        workgroup_invocations: core.limits.max_compute_work_group_invocations,
        warps_per_multiprocessor: None,
        multiprocessors: None,
        storage_range_bytes: u64::from(core.limits.max_storage_buffer_range),
        max_allocation_bytes: 0,
        heaps,
        memory_types,
        features: DeviceFeatures::default(),
    };
    if version >= vk::API_VERSION_1_2 {
        facts.features = features(instance, device, extensions)?;
        add_properties(instance, device, extensions, &mut facts);
    }
    Ok(facts)
}

/// The device that `facts` describe. The loader's list may have changed since they were read.
///
/// # Errors
/// When the device is gone, which counts as lost, or the list cannot be read.
pub fn physical_device(instance: &Instance, facts: &DeviceFacts) -> Result<vk::PhysicalDevice, Failure> {
    let devices = instance.physical_devices()?;
    let uuid = |device: &vk::PhysicalDevice| {
        let mut vulkan11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut chain = vk::PhysicalDeviceProperties2::default();
        // SAFETY: the device belongs to the instance.
        let version = unsafe { instance.raw.get_physical_device_properties(*device) }.api_version;
        if version >= vk::API_VERSION_1_2 {
            chain = chain.push_next(&mut vulkan11);
            // SAFETY: the device has Vulkan 1.2 and the struct in the chain.
            unsafe { instance.raw.get_physical_device_properties2(*device, &mut chain) };
        }
        vulkan11.device_uuid
    };
    let uuids: Vec<[u8; 16]> = devices.iter().map(uuid).collect();
    let position = position_of(&uuids, facts).ok_or_else(Failure::device_gone)?;
    Ok(devices[position])
}

/// Where a device is in a list of UUIDs: at its old place if it is still there. Some drivers give the same UUID to several devices.
fn position_of(uuids: &[[u8; 16]], facts: &DeviceFacts) -> Option<usize> {
    let is_it = |uuid: &[u8; 16]| *uuid == facts.uuid;
    if uuids.get(facts.index).is_some_and(is_it) { Some(facts.index) } else { uuids.iter().position(is_it) }
}

/// The current heaps of a device whose facts were read before.
pub fn heaps(instance: &Instance, facts: &DeviceFacts) -> Result<Vec<Heap>, LoadError> {
    let device = physical_device(instance, facts)?;
    Ok(memory(instance, device, facts.features.memory_budget).0)
}

fn add_properties(instance: &Instance, device: vk::PhysicalDevice, extensions: Extensions, facts: &mut DeviceFacts) {
    let mut vulkan11 = vk::PhysicalDeviceVulkan11Properties::default();
    let mut vulkan12 = vk::PhysicalDeviceVulkan12Properties::default();
    let mut subgroup_size = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let has_subgroup_size = extensions.core_1_3 || extensions.subgroup_size_control;
    let mut dot_product = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    let mut multiprocessors = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut chain = vk::PhysicalDeviceProperties2::default().push_next(&mut vulkan11).push_next(&mut vulkan12);
    if has_subgroup_size {
        chain = chain.push_next(&mut subgroup_size);
    }
    if extensions.core_1_3 || extensions.integer_dot_product {
        chain = chain.push_next(&mut dot_product);
    }
    if extensions.shader_sm_builtins {
        chain = chain.push_next(&mut multiprocessors);
    }
    // SAFETY: the device has Vulkan 1.2 and every struct in the chain.
    unsafe { instance.raw.get_physical_device_properties2(device, &mut chain) };
    facts.driver = format!("{} {}", text(vulkan12.driver_name_as_c_str()), text(vulkan12.driver_info_as_c_str()));
    facts.uuid = vulkan11.device_uuid;
    facts.features.integer_dot_product_accelerated = facts.features.integer_dot_product
        && dot_product.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE;
    facts.features.mixed_dot_product_accelerated = facts.features.integer_dot_product
        && dot_product.integer_dot_product4x8_bit_packed_mixed_signedness_accelerated == vk::TRUE;
    facts.warps_per_multiprocessor = extensions.shader_sm_builtins.then_some(multiprocessors.shader_warps_per_sm);
    facts.multiprocessors = extensions.shader_sm_builtins.then_some(multiprocessors.shader_sm_count);
    facts.subgroup_size = vulkan11.subgroup_size;
    facts.subgroup_arithmetic = vulkan11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
        && vulkan11
            .subgroup_supported_operations
            .contains(vk::SubgroupFeatureFlags::ARITHMETIC | vk::SubgroupFeatureFlags::SHUFFLE);
    facts.max_allocation_bytes = vulkan11.max_memory_allocation_size;
    let may_require = subgroup_size.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let range = (subgroup_size.min_subgroup_size, subgroup_size.max_subgroup_size);
    (facts.min_subgroup_size, facts.max_subgroup_size) =
        if may_require { range } else { (vulkan11.subgroup_size, vulkan11.subgroup_size) };
}

fn features(
    instance: &Instance,
    device: vk::PhysicalDevice,
    extensions: Extensions,
) -> Result<DeviceFeatures, Failure> {
    let mut query = FeatureChain::query(extensions);
    let mut chain = query.chain();
    // SAFETY: the device has Vulkan 1.2 and every struct in the chain.
    unsafe { instance.raw.get_physical_device_features2(device, &mut chain) };
    let core = chain.features;
    let mut features = query.result(core, extensions);
    if query.has_cooperative_matrix() {
        features.cooperative_matrix = cooperative_matrices(instance, device)?;
    }
    Ok(features)
}

// Newer than ash's headers: VK_KHR_shader_bfloat16 and VK_EXT_shader_float8.
const BFLOAT16: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);
const FLOAT8_E4M3: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_491_002);
const FLOAT8_E5M2: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_491_003);

/// Cooperative matrix shapes of subgroup scope.
fn cooperative_matrices(instance: &Instance, device: vk::PhysicalDevice) -> Result<Vec<String>, Failure> {
    faults::before("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")?;
    let functions = khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device has the extension.
    let shapes = unsafe { functions.get_physical_device_cooperative_matrix_properties(device) }
        .named("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")?;
    let name = |component| match component {
        vk::ComponentTypeKHR::FLOAT16 => "f16",
        vk::ComponentTypeKHR::FLOAT32 => "f32",
        vk::ComponentTypeKHR::FLOAT64 => "f64",
        vk::ComponentTypeKHR::SINT8 => "i8",
        vk::ComponentTypeKHR::UINT8 => "u8",
        vk::ComponentTypeKHR::SINT32 => "i32",
        vk::ComponentTypeKHR::UINT32 => "u32",
        BFLOAT16 => "bf16",
        FLOAT8_E4M3 => "f8e4m3",
        FLOAT8_E5M2 => "f8e5m2",
        _ => "other",
    };
    Ok(shapes
        .iter()
        .filter(|shape| shape.scope == vk::ScopeKHR::SUBGROUP)
        .map(|shape| {
            let (m, n, k) = (shape.m_size, shape.n_size, shape.k_size);
            format!("{m}x{n}x{k} {} -> {}", name(shape.a_type), name(shape.result_type))
        })
        .collect())
}

fn extensions(instance: &Instance, device: vk::PhysicalDevice, version: u32) -> Result<Extensions, Failure> {
    // SAFETY: the device belongs to the instance.
    let list = unsafe { instance.raw.enumerate_device_extension_properties(device) }
        .named("vkEnumerateDeviceExtensionProperties")?;
    let has = |name| list.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
    Ok(Extensions {
        core_1_3: version >= vk::API_VERSION_1_3,
        subgroup_size_control: has(ext::subgroup_size_control::NAME),
        integer_dot_product: has(khr::shader_integer_dot_product::NAME),
        cooperative_matrix: has(khr::cooperative_matrix::NAME),
        memory_budget: has(ext::memory_budget::NAME),
        host_import: has(ext::external_memory_host::NAME),
        dma_buf: has(ext::external_memory_dma_buf::NAME) && has(khr::external_memory_fd::NAME),
        pipeline_statistics: has(khr::pipeline_executable_properties::NAME),
        shader_sm_builtins: has(nv::shader_sm_builtins::NAME),
    })
}

fn memory(instance: &Instance, device: vk::PhysicalDevice, has_budget: bool) -> (Vec<Heap>, Vec<MemoryType>) {
    // SAFETY: the device belongs to the instance.
    let memory = unsafe { instance.raw.get_physical_device_memory_properties(device) };
    // A driver without hardware, such as RADV, has no heaps. It lists the budget extension, and crashes when it is used.
    let has_budget = has_budget && memory.memory_heap_count > 0;
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    if has_budget {
        let mut chain = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the loader has Vulkan 1.1 or later, and the device has the budget's extension.
        unsafe { instance.raw.get_physical_device_memory_properties2(device, &mut chain) };
    }
    let heaps = memory
        .memory_heaps_as_slice()
        .iter()
        .enumerate()
        .map(|(index, heap)| Heap {
            bytes: heap.size,
            budget_bytes: has_budget.then_some(budget.heap_budget[index]),
            used_bytes: budget.heap_usage[index],
            device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
        })
        .collect();
    (heaps, memory.memory_types_as_slice().iter().map(memory_type).collect())
}

/// A type with an unknown property (protected, lazily allocated, a vendor's) gets none at all, so that nothing is allocated
/// from it.
fn memory_type(kind: &vk::MemoryType) -> MemoryType {
    let known = vk::MemoryPropertyFlags::DEVICE_LOCAL
        | vk::MemoryPropertyFlags::HOST_VISIBLE
        | vk::MemoryPropertyFlags::HOST_COHERENT
        | vk::MemoryPropertyFlags::HOST_CACHED;
    let has = |flag| known.contains(kind.property_flags) && kind.property_flags.contains(flag);
    MemoryType {
        heap: kind.heap_index as usize,
        device_local: has(vk::MemoryPropertyFlags::DEVICE_LOCAL),
        host_visible: has(vk::MemoryPropertyFlags::HOST_VISIBLE),
        host_coherent: has(vk::MemoryPropertyFlags::HOST_COHERENT),
        host_cached: has(vk::MemoryPropertyFlags::HOST_CACHED),
    }
}

fn text<E>(name: Result<&std::ffi::CStr, E>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::facts::tests::facts;

    #[test]
    fn a_device_is_found_again_after_the_list_has_changed() {
        let second = DeviceFacts { uuid: [2; 16], ..facts(1, "second", DeviceKind::Discrete) };
        assert_eq!(position_of(&[[1; 16], [2; 16]], &second), Some(1));
        assert_eq!(position_of(&[[2; 16], [1; 16]], &second), Some(0), "another GPU took its place");
        assert_eq!(position_of(&[[2; 16]], &second), Some(0));
        assert_eq!(position_of(&[[2; 16], [2; 16]], &second), Some(1), "of two alike, the one in its place");
        assert_eq!(position_of(&[[1; 16]], &second), None);
    }
}
