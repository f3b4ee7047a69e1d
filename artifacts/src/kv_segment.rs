//! A part of a sequence's KV cache as a file, from which another process of the same model continues. Segments of one sequence
//! follow each other; each begins where its parent ends:
//!
//! ```text
//! file    magic │ length of the record │ BLAKE3 of the record │ record │ payload
//! payload of each KV group, of each of its layers: K of all pages, V of all pages
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::ParseError;
use crate::hash::{hash, hash_parts, join};
use crate::plan::KvGroupPlan;

/// What a segment is, and what its payload holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvSegment {
    /// Hash of the artifact whose model computed it.
    pub artifact: [u8; 32],
    /// Target whose kernels computed it.
    pub target: String,
    /// [`KvSegment::key`] of the segment that it follows; `None`: it begins the sequence.
    pub parent: Option<[u8; 32]>,
    /// Position of its first token.
    pub first_token: u32,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The steps that appended them, from which they can be computed again bit for bit.
    pub steps: Vec<KvStep>,
    /// Pages of the payload, one entry a KV group of the plan.
    pub groups: Vec<KvPages>,
    /// BLAKE3 of the payload.
    pub payload_hash: [u8; 32],
}

/// A step that appended tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvStep {
    /// Index of the target's program.
    pub program: u32,
    /// Tokens that it appended.
    pub n_tokens: u32,
    /// Variant of LongRoPE's frequencies; 0 for models without variants.
    pub rope_variant: u32,
}

/// Consecutive pages of one KV group: those of the segment's tokens, or, of a sliding window or recurrent state, those that the
/// token after the segment depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvPages {
    /// Number of the first page in the sequence.
    pub first_page: u32,
    /// Number of pages.
    pub n_pages: u32,
}

/// Why a file is no segment, or not one of this model.
#[derive(Debug)]
pub enum SegmentError {
    /// It cannot be read.
    Io(io::Error),
    /// Its bytes are not those of a segment.
    Damaged(ParseError),
}

const MAGIC: [u8; 8] = *b"UNIKVC1\n";
/// Magic, length and hash.
const HEAD_BYTES: u64 = 8 + 8 + 32;
/// Largest record: 4 million tokens, each appended by a step of its own.
const MAX_RECORD_BYTES: u64 = 64 << 20;

impl KvSegment {
    /// Position after its last token.
    pub fn end(&self) -> u32 {
        self.first_token.saturating_add(self.tokens.len() as u32)
    }

    /// Identifies its tokens, those before them and what computed them.
    pub fn key(&self) -> [u8; 32] {
        let variants: Vec<(u32, u32)> = self.steps.iter().map(|step| (step.n_tokens, step.rope_variant)).collect();
        let parts = [codec::encode(&self.parent), codec::encode(&self.tokens), codec::encode(&variants)];
        hash_parts([&self.artifact, self.target.as_bytes()].into_iter().chain(parts.iter().map(Vec::as_slice)))
    }

    /// Writes the file. The payload's hash becomes that of `payload`.
    ///
    /// # Errors
    /// Those of `file`.
    pub fn write(&mut self, payload: &[u8], file: &mut impl Write) -> io::Result<()> {
        self.payload_hash = hash(payload);
        let record = codec::encode(self);
        for part in [&MAGIC, &(record.len() as u64).to_le_bytes(), &hash(&record)[..], &record, payload] {
            file.write_all(part)?;
        }
        Ok(())
    }

    /// Reads the record of a file, without the payload.
    ///
    /// # Errors
    /// When it cannot be read, and when it is not the record of a segment.
    pub fn read(file: &mut impl Read) -> Result<KvSegment, SegmentError> {
        let mut head = [0; HEAD_BYTES as usize];
        file.read_exact(&mut head)?;
        let (magic, rest) = head.split_at(8);
        let (length, expected) = rest.split_at(8);
        if magic != MAGIC {
            return Err(
                ParseError::invalid("magic of a KV segment", format!("{MAGIC:02x?}"), format!("{magic:02x?}")).into()
            );
        }
        let length = u64::from_le_bytes(length.try_into().expect("8 bytes"));
        if length > MAX_RECORD_BYTES {
            return Err(ParseError::invalid(
                "record of a KV segment",
                format!("at most {MAX_RECORD_BYTES} bytes"),
                length,
            )
            .into());
        }
        let mut record = Vec::new();
        file.take(length).read_to_end(&mut record)?;
        if record.len() as u64 != length || hash(&record) != *expected {
            return Err(ParseError::invalid("record of a KV segment", "the bytes of its hash", "others").into());
        }
        let segment: KvSegment = codec::decode("KV segment", &record)?;
        segment.check()?;
        Ok(segment)
    }

