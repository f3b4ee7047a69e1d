//! Reads a buffer once and does next to nothing else: how fast it is, is the bandwidth that every other kernel is held against.
//!
//! ```text
//! buffer     block 0 │ block 1 │ … │ block g │ …        workgroup 0 of g takes blocks 0, g, 2 g, …
//! block      load 0 of every lane · load 1 of every lane · … · load 7, a quad of words each
//! ```
//!
//! What was read ends in one word a workgroup, so that no driver leaves a load out; the loads of a block do not wait for one
//! another. Not part of any program.

use serde::{Deserialize, Serialize};

use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// There is nothing to choose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReadsSpec {}

/// What every device has: Vulkan promises workgroups of 128.
const LANES: usize = 128;
/// Words of 16 bytes that a lane has under way at a time.
const LOADS: usize = unicorn_artifact::kernels::READ_BLOCK_BYTES as usize / (16 * LANES);
const BLOCK_WORDS: usize = unicorn_artifact::kernels::READ_BLOCK_BYTES as usize / 4;

impl ReadsSpec {
    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Weights, Role::Folded])
    }

    pub(crate) fn wgsl(&self) -> String {
        let names: Vec<String> = (0..LOADS).map(|load| format!("quad_{load}")).collect();
        let load = |(load, name): (usize, &String)| format!("let {name} = weights[first + {}u];\n", load * LANES);
        let values = Values::default()
            .size("LANES", LANES)
            .size("BLOCK_QUADS", LANES * LOADS)
            .text("LOADS", names.iter().enumerate().map(load).collect::<String>())
            .text("QUADS", names.join(" ^ "))
            .text("WORKGROUP_SIZE", LANES)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("wgsl/reads.wgsl"), &values)
    }
}

/// The twin: a word for each of so many workgroups, the exclusive or of all words in the whole blocks that it reads.
pub fn folded(words: &[u32], workgroups: usize) -> Vec<u32> {
    let mut folded = vec![0; workgroups];
    for (index, block) in words.chunks_exact(BLOCK_WORDS).enumerate() {
        for word in block {
            folded[index % workgroups] ^= word;
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_round_the_workgroups() {
        let mut words = vec![0; 3 * BLOCK_WORDS + 1];
        words[0] = 1;
        words[BLOCK_WORDS + 5] = 2;
        words[2 * BLOCK_WORDS] = 4;
        // Behind the last whole block.
        words[3 * BLOCK_WORDS] = 8;
        assert_eq!(folded(&words, 2), [5, 2]);
        assert_eq!(folded(&words, 4), [1, 2, 4, 0]);
    }
}
