//! The kernel in plain loops, to check it by.

use super::spec::BLOCK_WORDS;

/// The twin: a word for each of `workgroups` workgroups, the exclusive or of all words in the whole blocks that it reads.
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
        // After the last whole block.
        words[3 * BLOCK_WORDS] = 8;
        assert_eq!(folded(&words, 2), [5, 2]);
        assert_eq!(folded(&words, 4), [1, 2, 4, 0]);
    }
}
