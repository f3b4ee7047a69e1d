//! The bytes of a kept conversation's pages, read from its file and hashed on the way.

use std::fs::File;
use std::os::unix::fs::FileExt;

use unicorn_artifact::KvSegment;
use unicorn_artifact::hash::subtrees_in;
use unicorn_artifact::kv_segment::SegmentError;

/// Values of subtrees of a payload's hash, one behind the other.
pub type Subtrees = Vec<[u8; 32]>;

/// The payload of a segment's file, read in parts: into memory that is used again and again, since there are systems on which a
/// page that is touched first takes longer than its bytes from the page cache.
pub struct Payload<'s> {
    segment: &'s KvSegment,
    file: File,
    begin: u64,
    len_bytes: u64,
}

impl<'s> Payload<'s> {
    /// The payload of `segment` in its file, which holds `len_bytes` of it.
    ///
    /// # Errors
    /// When the file has another length.
    pub fn open(segment: &'s KvSegment, file: File, len_bytes: u64) -> Result<Payload<'s>, SegmentError> {
        let begin = segment.payload_begin(&file, len_bytes)?;
        Ok(Payload { segment, file, begin, len_bytes })
    }

    /// Bytes of the whole payload.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Reads a part, whole subtrees of the hash or the last ones, and returns their values; `None`: it cannot be read. Threads may read parts at the
    /// same time.
    pub fn read(&self, at: u64, part: &mut [u8]) -> Option<Subtrees> {
        self.file.read_exact_at(part, self.begin + at).ok()?;
        Some(subtrees_in(self.len_bytes, at, part))
    }

    /// Whether this is what was written, by the subtrees of all its parts in order.
    pub fn is_right(&self, subtrees: Subtrees) -> bool {
        self.segment.has_payload(subtrees)
    }
}
