//! [`DeviceFacts::class`]: the class of GPUs that a device belongs to, as targets distinguish them, by what its driver reports.
//! Marketing names are not used.

use unicorn_artifact::DeviceClass;

use crate::device::facts::DeviceFacts;

const AMD: u32 = 0x1002;
const NVIDIA: u32 = 0x10de;
const INTEL: u32 = 0x8086;
const QUALCOMM: u32 = 0x5143;
const ARM: u32 = 0x13b5;
/// VK_VENDOR_ID_MESA, of Mesa's software devices.
const MESA: u32 = 0x1_0005;

/// Warps of a multiprocessor of A100, Hopper and B200; Turing has 32, the others 48.
const WARPS_OF_SERVERS: u32 = 64;
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
            NVIDIA if has_matrices => match self.warps_per_multiprocessor {
                Some(WARPS_OF_SERVERS) => Some(DeviceClass::NvidiaServer),
                _ => Some(DeviceClass::NvidiaRtx),
            },
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

    /// LLVM's major version in the name of llvmpipe, such as `llvmpipe (LLVM 15.0.6, 256 bits)`.
    fn llvm_version(&self) -> Option<u32> {
        let (_, version) = self.name.strip_prefix("llvmpipe")?.split_once("LLVM ")?;
        version.split('.').next()?.parse().ok()
    }
}
