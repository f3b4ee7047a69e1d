//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};
use unicorn_artifact::hash::{CHUNK_BYTES, SUBTREE_BYTES};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// The kernel has no parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChecksumSpec {}

/// Invocations of a workgroup: one for each chunk.
pub(super) const LANES: usize = (SUBTREE_BYTES / CHUNK_BYTES) as usize;
/// The first 32 bits of the fractional parts of the square roots of the first eight primes, as in SHA-256.
pub(super) const IV: [u32; 8] =
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19];
/// Where each word of the message goes after a round.
pub(super) const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
pub(super) const BLOCK_BYTES: usize = 64;
pub(super) const CHUNK_START: u32 = 1;
pub(super) const CHUNK_END: u32 = 2;
pub(super) const PARENT: u32 = 4;
pub(super) const ROOT: u32 = 8;

impl Kernel for ChecksumSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Weights, Role::HashedRange, Role::Hashes])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("LANES", LANES)
            .size("CHUNK_BYTES", CHUNK_BYTES as usize)
            .size("BLOCK_BYTES", BLOCK_BYTES)
            .size("CHUNK_START", CHUNK_START as usize)
            .size("CHUNK_END", CHUNK_END as usize)
            .size("PARENT", PARENT as usize)
            .size("ROOT", ROOT as usize)
            .text("DECLARATIONS", declarations(&self.bindings()));
        let values =
            IV.iter().zip(0..).fold(values, |values, (word, i)| values.count(format!("IV_{i}"), *word as usize));
        render(include_str!("kernel.wgsl"), &values)
    }

    fn is_of_runtime(&self) -> bool {
        true
    }
}