    /// Where the payload begins in the file that this record was read from, which holds `len_bytes` of it.
    ///
    /// # Errors
    /// When the file has another length.
    pub fn payload_begin(&self, file: &File, len_bytes: u64) -> Result<u64, SegmentError> {
        let begin = HEAD_BYTES + codec::encode(self).len() as u64;
        let found = file.metadata()?.len();
        if found != begin + len_bytes {
            return Err(ParseError::invalid("length of a KV segment", begin + len_bytes, found).into());
        }
        Ok(begin)
    }

    /// Whether a payload is the segment's, by the values of its subtrees in order ([`subtrees_in`](crate::hash::subtrees_in)).
    pub fn has_payload(&self, subtrees: Vec<[u8; 32]>) -> bool {
        join(subtrees) == self.payload_hash
    }

    /// Whether its pages are those that a sequence of a model with these groups has.
    ///
    /// # Errors
    /// Naming the group and what its pages would have to be.
    pub fn check_groups(&self, groups: &[KvGroupPlan]) -> Result<(), ParseError> {
        if self.groups.len() != groups.len() {
            return Err(ParseError::invalid("KV groups of a segment", groups.len(), self.groups.len()));
        }
        for (index, (pages, group)) in self.groups.iter().zip(groups).enumerate() {
            let expected = pages_of(group, self.first_token..self.end());
            let found = pages.first_page..pages.first_page.saturating_add(pages.n_pages);
            let is_right = match group.window_tokens {
                // Some pages behind the window may be there, too.
                Some(_) => found.end == expected.end && found.start <= expected.start,
                None => found == expected,
            };
            if !is_right {
                let what = format!("pages of KV group {index} of a segment");
                return Err(ParseError::invalid(what, format!("{expected:?}"), format!("{found:?}")));
            }
        }
        Ok(())
    }

    /// Bytes of the payload for a model with these groups.
    pub fn payload_bytes(&self, groups: &[KvGroupPlan]) -> u64 {
        self.groups.iter().zip(groups).map(|(pages, group)| group.bytes(pages.n_pages)).sum()
    }

    fn check(&self) -> Result<(), ParseError> {
        let in_steps: u64 = self.steps.iter().map(|step| u64::from(step.n_tokens)).sum();
        let (n_tokens, end) = (self.tokens.len() as u64, u64::from(self.first_token) + self.tokens.len() as u64);
        if in_steps != n_tokens || self.steps.iter().any(|step| step.n_tokens == 0) {
            return Err(ParseError::invalid("tokens of the steps of a KV segment", n_tokens, in_steps));
        }
        if n_tokens == 0 || end > u64::from(u32::MAX) {
            return Err(ParseError::invalid("tokens of a KV segment", "1 to 2^32 - 1", end));
        }
        if self.parent.is_none() != (self.first_token == 0) {
            let expected = if self.parent.is_none() { "0" } else { "more than 0" };
            return Err(ParseError::invalid("first token of a KV segment", expected, self.first_token));
        }
        Ok(())
    }
}

/// Pages of a segment of these tokens: those of its tokens; of a sliding window or recurrent state, those that the next token depends
/// on.
pub fn pages_of(group: &KvGroupPlan, tokens: Range<u32>) -> Range<u32> {
    let end = tokens.end.div_ceil(group.page_tokens);
    match group.window_tokens {
        Some(window) => (tokens.end + 1).saturating_sub(window) / group.page_tokens..end,
        None => tokens.start / group.page_tokens..end,
    }
}

impl From<io::Error> for SegmentError {
    fn from(error: io::Error) -> SegmentError {
        SegmentError::Io(error)
    }
}

