//! Optional device features: the same chain of structs asks what is there and turns on what is wanted.

use ash::{khr, vk};

use crate::device::facts::DeviceFeatures;

/// Features that SPIR-V kernels may need. Structs of extensions stay out of the chain where the device lacks them.
#[derive(Default)]
pub struct FeatureChain {
    core: vk::PhysicalDeviceFeatures,
    vulkan11: vk::PhysicalDeviceVulkan11Features<'static>,
    vulkan12: vk::PhysicalDeviceVulkan12Features<'static>,
    subgroup_size: Option<vk::PhysicalDeviceSubgroupSizeControlFeatures<'static>>,
    integer_dot_product: Option<vk::PhysicalDeviceShaderIntegerDotProductFeatures<'static>>,
    cooperative_matrix: Option<vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>>,
    pipeline_statistics: Option<vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR<'static>>,
}

/// What of the optional extensions a device has, by itself or as part of its core version.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions {
    pub core_1_3: bool,
    pub subgroup_size_control: bool,
    pub integer_dot_product: bool,
    pub cooperative_matrix: bool,
    pub memory_budget: bool,
    pub host_import: bool,
    pub pipeline_statistics: bool,
}

impl FeatureChain {
    /// An empty chain to ask with.
    pub fn query(extensions: Extensions) -> FeatureChain {
        FeatureChain {
            subgroup_size: (extensions.core_1_3 || extensions.subgroup_size_control).then(Default::default),
            integer_dot_product: (extensions.core_1_3 || extensions.integer_dot_product).then(Default::default),
            cooperative_matrix: extensions.cooperative_matrix.then(Default::default),
            pipeline_statistics: extensions.pipeline_statistics.then(Default::default),
            ..FeatureChain::default()
        }
    }

    /// The chain that turns on everything in `wanted`.
    pub fn enable(wanted: &DeviceFeatures, robust_buffer_access: bool) -> FeatureChain {
        let subgroup_size = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(wanted.subgroup_size_control)
            .compute_full_subgroups(wanted.full_subgroups);
        FeatureChain {
            core: vk::PhysicalDeviceFeatures::default()
                .robust_buffer_access(robust_buffer_access && wanted.robust_buffer_access)
                .shader_int16(wanted.int16)
                .shader_int64(wanted.int64),
            vulkan11: vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(wanted.storage_16bit),
            vulkan12: vk::PhysicalDeviceVulkan12Features::default()
                .shader_float16(wanted.float16)
                .shader_int8(wanted.int8)
                .shader_buffer_int64_atomics(wanted.int64_atomics)
                .storage_buffer8_bit_access(wanted.storage_8bit)
                .vulkan_memory_model(wanted.memory_model)
                .vulkan_memory_model_device_scope(wanted.memory_model_device_scope)
                .vulkan_memory_model_availability_visibility_chains(wanted.memory_model_chains)
                .shader_subgroup_extended_types(wanted.subgroup_extended_types)
                .timeline_semaphore(wanted.timeline_semaphore),
            subgroup_size: wanted.subgroup_size_control.then_some(subgroup_size),
            integer_dot_product: wanted
                .integer_dot_product
                .then(|| vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true)),
            cooperative_matrix: (!wanted.cooperative_matrix.is_empty())
                .then(|| vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true)),
            pipeline_statistics: wanted.pipeline_statistics.then(|| {
                vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true)
            }),
        }
    }

    /// Linked up, for a query or a request.
    pub fn chain(&mut self) -> vk::PhysicalDeviceFeatures2<'_> {
        let mut chain = vk::PhysicalDeviceFeatures2::default()
            .features(self.core)
            .push_next(&mut self.vulkan11)
            .push_next(&mut self.vulkan12);
        if let Some(features) = &mut self.subgroup_size {
            chain = chain.push_next(features);
        }
        if let Some(features) = &mut self.integer_dot_product {
            chain = chain.push_next(features);
        }
        if let Some(features) = &mut self.cooperative_matrix {
            chain = chain.push_next(features);
        }
        if let Some(features) = &mut self.pipeline_statistics {
            chain = chain.push_next(features);
        }
        chain
    }

    /// The answer to a query. `core` is the head of the chain after it; shapes of cooperative matrices are asked for
    /// elsewhere.
    pub fn answer(&self, core: vk::PhysicalDeviceFeatures, extensions: Extensions) -> DeviceFeatures {
        let is = |flag: vk::Bool32| flag == vk::TRUE;
        DeviceFeatures {
            float16: is(self.vulkan12.shader_float16),
            int8: is(self.vulkan12.shader_int8),
            int16: is(core.shader_int16),
            int64: is(core.shader_int64),
            int64_atomics: is(self.vulkan12.shader_buffer_int64_atomics),
            storage_8bit: is(self.vulkan12.storage_buffer8_bit_access),
            storage_16bit: is(self.vulkan11.storage_buffer16_bit_access),
            integer_dot_product: self.integer_dot_product.is_some_and(|it| is(it.shader_integer_dot_product)),
            memory_model: is(self.vulkan12.vulkan_memory_model),
            memory_model_device_scope: is(self.vulkan12.vulkan_memory_model_device_scope),
            memory_model_chains: is(self.vulkan12.vulkan_memory_model_availability_visibility_chains),
            subgroup_extended_types: is(self.vulkan12.shader_subgroup_extended_types),
            subgroup_size_control: self.subgroup_size.is_some_and(|it| is(it.subgroup_size_control)),
            full_subgroups: self.subgroup_size.is_some_and(|it| is(it.compute_full_subgroups)),
            timeline_semaphore: is(self.vulkan12.timeline_semaphore),
            robust_buffer_access: is(core.robust_buffer_access),
            memory_budget: extensions.memory_budget,
            host_import: extensions.host_import,
            pipeline_statistics: self.pipeline_statistics.is_some_and(|it| is(it.pipeline_executable_info)),
            cooperative_matrix: Vec::new(),
        }
    }

    /// Whether a query found cooperative matrices.
    pub fn has_cooperative_matrix(&self) -> bool {
        self.cooperative_matrix.is_some_and(|it| it.cooperative_matrix == vk::TRUE)
    }
}

/// Extensions that must be named at device creation for the features in `wanted`.
pub fn extension_names(wanted: &DeviceFeatures, core_1_3: bool) -> Vec<*const std::ffi::c_char> {
    let mut names = Vec::new();
    if wanted.subgroup_size_control && !core_1_3 {
        names.push(ash::ext::subgroup_size_control::NAME.as_ptr());
    }
    if wanted.integer_dot_product && !core_1_3 {
        names.push(khr::shader_integer_dot_product::NAME.as_ptr());
    }
    if !wanted.cooperative_matrix.is_empty() {
        names.push(khr::cooperative_matrix::NAME.as_ptr());
    }
    if wanted.host_import {
        names.push(ash::ext::external_memory_host::NAME.as_ptr());
    }
    if wanted.pipeline_statistics {
        names.push(khr::pipeline_executable_properties::NAME.as_ptr());
    }
    names
}
