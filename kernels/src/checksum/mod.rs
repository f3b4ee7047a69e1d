//! BLAKE3 of weights where they lie: a workgroup hashes one subtree of 64 chunks of 1 KiB, a lane each, and joins them.
//!
//! Formula: O'Connor, Aumasson, Neves and Wilcox-O'Hearn, "BLAKE3" (2020), section 2. What comes back, 32 bytes a subtree, the host
//! joins to the hash that the artifact's section table holds (`unicorn_artifact::hash`), so that a wrong bit in device memory is found.
//! Not part of any program; a range may be one binding long, and `workgroups` counts its subtrees.

mod spec;
mod twin;

pub use spec::ChecksumSpec;
pub use twin::hashes;
