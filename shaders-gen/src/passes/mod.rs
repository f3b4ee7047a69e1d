//! Passes over a SPIR-V module, one function each, in the order in which [`emit`](crate::emit) runs them.
//!
//! They replace named intrinsics by instructions, and correct what naga 30 writes where a driver would reject it or run it slowly.
//! A pass that finds nothing to do does not change the module.

mod apply_vulkan_memory_model;
mod drop_16bit_storage;
mod drop_workgroup_layout;
mod initialize_matrices;
mod keep_loops;
mod lower_intrinsics;
mod module;
mod shape_matrices;

pub(crate) use apply_vulkan_memory_model::apply_vulkan_memory_model;
pub(crate) use drop_16bit_storage::drop_16bit_storage;
pub(crate) use drop_workgroup_layout::drop_workgroup_layout;
pub(crate) use initialize_matrices::initialize_matrices;
pub(crate) use keep_loops::keep_loops;
pub(crate) use lower_intrinsics::{intrinsic_functions, lower_intrinsics};
pub(crate) use shape_matrices::shape_matrices;
