//! The kernel in plain loops, to check it by.

use super::spec::{BLOCK_BYTES, CHUNK_END, CHUNK_START, IV, LANES, PARENT, PERMUTATION, ROOT};
use unicorn_artifact::hash::{CHUNK_BYTES, HashedRange, SUBTREE_BYTES};

/// The twin: eight words a subtree of `bytes`, which are the bytes of `range`.
pub fn hashes(range: HashedRange, bytes: &[u8]) -> Vec<[u32; 8]> {
    assert_eq!(bytes.len(), range.len_bytes as usize);
    let subtree = |(index, part): (usize, &[u8])| {
        let first_chunk = range.first_chunk + (index * LANES) as u32;
        let root = if range.is_root { ROOT } else { 0 };
        let n_chunks = part.len().div_ceil(CHUNK_BYTES as usize);
        let chunk_root = if n_chunks == 1 { root } else { 0 };
        let chunks = part.chunks(CHUNK_BYTES as usize).zip(first_chunk..);
        let mut values: Vec<[u32; 8]> = chunks.map(|(chunk, number)| hash_chunk(chunk, number, chunk_root)).collect();
        while values.len() > 1 {
            let flags = PARENT | if values.len() == 2 { root } else { 0 };
            let join = |pair: &[[u32; 8]]| match pair {
                [left, right] => {
                    let message: Vec<u32> = left.iter().chain(right).copied().collect();
                    compress(IV, message.try_into().expect("16 words"), 0, BLOCK_BYTES as u32, flags)
                }
                _ => pair[0],
            };
            values = values.chunks(2).map(join).collect();
        }
        values[0]
    };
    bytes.chunks(SUBTREE_BYTES as usize).enumerate().map(subtree).collect()
}

fn hash_chunk(chunk: &[u8], number: u32, root: u32) -> [u32; 8] {
    let last = chunk.len().div_ceil(BLOCK_BYTES) - 1;
    let mut value = IV;
    for (index, block) in chunk.chunks(BLOCK_BYTES).enumerate() {
        let mut padded = [0; BLOCK_BYTES];
        padded[..block.len()].copy_from_slice(block);
        let message: [u32; 16] =
            std::array::from_fn(|word| u32::from_le_bytes(padded[4 * word..4 * word + 4].try_into().expect("4 bytes")));
        let start = if index == 0 { CHUNK_START } else { 0 };
        let end = if index == last { CHUNK_END | root } else { 0 };
        value = compress(value, message, number, block.len() as u32, start | end);
    }
    value
}

fn compress(value: [u32; 8], mut message: [u32; 16], counter: u32, len_bytes: u32, flags: u32) -> [u32; 8] {
    let mut state = [0; 16];
    state[..8].copy_from_slice(&value);
    state[8..12].copy_from_slice(&IV[..4]);
    state[12..].copy_from_slice(&[counter, 0, len_bytes, flags]);
    for _ in 0..7 {
        for column in 0..4 {
            mix(&mut state, [column, column + 4, column + 8, column + 12], &message[2 * column..2 * column + 2]);
        }
        for column in 0..4 {
            let diagonal = [column, (column + 1) % 4 + 4, (column + 2) % 4 + 8, (column + 3) % 4 + 12];
            mix(&mut state, diagonal, &message[2 * column + 8..2 * column + 10]);
        }
        message = PERMUTATION.map(|from| message[from]);
    }
    std::array::from_fn(|word| state[word] ^ state[word + 8])
}

fn mix(state: &mut [u32; 16], [a, b, c, d]: [usize; 4], words: &[u32]) {
    for (word, (right_d, right_b)) in words.iter().zip([(16, 12), (8, 7)]) {
        state[a] = state[a].wrapping_add(state[b]).wrapping_add(*word);
        state[d] = (state[d] ^ state[a]).rotate_right(right_d);
        state[c] = state[c].wrapping_add(state[d]);
        state[b] = (state[b] ^ state[c]).rotate_right(right_b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicorn_artifact::hash;

    #[test]
    fn the_twin_is_blake3() {
        let bytes: Vec<u8> = (0..200_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let le = |words: &[u32; 8]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        for len in [1, 63, 64, 65, 1023, 1024, 1025, 3000, 65535, 65536] {
            let range = HashedRange { first_chunk: 0, len_bytes: len as u32, is_root: true };
            let found = hashes(range, &bytes[..len]);
            assert_eq!(found.len(), 1);
            assert_eq!(le(&found[0]), hash::hash(&bytes[..len]), "{len} bytes");
        }
        // The second range of a section, which begins with its second subtree.
        let range = HashedRange { first_chunk: 64, len_bytes: 200_003 - (1 << 16), is_root: false };
        let found: Vec<Vec<u8>> = hashes(range, &bytes[1 << 16..]).iter().map(le).collect();
        assert_eq!(found, hash::subtrees(&bytes)[1..]);
    }
}
