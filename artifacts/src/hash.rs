//! The hash that the artifact names content by, for what else must be told apart or found damaged.

/// BLAKE3 of `parts`, each with its length, so that no two lists of parts are hashed alike.
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
    fn where_parts_end_is_part_of_the_hash() {
        assert_ne!(hash_parts([b"ab".as_slice(), b"c"]), hash_parts([b"a".as_slice(), b"bc"]));
        assert_eq!(hash_parts([b"ab".as_slice()]), hash_parts([b"ab".as_slice()]));
    }
}
