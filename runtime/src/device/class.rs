//! [`DeviceFacts::class`]: the class of GPUs that a device belongs to, as targets distinguish them, by what its driver reports.
//! Marketing names are not used.

use std::ops::RangeInclusive;

use unicorn_artifact::DeviceClass;

use crate::device::facts::DeviceFacts;

const AMD: u32 = 0x1002;
const NVIDIA: u32 = 0x10de;
const INTEL: u32 = 0x8086;
const QUALCOMM: u32 = 0x5143;
const ARM: u32 = 0x13b5;
/// VK_VENDOR_ID_MESA, of Mesa's software devices.
const MESA: u32 = 0x1_0005;

/// Warps that a multiprocessor of Turing holds. A100, Hopper and B200 have 64, Ampere, Ada and Blackwell of the GeForce and RTX series 48.
const WARPS_OF_TURING: u32 = 32;
/// PCI device IDs of GH100, the only GPU of the Hopper generation, and of no other (pci.ids of 2026-08-22). What Vulkan reports of it does
/// not differ from an A100 or B200: 64 warps, and the same matrices.
const GH100: RangeInclusive<u32> = 0x2300..=0x23ff;
/// Multiprocessors of the smallest large GPU, between 84 (RTX 3090 Ti, RTX 5080) and 108 (A100).
const LARGE_MULTIPROCESSORS: u32 = 96;
/// Mesa's own version is not in a device's name, LLVM's is: Debian built Mesa 26 with this one first.
const LLVM_OF_MESA26: u32 = 22;

impl DeviceFacts {
    /// The class whose targets the device takes by itself; `None`: targets for any device.
    pub fn class(&self) -> Option<DeviceClass> {
        let features = &self.features;
        let has_matrices = features.multiplies_f16_matrices([16; 3]);
        // AMD's own driver emulates matrices on GPUs without the units, which lack this dot product, too.
        let has_units = has_matrices && features.mixed_dot_product_accelerated;
        let has_8bit_floats = features.cooperative_matrix.iter().any(|matrix| matrix.contains("f8"));
        let has_dot_products = features.integer_dot_product_accelerated;
        match self.vendor_id {
            AMD if has_units && has_8bit_floats => Some(DeviceClass::Rdna4),
            AMD if has_units => Some(DeviceClass::Rdna3),
            AMD if !self.offers_subgroup_size(32) => Some(DeviceClass::Gcn),
            AMD if has_dot_products => Some(DeviceClass::Rdna2),
            NVIDIA if has_matrices => Some(self.nvidia_class()),
            INTEL if has_dot_products => Some(DeviceClass::Intel),
            QUALCOMM if has_dot_products => Some(DeviceClass::Adreno),
            ARM if has_dot_products => Some(DeviceClass::Mali),
            MESA => self.llvm_version().map(|version| match version {
                LLVM_OF_MESA26.. => DeviceClass::LlvmpipeMesa26,
                _ => DeviceClass::Llvmpipe,
            }),
            _ => None,
        }
    }

    /// The class of an NVIDIA GPU with matrix units. Only Hopper's takes kernels with counters in the place of barriers: where a driver does
    /// not report what tells generations apart, the device takes those with barriers.
    fn nvidia_class(&self) -> DeviceClass {
        match (self.warps_per_multiprocessor, self.multiprocessors) {
            _ if GH100.contains(&self.device_id) => DeviceClass::NvidiaHopper,
            (Some(WARPS_OF_TURING), _) => DeviceClass::NvidiaTuring,
            (_, Some(LARGE_MULTIPROCESSORS..)) => DeviceClass::NvidiaLarge,
            _ => DeviceClass::NvidiaRtx,
        }
    }

    /// LLVM's major version in the name of llvmpipe, such as `llvmpipe (LLVM 15.0.6, 256 bits)`.
    fn llvm_version(&self) -> Option<u32> {
        let (_, version) = self.name.strip_prefix("llvmpipe")?.split_once("LLVM ")?;
        version.split('.').next()?.parse().ok()
    }
}
