//! What a Vulkan driver reports about a device: plain data, read once and then passed around. No Vulkan calls.

use std::fmt;

use unicorn_artifact::account::size;

/// Properties of one Vulkan device. `vk::device_facts` fills it in; everything that chooses devices, targets, memory or
/// queues reads this value and never the driver.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFacts {
    /// Position in the Vulkan loader's list, as in [`crate::DeviceChoice::Index`].
    pub index: usize,
    /// Identifies the device on this machine, whatever its position in the list (`VkPhysicalDeviceIDProperties::deviceUUID`); zeros
    /// below Vulkan 1.2.
    pub uuid: [u8; 16],
    /// The driver's name for the device.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// PCI vendor ID; 0x1002 is AMD, 0x10de NVIDIA.
    pub vendor_id: u32,
    /// PCI device ID.
    pub device_id: u32,
    /// Discrete, integrated, virtual or software.
    pub kind: DeviceKind,
    /// Vulkan version of the device: major, minor, patch.
    pub api_version: (u32, u32, u32),
    /// Default subgroup size, in invocations. 0 below Vulkan 1.2.
    pub subgroup_size: u32,
    /// Smallest subgroup size that a compute pipeline can require.
    pub min_subgroup_size: u32,
    /// Largest subgroup size that a compute pipeline can require.
    pub max_subgroup_size: u32,
    /// Compute shaders may use subgroup arithmetic and shuffles.
    pub subgroup_arithmetic: bool,
    /// Shared memory of one workgroup, in bytes.
    pub shared_memory_bytes: u32,
    /// Largest workgroup, in invocations.
    pub workgroup_invocations: u32,
    /// Warps that a multiprocessor holds (VK_NV_shader_sm_builtins), which distinguishes generations of NVIDIA's GPUs; `None` on
    /// others.
    pub warps_per_multiprocessor: Option<u32>,
    /// Multiprocessors of an NVIDIA GPU (VK_NV_shader_sm_builtins); `None` on others.
    pub multiprocessors: Option<u32>,
    /// Largest range of one storage buffer binding, in bytes.
    pub storage_range_bytes: u64,
    /// Largest single allocation, in bytes.
    pub max_allocation_bytes: u64,
    /// Memory heaps; empty for a driver without hardware.
    pub heaps: Vec<Heap>,
    /// Memory types, in the driver's order.
    pub memory_types: Vec<MemoryType>,
    /// Optional features.
    pub features: DeviceFeatures,
}

/// Kind of a Vulkan device (`VkPhysicalDeviceType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory (APU).
    Integrated,
    /// A GPU passed into a virtual machine.
    Virtual,
    /// A software implementation that runs on the CPU, such as llvmpipe.
    Cpu,
    /// Anything else.
    Other,
}

/// A memory heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Size of the heap.
    pub bytes: u64,
    /// Bytes that the driver expects this process can hold in all (VK_EXT_memory_budget); `None`: the driver does not report
    /// it.
    pub budget_bytes: Option<u64>,
    /// Bytes that this process holds already; 0 where the driver does not report it.
    pub used_bytes: u64,
    /// The heap is the device's own memory.
    pub device_local: bool,
}

/// A memory type: one combination of properties under which a heap can be allocated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryType {
    /// Index into [`DeviceFacts::heaps`].
    pub heap: usize,
    /// Lies in the device's own memory.
    pub device_local: bool,
    /// The host can map it.
    pub host_visible: bool,
    /// Host accesses need no flush or invalidate.
    pub host_coherent: bool,
    /// Host reads are cached.
    pub host_cached: bool,
}

/// Optional features that kernels or the runtime use. `false` means absent or not enabled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceFeatures {
    /// f16 arithmetic in shaders.
    pub float16: bool,
    /// 8-bit integer arithmetic in shaders.
    pub int8: bool,
    /// 16-bit integer arithmetic in shaders.
    pub int16: bool,
    /// 64-bit integer arithmetic in shaders.
    pub int64: bool,
    /// Atomics of 64-bit integers in buffers.
    pub int64_atomics: bool,
    /// 8-bit loads and stores in storage buffers.
    pub storage_8bit: bool,
    /// 16-bit loads and stores in storage buffers.
    pub storage_16bit: bool,
    /// Packed integer dot products.
    pub integer_dot_product: bool,
    /// A packed dot product of int8 is one instruction, and not several in its place.
    pub integer_dot_product_accelerated: bool,
    /// A packed dot product of int8 with u8 is one instruction. Of AMD's GPUs, those with matrix units have it and the others do
    /// not, while AMD's own driver lists emulated matrices on both.
    pub mixed_dot_product_accelerated: bool,
    /// The Vulkan memory model.
    pub memory_model: bool,
    /// Device scope in the Vulkan memory model.
    pub memory_model_device_scope: bool,
    /// Visibility is transitive (`vulkanMemoryModelAvailabilityVisibilityChains`): an acquire also makes writes visible that
    /// the releasing workgroup had acquired.
    pub memory_model_chains: bool,
    /// Subgroup operations on 8- and 16-bit numbers.
    pub subgroup_extended_types: bool,
    /// Pipelines can require a subgroup size.
    pub subgroup_size_control: bool,
    /// Pipelines can require full subgroups.
    pub full_subgroups: bool,
    /// Timeline semaphores.
    pub timeline_semaphore: bool,
    /// The device checks buffer accesses against the bound range.
    pub robust_buffer_access: bool,
    /// The driver reports budget and usage of each heap (VK_EXT_memory_budget).
    pub memory_budget: bool,
    /// Host memory can be imported as device memory (VK_EXT_external_memory_host).
    pub host_import: bool,
    /// Memory can be exported to other devices' drivers (VK_EXT_external_memory_dma_buf, VK_KHR_external_memory_fd).
    pub dma_buf: bool,
    /// The driver reports registers, spills and machine code (VK_KHR_pipeline_executable_properties).
    pub pipeline_statistics: bool,
    /// Cooperative matrix shapes of subgroup scope, as `16x16x16 f16 -> f32`: rows, columns, depth, operand and result type;
    /// empty: none.
    pub cooperative_matrix: Vec<String>,
}

