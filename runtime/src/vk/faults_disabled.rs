//! Replaces `faults.rs` without feature `fault-injection`: no call fails on purpose.

use crate::vk::Failure;

pub fn of_instance(raw: ash::Instance) -> ash::Instance {
    raw
}

pub fn of_device(raw: ash::Device) -> ash::Device {
    raw
}

pub fn before_reading() {}

pub fn before(_call: &'static str) -> Result<(), Failure> {
    Ok(())
}
