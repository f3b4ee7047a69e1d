//! [`DeviceClass`]: the kinds of GPUs that targets distinguish.

use std::fmt;

use serde::{Deserialize, Serialize};

/// GPUs that run the same kernels. The runtime derives a device's class from its driver's reports; a device without a class runs
/// the targets that are for any class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceClass {
    /// AMD with only subgroups of 64: GCN 3 to 5 and Vega (gfx8, gfx9).
    Gcn,
    /// AMD with subgroups of 32 and packed dot products, without matrix units (gfx10.3).
    Rdna2,
    /// AMD with f16 matrices, without those of 8-bit floats (gfx11).
    Rdna3,
    /// AMD with matrices of 8-bit floats (gfx12).
    Rdna4,
    /// NVIDIA's Hopper: H100, H200, GH200.
    NvidiaHopper,
    /// NVIDIA with matrix units and neither of the other classes: Ampere, Ada and Blackwell below [`DeviceClass::NvidiaLarge`].
    NvidiaRtx,
    /// Intel with packed dot products: Xe and later.
    Intel,
    /// Qualcomm with subgroups of 64 and packed dot products.
    Adreno,
    /// ARM with subgroups of 16 and packed dot products: Valhall and later.
    Mali,
    /// Mesa's software device, before Mesa 26.
    Llvmpipe,
    /// Mesa's software device from Mesa 26 on, which does a load that is the same in all lanes once.
    LlvmpipeMesa26,
    /// NVIDIA's Turing: matrix units, 32 warps and 64 KiB of shared memory a multiprocessor.
    NvidiaTuring,
    /// NVIDIA with matrix units and a hundred multiprocessors or more that is not Hopper: A100, RTX 4090 and 5090, B200.
    NvidiaLarge,
}

impl DeviceClass {
    /// The class whose targets a device of this class also takes, behind those of its own; `None`: there is none. Artifacts need not list
    /// the narrower class, which earlier versions do not have.
    pub fn wider(self) -> Option<DeviceClass> {
        match self {
            DeviceClass::NvidiaTuring | DeviceClass::NvidiaLarge => Some(DeviceClass::NvidiaRtx),
            _ => None,
        }
    }
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceClass::Gcn => "AMD GCN",
            DeviceClass::Rdna2 => "AMD RDNA 2",
            DeviceClass::Rdna3 => "AMD RDNA 3",
            DeviceClass::Rdna4 => "AMD RDNA 4",
            DeviceClass::NvidiaHopper => "NVIDIA Hopper",
            DeviceClass::NvidiaRtx => "NVIDIA GeForce and RTX",
            DeviceClass::Intel => "Intel Xe",
            DeviceClass::Adreno => "Qualcomm Adreno",
            DeviceClass::Mali => "ARM Mali",
            DeviceClass::Llvmpipe => "llvmpipe",
            DeviceClass::LlvmpipeMesa26 => "llvmpipe of Mesa 26",
            DeviceClass::NvidiaTuring => "NVIDIA Turing",
            DeviceClass::NvidiaLarge => "large NVIDIA GPUs",
        })
    }
}