impl DeviceFacts {
    /// Whether a pipeline can run with exactly `size` invocations a subgroup.
    pub fn offers_subgroup_size(&self, size: u32) -> bool {
        let any_in_range = self.features.subgroup_size_control
            && self.features.full_subgroups
            && (self.min_subgroup_size..=self.max_subgroup_size).contains(&size);
        size.is_power_of_two() && (size == self.subgroup_size || any_in_range)
    }

    /// Whether the device has Vulkan 1.3, whose mandatory features then need no extension.
    pub fn has_core_1_3(&self) -> bool {
        (self.api_version.0, self.api_version.1) >= (1, 3)
    }

    /// Whether the device has Vulkan 1.2, which the runtime requires.
    pub fn is_recent(&self) -> bool {
        (self.api_version.0, self.api_version.1) >= (1, 2)
    }

    /// Whether the device has memory. A driver without its hardware lists a device without heaps, which compiles kernels and
    /// runs none.
    pub fn has_memory(&self) -> bool {
        !self.heaps.is_empty()
    }
}

impl Heap {
    /// Bytes that this process can still allocate, by the driver's budget or else the heap's size.
    pub fn available_bytes(&self) -> u64 {
        self.budget_bytes.unwrap_or(self.bytes).saturating_sub(self.used_bytes)
    }
}

impl DeviceFeatures {
    /// Whether the device runs kernels on f16 matrices of these sides, m, n and k ([`unicorn_artifact::TargetMatch::matrix_sides`]),
    /// with f32 sums.
    pub fn multiplies_f16_matrices(&self, sides: [u32; 3]) -> bool {
        self.float16 && self.memory_model && self.cooperative_matrix.contains(&f16_matrix(sides))
    }

    /// Display names of the features that the device has.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            ("float16", self.float16),
            ("int8", self.int8),
            ("int16", self.int16),
            ("int64", self.int64),
            ("int64 atomics", self.int64_atomics),
            ("8-bit storage", self.storage_8bit),
            ("16-bit storage", self.storage_16bit),
            ("integer dot product", self.integer_dot_product),
            ("accelerated integer dot product", self.integer_dot_product_accelerated),
            ("accelerated mixed-sign dot product", self.mixed_dot_product_accelerated),
            ("memory model", self.memory_model),
            ("memory model device scope", self.memory_model_device_scope),
            ("memory model chains", self.memory_model_chains),
            ("subgroup extended types", self.subgroup_extended_types),
            ("subgroup size control", self.subgroup_size_control),
            ("full subgroups", self.full_subgroups),
            ("timeline semaphore", self.timeline_semaphore),
            ("robust buffer access", self.robust_buffer_access),
            ("memory budget", self.memory_budget),
            ("host memory import", self.host_import),
            ("dma-buf", self.dma_buf),
            ("pipeline statistics", self.pipeline_statistics),
            ("cooperative matrix", !self.cooperative_matrix.is_empty()),
        ];
        all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
    }
}

impl fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.index, self.name, self.kind)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Cpu => "software",
            DeviceKind::Other => "other",
        })
    }
}

impl fmt::Display for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.device_local { "device" } else { "host" };
        write!(f, "{} of {} {place} memory", size(self.available_bytes()), size(self.bytes))
    }
}

/// An f16 matrix product of sides m, n and k as [`DeviceFeatures::cooperative_matrix`] writes it.
pub(crate) fn f16_matrix([m, n, k]: [u32; 3]) -> String {
    format!("{m}x{n}x{k} f16 -> f32")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A made-up device with one host-visible 8 GiB heap of its own, as an APU or llvmpipe has.
    pub(crate) fn facts(index: usize, name: &str, kind: DeviceKind) -> DeviceFacts {
        DeviceFacts {
            index,
            uuid: [index as u8; 16],
            name: name.into(),
            driver: "made up 1.0".into(),
            vendor_id: 0x1002,
            device_id: 0x15bf,
            kind,
            api_version: (1, 3, 230),
            subgroup_size: 64,
            min_subgroup_size: 32,
            max_subgroup_size: 64,
            subgroup_arithmetic: true,
            shared_memory_bytes: 64 << 10,
            workgroup_invocations: 1024,
            warps_per_multiprocessor: None,
            multiprocessors: None,
            storage_range_bytes: 128 << 20,
            max_allocation_bytes: 4 * GIB,
            heaps: vec![Heap { bytes: 8 * GIB, budget_bytes: None, used_bytes: 0, device_local: true }],
            memory_types: vec![MemoryType {
                heap: 0,
                device_local: true,
                host_visible: true,
                host_coherent: true,
                host_cached: true,
            }],
            features: DeviceFeatures { subgroup_size_control: true, full_subgroups: true, ..Default::default() },
        }
    }
}
