//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};
use unicorn_artifact::hash::{CHUNK_BYTES, SUBTREE_BYTES};

use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// There is nothing to choose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChecksumSpec {}

/// One lane a chunk.
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

impl ChecksumSpec {
    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Weights, Role::HashedRange, Role::Hashes])
    }

    pub(crate) fn wgsl(&self) -> String {
        let quad = |words: &[u32]| {
            let words: Vec<String> = words.iter().map(|word| format!("{word:#x}u")).collect();
            format!("vec4<u32>({})", words.join(", "))
        };
        let values = Values::default()
            .size("LANES", LANES)
            .size("CHUNK_BYTES", CHUNK_BYTES as usize)
            .size("BLOCK_BYTES", BLOCK_BYTES)
            .size("CHUNK_START", CHUNK_START as usize)
            .size("CHUNK_END", CHUNK_END as usize)
            .size("PARENT", PARENT as usize)
            .size("ROOT", ROOT as usize)
            .text("IV_LOW", quad(&IV[..4]))
            .text("IV_HIGH", quad(&IV[4..]))
            .text("WORKGROUP_SIZE", LANES)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
