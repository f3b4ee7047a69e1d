//! Memory of a loaded model: how much each tier needs and has, which buffers there are, and which KV pages are free.
//!
//! In: the artifact's [`unicorn_artifact::Plan`], [`crate::DeviceFacts`], the requested context and budget.
//! Out: a context length or [`crate::InsufficientMemory`], allocated buffers, block tables.
//! Not known here: how weights reach their buffers (`load`), what kernels do with a buffer, what a sequence is.
//!
//! Read in this order:
//!
//! - `tier_bytes`: bytes of one tier by what they hold
//! - `requirements`: what the plan needs of each tier for a context
//! - `insufficient_memory`: the report of a model that does not fit
//! - `budget`: what is available, and tier sizes for which a new plan fits
//! - `context`: the context to load for
//! - `residency`: which heap each tier lies in
//! - `kv_pools`: layout of K and V regions in buffers
//! - `npu_memory`: buffers between the device and an NPU
//! - `buffers`: every buffer, allocated, and the range of each binding
//! - `kv_pages`: free pages of the KV cache, and each sequence's block tables
//! - `staging`: buffers between the host's memory and the device's own
//! - `kv_copy`: pages to the host and back
//! - `state_copies`: copies of recurrent state on the device
//! - `usage`: memory in use according to driver and kernel, compared with what was allocated

pub mod budget;
pub mod buffers;
pub mod context;
pub mod insufficient_memory;
pub mod kv_copy;
pub mod kv_pages;
pub mod kv_pools;
pub mod npu_memory;
pub mod requirements;
pub mod residency;
pub mod staging;
pub mod state_copies;
pub mod tier_bytes;
pub mod usage;