impl From<ParseError> for SegmentError {
    fn from(error: ParseError) -> SegmentError {
        SegmentError::Damaged(error)
    }
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentError::Io(error) => error.fmt(f),
            SegmentError::Damaged(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::hash::subtrees;
    use crate::plan::{STATE_PAGE_TOKENS, Tier};

    fn group(window_tokens: Option<u32>, page_tokens: u32) -> KvGroupPlan {
        KvGroupPlan { window_tokens, n_layers: 2, page_tokens, page_bytes: 8, tier: Tier::Vram, reason: String::new() }
    }

    fn groups() -> [KvGroupPlan; 3] {
        [group(None, 4), group(Some(6), 4), group(None, STATE_PAGE_TOKENS)]
    }

    fn segment() -> KvSegment {
        let step = |n_tokens| KvStep { program: 1, n_tokens, rope_variant: 0 };
        let pages = |first_page, n_pages| KvPages { first_page, n_pages };
        KvSegment {
            artifact: [7; 32],
            target: "generic".into(),
            parent: Some([1; 32]),
            first_token: 10,
            tokens: (0..7).collect(),
            steps: vec![step(5), step(1), step(1)],
            // Positions 8 to 17 are on pages 2 to 4; row 17 attends to 12 to 17.
            groups: vec![pages(2, 3), pages(3, 2), pages(0, 1)],
            payload_hash: [0; 32],
        }
    }

    fn written(segment: &mut KvSegment, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        segment.write(payload, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_segment_is_read_as_it_was_written() {
        let mut segment = segment();
        assert!(segment.check_groups(&groups()).is_ok());
        let payload = vec![5; segment.payload_bytes(&groups()) as usize];
        assert_eq!(payload.len(), 2 * 8 * 2 * 6);
        let bytes = written(&mut segment, &payload);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let read = KvSegment::read(&mut &file).unwrap();
        assert_eq!((&read, read.key()), (&segment, segment.key()));
        assert_eq!(&bytes[read.payload_begin(&file, payload.len() as u64).unwrap() as usize..], payload);
        let has = |payload: &[u8]| read.has_payload(subtrees(payload));
        assert!(has(&payload) && !has(&payload[1..]) && !has(&[&[6], &payload[1..]].concat()));
        file.set_len(bytes.len() as u64 - 1).unwrap();
        assert!(read.payload_begin(&file, payload.len() as u64).is_err());
    }

    #[test]
    fn a_record_that_was_changed_anywhere_is_refused() {
        let bytes = written(&mut segment(), &[]);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(KvSegment::read(&mut &changed[..]).is_err(), "byte {at}");
            assert!(KvSegment::read(&mut &bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn what_no_sequence_has_is_refused() {
        let changes: [fn(&mut KvSegment); 6] = [
            |segment| segment.steps[0].n_tokens = 4,
            |segment| segment.steps.push(KvStep { program: 0, n_tokens: 0, rope_variant: 0 }),
            |segment| segment.parent = None,
            |segment| segment.first_token = 0,
            |segment| segment.first_token = u32::MAX - 3,
            |segment| (segment.tokens, segment.steps) = (Vec::new(), Vec::new()),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut segment = segment();
            change(&mut segment);
            let bytes = written(&mut segment, &[]);
            assert!(KvSegment::read(&mut &bytes[..]).is_err(), "change {number}");
        }
        let changes: [fn(&mut KvSegment); 6] = [
            |segment| segment.groups.truncate(2),
            |segment| segment.groups[0].first_page = 1,
            |segment| segment.groups[0].n_pages = u32::MAX,
            |segment| segment.groups[1].n_pages = 1,
            |segment| segment.groups[1].first_page = 4,
            |segment| segment.groups[2].n_pages = 0,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut segment = segment();
            change(&mut segment);
            assert!(segment.check_groups(&groups()).is_err(), "change of groups {number}");
        }
    }

    #[test]
    fn keys_differ_by_what_computed_the_tokens() {
        let key = segment().key();
        let changes: [fn(&mut KvSegment); 5] = [
            |segment| segment.artifact[0] ^= 1,
            |segment| segment.target = "nvidia".into(),
            |segment| segment.parent = None,
            |segment| segment.tokens[0] = 9,
            |segment| segment.steps[0].rope_variant = 1,
        ];
        for change in changes {
            let mut other = segment();
            change(&mut other);
            assert_ne!(other.key(), key);
        }
    }
}
