//! A text in the bytes of a reply.

/// Where the first `text` in `seen` ends.
pub(super) fn end_of(seen: &[u8], text: &str) -> Option<usize> {
    seen.windows(text.len()).position(|window| window == text.as_bytes()).map(|at| at + text.len())
}
