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
    /// NVIDIA with matrix units and 64 warps a multiprocessor: A100, Hopper, B200.
    NvidiaServer,
    /// NVIDIA with matrix units and fewer warps a multiprocessor: Turing, Ampere, Ada and Blackwell of the GeForce and RTX series.
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
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceClass::Gcn => "AMD GCN",
            DeviceClass::Rdna2 => "AMD RDNA 2",
            DeviceClass::Rdna3 => "AMD RDNA 3",
            DeviceClass::Rdna4 => "AMD RDNA 4",
            DeviceClass::NvidiaServer => "NVIDIA server GPUs",
            DeviceClass::NvidiaRtx => "NVIDIA GeForce and RTX",
            DeviceClass::Intel => "Intel Xe",
            DeviceClass::Adreno => "Qualcomm Adreno",
            DeviceClass::Mali => "ARM Mali",
            DeviceClass::Llvmpipe => "llvmpipe",
            DeviceClass::LlvmpipeMesa26 => "llvmpipe of Mesa 26",
        })
    }
}
