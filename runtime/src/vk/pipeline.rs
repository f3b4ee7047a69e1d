//! Compute pipelines, and the descriptor sets that bind their buffers. Descriptor set 0 has storage buffers only; push constants
//! are a [`CounterWait`] of counter synchronisation.

use std::sync::Arc;

use ash::vk;

use crate::vk::buffer::BufferRange;
use crate::vk::device::Device;
use crate::vk::pipeline_cache::PipelineCache;
use crate::vk::{Failure, Named};
use unicorn_artifact::step::CounterWait;

/// Layout with storage buffers 0..bindings of set 0 and a [`CounterWait`]; shared by all pipelines with that many bindings.
pub struct SetLayout {
    device: Arc<Device>,
    set: vk::DescriptorSetLayout,
    pub(super) pipeline: vk::PipelineLayout,
    bindings: u32,
}

/// A compute pipeline with entry point `main`.
pub struct Pipeline {
    device: Arc<Device>,
    pub(super) raw: vk::Pipeline,
    layout: Arc<SetLayout>,
    pub(super) capture: Capture,
    from_cache: Option<bool>,
}

/// Arguments of [`Pipeline::create`].
#[derive(Clone, Copy)]
pub struct PipelineRequest<'a> {
    pub spirv: &'a [u32],
    pub layout: &'a Arc<SetLayout>,
    /// Required subgroup size, with full subgroups; `None`: the device's default.
    pub subgroup_size: Option<u32>,
    /// The cache that the driver looks up and adds to.
    pub cache: Option<&'a PipelineCache>,
    pub capture: Capture,
}

/// What the driver captures for [`Pipeline::executables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    Nothing,
    Statistics,
    /// Statistics, and the kernel in the driver's own forms, including machine code.
    Representations,
}

impl Capture {
    fn flags(self) -> vk::PipelineCreateFlags {
        let statistics = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR;
        match self {
            Capture::Nothing => vk::PipelineCreateFlags::empty(),
            Capture::Statistics => statistics,
            Capture::Representations => statistics | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR,
        }
    }
}

/// A descriptor set, written once.
#[derive(Clone)]
pub struct BoundSet {
    pub(super) raw: vk::DescriptorSet,
    layout: Arc<SetLayout>,
    _pool: Arc<SetPool>,
}

/// A descriptor pool, with everything that its sets refer to.
struct SetPool {
    device: Arc<Device>,
    raw: vk::DescriptorPool,
    _layouts: Vec<Arc<SetLayout>>,
    _ranges: Vec<BufferRange>,
}

impl SetLayout {
    pub fn create(device: &Arc<Device>, bindings: u32) -> Result<Arc<SetLayout>, Failure> {
        let buffers: Vec<vk::DescriptorSetLayoutBinding<'_>> = (0..bindings)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let request = vk::DescriptorSetLayoutCreateInfo::default().bindings(&buffers);
        // SAFETY: a plain request; destroyed by Drop or below.
        let set =
            unsafe { device.raw.create_descriptor_set_layout(&request, None) }.named("vkCreateDescriptorSetLayout")?;
        let sets = [set];
        let counter = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(4 * CounterWait::WORDS as u32)];
        let request = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&counter);
        // SAFETY: the set layout was just made.
        let pipeline = unsafe { device.raw.create_pipeline_layout(&request, None) }.named("vkCreatePipelineLayout");
        match pipeline {
            Ok(pipeline) => Ok(Arc::new(SetLayout { device: device.clone(), set, pipeline, bindings })),
            Err(failure) => {
                // SAFETY: made above, used by nothing.
                unsafe { device.raw.destroy_descriptor_set_layout(set, None) };
                Err(failure)
            }
        }
    }
}

