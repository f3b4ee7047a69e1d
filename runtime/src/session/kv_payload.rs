//! The bytes of a kept conversation's pages, read from its file and hashed on the way.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use unicorn_artifact::KvSegment;
use unicorn_artifact::hash::subtrees_in;
use unicorn_artifact::kv_segment::SegmentError;

use crate::parallel;

/// Bytes that a thread reads at a time: whole subtrees of the hash.
const PART_BYTES: usize = 1 << 20;

/// The payload of a segment's file, read part after part: into memory that is used again and again, since there are systems on which a
/// page that is touched first takes longer than its bytes from the page cache.
pub struct Payload<'s> {
    segment: &'s KvSegment,
    file: File,
    begin: u64,
    len_bytes: u64,
    /// Bytes that were read.
    done: u64,
    /// Values of their subtrees.
    subtrees: Vec<[u8; 32]>,
}

impl<'s> Payload<'s> {
    /// The payload of `segment` in its file, which holds `len_bytes` of it.
    ///
    /// # Errors
    /// When the file has another length.
    pub fn open(segment: &'s KvSegment, file: File, len_bytes: u64) -> Result<Payload<'s>, SegmentError> {
        let begin = segment.payload_begin(&file, len_bytes)?;
        Ok(Payload { segment, file, begin, len_bytes, done: 0, subtrees: Vec::new() })
    }

    /// Bytes of the whole payload.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Reads the next bytes on all cores, whole subtrees of the hash or the last ones; false: they cannot be read.
    pub fn read(&mut self, bytes: &mut [u8]) -> bool {
        let parts: Vec<Mutex<&mut [u8]>> = bytes.chunks_mut(PART_BYTES).map(Mutex::new).collect();
        let read = |number: usize| {
            let mut part = parts[number].lock().unwrap_or_else(PoisonError::into_inner);
            let at = self.done + (number * PART_BYTES) as u64;
            self.file.read_exact_at(&mut part, self.begin + at).ok()?;
            Some(subtrees_in(self.len_bytes, at, &part))
        };
        let read: Option<Vec<_>> = parallel::map(parts.len(), read).into_iter().collect();
        drop(parts);
        self.done += bytes.len() as u64;
        read.map(|subtrees| self.subtrees.extend(subtrees.concat())).is_some()
    }

    /// Whether all of it was read, and is what was written.
    pub fn is_right(self) -> bool {
        self.done == self.len_bytes && self.segment.has_payload(self.subtrees)
    }
}
