//! Facts of devices, the choice of one and of a target for it; what amdgpu and sysfs say.

pub mod amdgpu;
pub mod plan;
pub mod sysfs;
