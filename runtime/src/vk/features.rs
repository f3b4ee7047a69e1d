//! Optional device features: one chain of Vulkan structs, to query what a device has and to enable what is used.

use ash::{khr, vk};

use crate::device::facts::DeviceFeatures;

/// The chain of feature structs. Those of extensions are left out where the device lacks them.
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

/// Which optional extensions a device has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions {
    pub core_1_3: bool,
    pub subgroup_size_control: bool,
    pub integer_dot_product: bool,
    pub cooperative_matrix: bool,
    pub memory_budget: bool,
    pub host_import: bool,
    pub dma_buf: bool,
    pub pipeline_statistics: bool,
    pub shader_sm_builtins: bool,
}

impl FeatureChain {
    /// A chain for a query.
    pub fn query(extensions: Extensions) -> FeatureChain {
        FeatureChain {
            subgroup_size: (extensions.core_1_3 || extensions.subgroup_size_control).then(Default::default),
            integer_dot_product: (extensions.core_1_3 || extensions.integer_dot_product).then(Default::default),
            cooperative_matrix: extensions.cooperative_matrix.then(Default::default),
            pipeline_statistics: extensions.pipeline_statistics.then(Default::default),
            ..FeatureChain::default()
        }
    }

    /// The chain that enables `features`.
    pub fn enable(features: &DeviceFeatures, robust_buffer_access: bool) -> FeatureChain {
        let subgroup_size = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(features.subgroup_size_control)
            .compute_full_subgroups(features.full_subgroups);
        FeatureChain {
            core: vk::PhysicalDeviceFeatures::default()
                .robust_buffer_access(robust_buffer_access && features.robust_buffer_access)
                .shader_int16(features.int16)
                .shader_int64(features.int64),
            vulkan11: vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(features.storage_16bit),
            vulkan12: vk::PhysicalDeviceVulkan12Features::default()
                .shader_float16(features.float16)
                .shader_int8(features.int8)
                .shader_buffer_int64_atomics(features.int64_atomics)
                .storage_buffer8_bit_access(features.storage_8bit)
                .vulkan_memory_model(features.memory_model)
                .vulkan_memory_model_device_scope(features.memory_model_device_scope)
                .vulkan_memory_model_availability_visibility_chains(features.memory_model_chains)
                .shader_subgroup_extended_types(features.subgroup_extended_types)
                .timeline_semaphore(features.timeline_semaphore),
            subgroup_size: features.subgroup_size_control.then_some(subgroup_size),
            integer_dot_product: features
                .integer_dot_product
                .then(|| vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true)),
            cooperative_matrix: (!features.cooperative_matrix.is_empty())
                .then(|| vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true)),
            pipeline_statistics: features.pipeline_statistics.then(|| {
                vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true)
            }),
        }
    }

    /// The linked structs, for a query or a request.
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

    /// Result of a query; `core` is the head of the chain after it. Cooperative matrix shapes are queried elsewhere.
    pub fn result(&self, core: vk::PhysicalDeviceFeatures, extensions: Extensions) -> DeviceFeatures {
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
            // Properties of the device, read elsewhere, as the shapes of matrices are.
            integer_dot_product_accelerated: false,
            mixed_dot_product_accelerated: false,
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
            dma_buf: extensions.dma_buf,
            pipeline_statistics: self.pipeline_statistics.is_some_and(|it| is(it.pipeline_executable_info)),
            cooperative_matrix: Vec::new(),
        }
    }

    /// Whether a query found cooperative matrices.
    pub fn has_cooperative_matrix(&self) -> bool {
        self.cooperative_matrix.is_some_and(|it| it.cooperative_matrix == vk::TRUE)
    }
}

/// Extensions that must be enabled with `features`.
pub fn extension_names(features: &DeviceFeatures, core_1_3: bool) -> Vec<*const std::ffi::c_char> {
    let mut names = Vec::new();
    if features.subgroup_size_control && !core_1_3 {
        names.push(ash::ext::subgroup_size_control::NAME.as_ptr());
    }
    if features.integer_dot_product && !core_1_3 {
        names.push(khr::shader_integer_dot_product::NAME.as_ptr());
    }
    if !features.cooperative_matrix.is_empty() {
        names.push(khr::cooperative_matrix::NAME.as_ptr());
    }
    if features.host_import {
        names.push(ash::ext::external_memory_host::NAME.as_ptr());
    }
    if features.dma_buf {
        names.extend([khr::external_memory_fd::NAME.as_ptr(), ash::ext::external_memory_dma_buf::NAME.as_ptr()]);
    }
    if features.pipeline_statistics {
        names.push(khr::pipeline_executable_properties::NAME.as_ptr());
    }
    names
}
