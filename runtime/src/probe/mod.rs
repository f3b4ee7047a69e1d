//! Measurements of a device, and of what its driver makes of kernels, for reports and estimates.
//!
//! In: a device; for bandwidth a kernel of the artifact, for kernel statistics its modules. Out: bytes per second, statistics.
//! Not known here: models and sequences. The time of each dispatch of a step is `program::profile`.
//!
//! Read in this order:
//!
//! - `bandwidth`: at which rate the device reads its memory
//! - `transfers`: at which rate bytes reach that memory
//! - `kernel_statistics`: registers, spills and machine code of each kernel

pub mod bandwidth;
pub mod kernel_statistics;
pub mod transfers;
