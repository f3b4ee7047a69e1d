//! One logical device with one compute queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ash::vk;

use crate::device_plan::{DeviceFacts, Heap};
use crate::error::LoadError;
use crate::vk::features::{FeatureChain, extension_names};
use crate::vk::import::HostImport;
use crate::vk::instance::Instance;
use crate::vk::{Named, facts, faults};

pub struct Device {
    pub(super) raw: ash::Device,
    /// Vulkan wants one thread at a time at a queue.
    pub(super) queue: Mutex<vk::Queue>,
    pub(super) queue_family: u32,
    /// Nanoseconds of one tick and the bits that count; `None`: the queue keeps no time.
    pub(super) clock: Option<(f64, u64)>,
    /// `None`: the driver takes no host memory.
    pub(super) host_import: Option<HostImport>,
    facts: DeviceFacts,
    stuck: AtomicBool,
    /// Destroyed after the device, so it goes last.
    pub(super) instance: Instance,
}

impl Device {
    /// Opens the device that `facts` describe, with every optional feature in them turned on.
    pub fn open(instance: Instance, facts: &DeviceFacts, robust_buffer_access: bool) -> Result<Arc<Device>, LoadError> {
        let physical = instance.physical_devices()?[facts.index];
        // SAFETY: the device belongs to the instance.
        let families = unsafe { instance.raw.get_physical_device_queue_family_properties(physical) };
        let queue_family = families
            .iter()
            .position(|family| family.queue_flags.contains(vk::QueueFlags::COMPUTE))
            .ok_or_else(|| LoadError::Unsupported { what: format!("{} has no queue for compute", facts.name) })?;

        let priorities = [1.0];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(queue_family as u32)
            .queue_priorities(&priorities)];
        let extensions = extension_names(&facts.features, facts.has_core_1_3());
        let mut features = FeatureChain::enable(&facts.features, robust_buffer_access);
        let mut features = features.chain();
        let request = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .push_next(&mut features);
        // SAFETY: queue family, extensions and features were all reported by this device.
        let raw = unsafe { instance.raw.create_device(physical, &request, None) }.named("vkCreateDevice")?;
        let raw = faults::of_device(raw);
        // SAFETY: the request above asked for queue 0 of this family.
        let queue = unsafe { raw.get_device_queue(queue_family as u32, 0) };
        // SAFETY: the device belongs to the instance.
        let limits = unsafe { instance.raw.get_physical_device_properties(physical) }.limits;
        let valid_bits = families[queue_family].timestamp_valid_bits;
        let clock =
            (valid_bits > 0).then(|| (f64::from(limits.timestamp_period), u64::MAX >> (64 - valid_bits.clamp(1, 64))));
        let host_import = facts.features.host_import.then(|| HostImport::of(&instance, physical, &raw));
        Ok(Arc::new(Device {
            raw,
            queue: Mutex::new(queue),
            queue_family: queue_family as u32,
            clock,
            host_import,
            facts: facts.clone(),
            stuck: AtomicBool::new(false),
            instance,
        }))
    }

    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Its heaps as they are now.
    pub fn heaps(&self) -> Result<Vec<Heap>, LoadError> {
        facts::heaps(&self.instance, &self.facts)
    }

    /// Returns when nothing is under way any more: done, or given up with a device that was lost. A submission that
    /// outran its timeout is not waited for.
    pub(super) fn settle(&self) {
        if self.is_stuck() {
            return;
        }
        let _queue = self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Lost or not, the device is done with what it was given, and that was all we wanted to know.
        // SAFETY: the lock makes this thread the only user of the only queue.
        let _ = unsafe { self.raw.device_wait_idle() };
    }

    /// A submission did not finish in time and may still run: nothing that it could touch may be destroyed.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    pub(super) fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Release);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.is_stuck() {
            // SAFETY: every object made from the device holds an Arc of it, so none is left.
            unsafe { self.raw.destroy_device(None) };
        }
    }
}
