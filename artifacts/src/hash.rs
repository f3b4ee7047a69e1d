//! The hash by which the artifact identifies content; also for other data that must be identified or checked for damage.
//!
//! BLAKE3 is a tree over chunks of 1 KiB, so that a device can hash weights in its memory and the host only joins the
//! results:
//!
//! ```text
//! section   │ 64 KiB │ 64 KiB │ 64 KiB │ rest │     a subtree each, hashed on the device (`kernels::checksum`)
//!               v0       v1       v2      v3       32 bytes each
//!                 ╲     ╱          ╲     ╱
//!                   └───────┬───────┘              joined here: the section's hash
//! ```

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

/// Bytes of one subtree; the last one of a section may be shorter.
pub const SUBTREE_BYTES: u64 = 64 << 10;
/// Bytes of one leaf of BLAKE3.
pub const CHUNK_BYTES: u64 = 1 << 10;

/// Which bytes of a section a device is to hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedRange {
    /// Offset of the range in its section, in chunks of [`CHUNK_BYTES`].
    pub first_chunk: u32,
    /// Length of the range.
    pub len_bytes: u32,
    /// The range is the whole section and one subtree, whose value is then the section's hash.
    pub is_root: bool,
}

impl HashedRange {
    /// The words that the kernel reads.
    pub fn to_words(self) -> [u32; 4] {
        [self.first_chunk, self.len_bytes, u32::from(self.is_root), 0]
    }
}

/// The hash of a section.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// A device's result for a section: the values of its subtrees, or its hash if it has only one.
pub fn subtrees(section: &[u8]) -> Vec<ChainingValue> {
    subtrees_in(section.len() as u64, 0, section)
}

/// Values of the subtrees in `chunk`, which begins `offset_bytes` into a section of more than one subtree: chunks can be hashed on
/// several threads.
///
/// # Panics
/// If `offset_bytes` is not a multiple of [`SUBTREE_BYTES`].
pub fn subtrees_at(offset_bytes: u64, chunk: &[u8]) -> Vec<ChainingValue> {
    assert!(offset_bytes.is_multiple_of(SUBTREE_BYTES), "a chunk of whole subtrees begins at {offset_bytes}");
    let parts = chunk.chunks(SUBTREE_BYTES as usize).zip((offset_bytes..).step_by(SUBTREE_BYTES as usize));
    let value = |(part, offset_bytes): (&[u8], u64)| {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(offset_bytes);
        hasher.update(part);
        hasher.finalize_non_root()
    };
    parts.map(value).collect()
}

/// Values of the subtrees in `chunk`, which begins `offset_bytes` into a section of `len_bytes`. Where the section is one subtree, that is
/// its hash.
///
/// # Panics
/// As [`subtrees_at`].
pub fn subtrees_in(len_bytes: u64, offset_bytes: u64, chunk: &[u8]) -> Vec<ChainingValue> {
    if len_bytes <= SUBTREE_BYTES { vec![hash(chunk)] } else { subtrees_at(offset_bytes, chunk) }
}

/// The hash of a section from its subtrees' values in order; the value of a single one is already the hash.
pub fn join(mut values: Vec<ChainingValue>) -> [u8; 32] {
    while values.len() > 2 {
        let join = |pair: &[ChainingValue]| match pair {
            [left, right] => merge_subtrees_non_root(left, right, Mode::Hash),
            // An unpaired subtree moves up one level.
            _ => pair[0],
        };
        values = values.chunks(2).map(join).collect();
    }
    match values[..] {
        [left, right] => *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes(),
        [only] => only,
        _ => hash(&[]),
    }
}

/// Adds bytes to a hasher: [`on_this_thread`], or the function of a caller with a thread pool, such as blake3's `update_rayon`.
pub type Update = fn(&mut blake3::Hasher, &[u8]);

/// [`Update`] on the calling thread.
pub fn on_this_thread(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(bytes);
}

/// BLAKE3 of `parts`, each with its length, so that different lists of parts have different hashes.
pub fn hash_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtrees_join_to_the_hash() {
        let bytes: Vec<u8> = (0..700_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in [1, 64 << 10, (64 << 10) + 1, 128 << 10, 200_000, 5 * (64 << 10), 700_001] {
            assert_eq!(join(subtrees(&bytes[..len])), hash(&bytes[..len]), "{len} bytes");
            let chunk_bytes = 2 * SUBTREE_BYTES as usize;
            let chunks = bytes[..len].chunks(chunk_bytes).zip((0..).step_by(chunk_bytes));
            let values: Vec<ChainingValue> = chunks.flat_map(|(chunk, at)| subtrees_at(at, chunk)).collect();
            assert!(len as u64 <= SUBTREE_BYTES || join(values) == hash(&bytes[..len]), "{len} bytes in chunks");
        }
    }

    #[test]
    fn where_parts_end_is_part_of_the_hash() {
        assert_ne!(hash_parts([b"ab".as_slice(), b"c"]), hash_parts([b"a".as_slice(), b"bc"]));
        assert_eq!(hash_parts([b"ab".as_slice()]), hash_parts([b"ab".as_slice()]));
    }
}
