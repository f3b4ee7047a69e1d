//! The NPU: programs of an artifact's NPU section, run through the kernel's driver amdxdna, or through AMD's runtime (XRT).
//!
//! ```text
//! NpuSection ─► device   heap, context, buffers of programs and weights; one command at a time, with a time limit
//!                 │ command  ERT packets, as words
//!                 ▼
//!               driver (trait) ─► amdxdna ─► ioctl ─► uapi     /dev/accel/accel0
//!                              ├► xrt ─► xrt::library    libxrt_coreutil: all unsafe code of this folder is there and in `ioctl`
//!                              └► a simulated one, of another package
//! diagnosis: why there is no NPU that can be used
//! ```
//!
//! In: instruction streams, control images, weights and activations as bytes. Out: outputs as bytes. Not known here: what a program
//! computes, Vulkan, models.

// Lowest first.
mod error;
mod uapi;

pub mod command;
pub mod driver;

pub mod diagnosis;
mod ioctl;

mod amdxdna;
mod device;
mod opener;
mod xrt;

pub use amdxdna::Amdxdna;
pub use device::{COMMAND_LIMIT, NpuDevice};
pub use error::NpuError;
pub use opener::{NpuOpener, NpuUse};
pub use xrt::Xrt;

/// Facts of this machine's NPU.
///
/// # Errors
/// Why there is none, or why it cannot be used.
pub fn probe() -> Result<driver::NpuFacts, NpuError> {
    use driver::Driver;
    Ok(Amdxdna::open(std::path::Path::new("/"))?.facts().clone())
}