impl Pipeline {
    /// Compiles one kernel. Blocks; several threads may compile at a time.
    pub fn create(device: &Arc<Device>, request: &PipelineRequest) -> Result<Arc<Pipeline>, Failure> {
        let PipelineRequest { spirv, layout, subgroup_size, cache, capture } = *request;
        let request = vk::ShaderModuleCreateInfo::default().code(spirv);
        // SAFETY: the words are a SPIR-V module (rule 2); the module is destroyed below.
        let module = unsafe { device.raw.create_shader_module(&request, None) }.named("vkCreateShaderModule")?;
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(subgroup_size.unwrap_or_default());
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        if subgroup_size.is_some() {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS).push_next(&mut size);
        }
        let (mut feedback, mut of_stages) = Default::default();
        let mut report = vk::PipelineCreationFeedbackCreateInfo::default()
            .pipeline_creation_feedback(&mut feedback)
            .pipeline_stage_creation_feedbacks(std::slice::from_mut(&mut of_stages));
        // A dispatch may be split into ranges that begin at any workgroup.
        let flags = capture.flags() | vk::PipelineCreateFlags::DISPATCH_BASE;
        let mut request = vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout.pipeline);
        if device.facts().has_core_1_3() {
            request = request.push_next(&mut report);
        }
        let cache = cache.map_or(vk::PipelineCache::null(), |cache| cache.raw);
        // SAFETY: module, layout and cache are alive; a subgroup size is required, and statistics are captured, only where
        // the device has the feature, and feedback is part of Vulkan 1.3.
        let made = unsafe { device.raw.create_compute_pipelines(cache, &[request], None) };
        // SAFETY: a pipeline does not need its module once it is made.
        unsafe { device.raw.destroy_shader_module(module, None) };
        let raw = made.map_err(|(_, code)| code).named("vkCreateComputePipelines")?[0];
        let from_cache = feedback
            .flags
            .contains(vk::PipelineCreationFeedbackFlags::VALID)
            .then(|| feedback.flags.contains(vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT));
        Ok(Arc::new(Pipeline { device: device.clone(), raw, layout: layout.clone(), capture, from_cache }))
    }

    /// Whether it was found in the cache; `None`: the driver does not report it.
    pub fn was_cached(&self) -> Option<bool> {
        self.from_cache
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub fn layout(&self) -> &Arc<SetLayout> {
        &self.layout
    }

    /// Whether the set was created with this pipeline's layout.
    pub(super) fn accepts(&self, set: &BoundSet) -> bool {
        Arc::ptr_eq(&self.layout, &set.layout)
    }
}

impl BoundSet {
    /// One set a request, in order, from a pool of exactly their size.
    pub fn create_all(
        device: &Arc<Device>,
        requests: &[(Arc<SetLayout>, Vec<BufferRange>)],
    ) -> Result<Vec<BoundSet>, Failure> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let descriptors: usize = requests.iter().map(|(_, ranges)| ranges.len()).sum();
        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(descriptors as u32)];
        let request = vk::DescriptorPoolCreateInfo::default().max_sets(requests.len() as u32).pool_sizes(&sizes);
        // SAFETY: a plain request; destroyed by Drop of the pool.
        let raw = unsafe { device.raw.create_descriptor_pool(&request, None) }.named("vkCreateDescriptorPool")?;
        let pool = Arc::new(SetPool {
            device: device.clone(),
            raw,
            _layouts: requests.iter().map(|(layout, _)| layout.clone()).collect(),
            _ranges: requests.iter().flat_map(|(_, ranges)| ranges.iter().cloned()).collect(),
        });
        let layouts: Vec<vk::DescriptorSetLayout> = requests.iter().map(|(layout, _)| layout.set).collect();
        let request = vk::DescriptorSetAllocateInfo::default().descriptor_pool(raw).set_layouts(&layouts);
        // SAFETY: the pool was made for exactly these sets and is used by this thread alone.
        let sets = unsafe { device.raw.allocate_descriptor_sets(&request) }.named("vkAllocateDescriptorSets")?;
        for (set, (layout, ranges)) in sets.iter().zip(requests) {
            write_set(device, *set, layout, ranges);
        }
        let bound = |(raw, (layout, _)): (vk::DescriptorSet, &(Arc<SetLayout>, Vec<BufferRange>))| BoundSet {
            raw,
            layout: layout.clone(),
            _pool: pool.clone(),
        };
        Ok(sets.into_iter().zip(requests).map(bound).collect())
    }
}

fn write_set(device: &Device, set: vk::DescriptorSet, layout: &SetLayout, ranges: &[BufferRange]) {
    assert_eq!(layout.bindings as usize, ranges.len(), "one range a binding");
    let infos: Vec<vk::DescriptorBufferInfo> = ranges
        .iter()
        .map(|range| {
            vk::DescriptorBufferInfo::default()
                .buffer(range.buffer.raw)
                .offset(range.offset_bytes)
                .range(range.len_bytes)
        })
        .collect();
    let write = vk::WriteDescriptorSet::default()
        .dst_set(set)
        .dst_binding(0)
        .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
        .buffer_info(&infos);
    // SAFETY: the set is fresh, consecutive bindings are of one kind, and ranges lie in their buffers.
    unsafe { device.raw.update_descriptor_sets(&[write], &[]) };
}

impl Drop for SetLayout {
    fn drop(&mut self) {
        if self.device.is_stuck() {
            return;
        }
        // SAFETY: pipelines and pools hold an Arc of their layouts, so none is left.
        unsafe {
            self.device.raw.destroy_pipeline_layout(self.pipeline, None);
            self.device.raw.destroy_descriptor_set_layout(self.set, None);
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if !self.device.is_stuck() {
            // SAFETY: command lists hold an Arc of their pipelines, so none is left.
            unsafe { self.device.raw.destroy_pipeline(self.raw, None) };
        }
    }
}

impl Drop for SetPool {
    fn drop(&mut self) {
        if !self.device.is_stuck() {
            // SAFETY: bound sets hold an Arc of their pool, so none is left.
            unsafe { self.device.raw.destroy_descriptor_pool(self.raw, None) };
        }
    }
}
