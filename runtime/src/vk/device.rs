//! A logical device with a compute queue, and a transfer queue where the hardware has one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ash::vk;

use crate::device::facts::{DeviceFacts, Heap};
use crate::error::LoadError;
use crate::vk::features::{FeatureChain, extension_names};
use crate::vk::host_memory::HostImport;
use crate::vk::instance::Instance;
use crate::vk::queues::QueueChoice;
use crate::vk::{Named, device_facts, faults};

/// An open device. Threads share it by `Arc`; it is closed when the last object made from it is dropped.
pub struct Device {
    pub(super) raw: ash::Device,
    compute: Queue,
    transfer: Option<Queue>,
    pub(super) families: QueueChoice,
    /// Nanoseconds of a tick of the compute queue's timestamps, and the mask of their valid bits; `None`: it has none.
    pub(super) clock: Option<(f64, u64)>,
    /// `None`: the device cannot import host memory.
    pub(super) host_import: Option<HostImport>,
    /// `None`: the device cannot export memory as a dma-buf.
    pub(super) dma_buf: Option<ash::khr::external_memory_fd::Device>,
    facts: DeviceFacts,
    stuck: AtomicBool,
    /// Must be destroyed after the device.
    pub(super) instance: Instance,
}

/// Which queue a command list is submitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    Compute,
    /// Copies only; the compute queue where there is no transfer queue.
    Transfer,
}

pub(super) struct Queue {
    /// Locked because Vulkan allows one thread at a time to use a queue.
    raw: Mutex<vk::Queue>,
    pub family: u32,
}

impl Device {
    /// Opens the device that `facts` describe, with all of their optional features enabled.
    pub fn open(instance: Instance, facts: &DeviceFacts, robust_buffer_access: bool) -> Result<Arc<Device>, LoadError> {
        let physical = device_facts::physical_device(&instance, facts)?;
        // SAFETY: the device belongs to the instance.
        let families = unsafe { instance.raw.get_physical_device_queue_family_properties(physical) };
        let choice = QueueChoice::of(&families)
            .ok_or_else(|| LoadError::Unsupported { what: format!("{} has no compute queue", facts.name) })?;

        let priorities = [1.0];
        let request =
            |family| vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities);
        let queues: Vec<_> = [choice.compute].into_iter().chain(choice.transfer).map(request).collect();
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
        // SAFETY: the device was created with queue 0 of either family.
        let queue = |family| Queue { raw: Mutex::new(unsafe { raw.get_device_queue(family, 0) }), family };
        let (compute, transfer) = (queue(choice.compute), choice.transfer.map(queue));
        // SAFETY: the device belongs to the instance.
        let limits = unsafe { instance.raw.get_physical_device_properties(physical) }.limits;
        let valid_bits = families[choice.compute as usize].timestamp_valid_bits;
        let clock =
            (valid_bits > 0).then(|| (f64::from(limits.timestamp_period), u64::MAX >> (64 - valid_bits.clamp(1, 64))));
        let host_import = facts.features.host_import.then(|| HostImport::of(&instance, physical, &raw));
        let dma_buf = facts.features.dma_buf.then(|| ash::khr::external_memory_fd::Device::new(&instance.raw, &raw));
        Ok(Arc::new(Device {
            raw,
            compute,
            transfer,
            families: choice,
            clock,
            host_import,
            dma_buf,
            facts: facts.clone(),
            stuck: AtomicBool::new(false),
            instance,
        }))
    }

    /// The facts that it was opened with.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// The current state of its heaps.
    pub fn heaps(&self) -> Result<Vec<Heap>, LoadError> {
        device_facts::heaps(&self.instance, &self.facts)
    }

    pub(super) fn queue(&self, kind: QueueKind) -> &Queue {
        match (kind, &self.transfer) {
            (QueueKind::Transfer, Some(transfer)) => transfer,
            _ => &self.compute,
        }
    }

    /// Blocks until nothing is in flight, because it is complete or the device is lost. Returns at once after a submission
    /// exceeded its timeout.
    pub(super) fn settle(&self) {
        if self.is_stuck() {
            return;
        }
        let _queues = [Some(&self.compute), self.transfer.as_ref()].map(|queue| queue.map(Queue::lock));
        // An error means a lost device, which has nothing in flight either.
        // SAFETY: the locks make this thread the only user of all queues.
        let _ = unsafe { self.raw.device_wait_idle() };
    }

    /// A submission exceeded its timeout and may still run: nothing that it uses may be destroyed.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    pub(super) fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Release);
    }
}

impl Queue {
    pub fn lock(&self) -> MutexGuard<'_, vk::Queue> {
        self.raw.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_stuck() {
            return self.instance.keep();
        }
        // SAFETY: every object made from the device holds an Arc of it, so none is left.
        unsafe { self.raw.destroy_device(None) };
    }
}
