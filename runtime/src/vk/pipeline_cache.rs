//! What a driver remembers of the pipelines that it has compiled.

use std::sync::Arc;

use ash::vk;

use crate::vk::device::Device;
use crate::vk::{Failure, Named};

/// A driver's memory of pipelines; several threads may add to it at a time.
pub struct PipelineCache {
    device: Arc<Device>,
    pub(super) raw: vk::PipelineCache,
}

/// Which device it is, and which driver speaks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The same for one device of one machine, whatever its driver.
    pub device: Vec<u8>,
    /// Changes with the driver's version and with what it writes into caches.
    pub driver: Vec<u8>,
}

impl PipelineCache {
    /// A cache that begins with what [`PipelineCache::data`] of another gave, on a device of the same identity; or empty.
    pub fn create(device: &Arc<Device>, data: &[u8]) -> Result<PipelineCache, Failure> {
        let request = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the data is empty, or came from this driver and is unchanged, as its owner has checked.
        let raw = unsafe { device.raw.create_pipeline_cache(&request, None) }.named("vkCreatePipelineCache")?;
        Ok(PipelineCache { device: device.clone(), raw })
    }

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
    pub fn identity(&self) -> Result<DeviceIdentity, Failure> {
        let physical = self.instance.physical_devices()?[self.facts().index];
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
