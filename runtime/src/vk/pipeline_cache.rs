//! The driver's pipeline cache, and the identity of a device and its driver.

use std::sync::Arc;

use ash::vk;

use crate::vk::device::Device;
use crate::vk::device_facts::physical_device;
use crate::vk::{Failure, Named};

/// A Vulkan pipeline cache; several threads may use it at a time.
pub struct PipelineCache {
    device: Arc<Device>,
    pub(super) raw: vk::PipelineCache,
}

/// Identity of a device and its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Stays the same for one device of one machine when the driver changes.
    pub device: Vec<u8>,
    /// Changes with the driver's version and cache format.
    pub driver: Vec<u8>,
}

impl PipelineCache {
    /// A cache with the contents `data` from [`PipelineCache::data`] on a device of the same identity; empty data: an empty cache.
    pub fn create(device: &Arc<Device>, data: &[u8]) -> Result<PipelineCache, Failure> {
        let request = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the data is empty, or came from this driver and is unchanged, as the caller has checked by hash.
        let raw = unsafe { device.raw.create_pipeline_cache(&request, None) }.named("vkCreatePipelineCache")?;
        Ok(PipelineCache { device: device.clone(), raw })
    }

    /// The cache's contents, as the driver serialises them.
    pub fn data(&self) -> Result<Vec<u8>, Failure> {
        // SAFETY: the cache is alive.
        unsafe { self.device.raw.get_pipeline_cache_data(self.raw) }.named("vkGetPipelineCacheData")
    }
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        if !self.device.is_stuck() {
            // SAFETY: borrowed while pipelines are made, so nothing uses it.
            unsafe { self.device.raw.destroy_pipeline_cache(self.raw, None) };
        }
    }
}

impl Device {
    /// Identity of the device and its driver.
    pub fn identity(&self) -> Result<DeviceIdentity, Failure> {
        let physical = physical_device(&self.instance, self.facts())?;
        let mut ids = vk::PhysicalDeviceIDProperties::default();
        let mut chain = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
        // SAFETY: the device belongs to the instance and has Vulkan 1.1.
        unsafe { self.instance.raw.get_physical_device_properties2(physical, &mut chain) };
        let core = chain.properties;
        let mut device = [core.vendor_id, core.device_id].map(u32::to_le_bytes).concat();
        device.extend(ids.device_uuid);
        let mut driver = [core.driver_version, core.api_version].map(u32::to_le_bytes).concat();
        driver.extend(ids.driver_uuid);
        driver.extend(core.pipeline_cache_uuid);
        Ok(DeviceIdentity { device, driver })
    }
}
