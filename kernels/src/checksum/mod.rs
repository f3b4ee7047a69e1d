//! BLAKE3 of weights in device memory: a workgroup hashes one subtree of 64 chunks of 1 KiB, a lane each, and joins them.
//!
//! Formula: O'Connor, Aumasson, Neves and Wilcox-O'Hearn, "BLAKE3" (2020), section 2. The host joins
//! the results, 32 bytes a subtree, to the hash in the artifact's section table (`unicorn_artifact::hash`), so that a wrong bit in
//! device memory is found. No program contains this kernel; a range may be one binding long, and `workgroups` counts its subtrees.

mod spec;
mod twin;

pub use spec::ChecksumSpec;
pub use twin::hashes;
