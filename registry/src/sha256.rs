//! The hash by which OCI names content.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};
use unicorn_artifact::header::hex;

/// Begin of every digest.
const ALGORITHM: &str = "sha256:";
/// Bytes that are read at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// `sha256:` and 64 digits.
pub fn digest(bytes: &[u8]) -> String {
    in_words(Sha256::digest(bytes).as_slice())
}

/// The digest of a hasher's input.
pub fn finish(hasher: Sha256) -> String {
    in_words(hasher.finalize().as_slice())
}

/// The digest of a range of a file.
pub fn digest_in(file: &File, offset_bytes: u64, len_bytes: u64) -> io::Result<String> {
    Ok(in_words(&hash_in(file, offset_bytes, len_bytes)?))
}

/// SHA-256 of a range of a file.
pub fn hash_in(file: &File, offset_bytes: u64, len_bytes: u64) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES.min(len_bytes) as usize];
    let mut done = 0;
    while done < len_bytes {
        let now = (len_bytes - done).min(PIECE_BYTES) as usize;
        file.read_exact_at(&mut piece[..now], offset_bytes + done)?;
        hasher.update(&piece[..now]);
        done += now as u64;
    }
    Ok(hasher.finalize().into())
}

/// The 64 digits of a digest; `None`: it is not a digest of this algorithm.
pub fn digits(digest: &str) -> Option<&str> {
    let digits = digest.strip_prefix(ALGORITHM)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (digits.len() == 64 && digits.bytes().all(is_digit)).then_some(digits)
}

fn in_words(hash: &[u8]) -> String {
    format!("{ALGORITHM}{}", hex(hash))
}
