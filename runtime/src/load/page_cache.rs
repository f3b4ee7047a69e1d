//! What loading leaves in the system's page cache: nothing that was read in full.
//!
//! A system keeps a file in pages of up to 2 MiB, and drops none of which only a part is to go. So the file is given back
//! in blocks of that size, each when everything of it that will be read has been read, whoever read it and in which order.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use unicorn_artifact::MappedFile;

pub struct PageCache<'a> {
    file: &'a MappedFile,
    /// How many bytes of each block are still to be read.
    left_bytes: Vec<AtomicU64>,
}

/// The largest pages of files, of x86-64 and of ARM with pages of 4 KiB.
const BLOCK_BYTES: u64 = 2 << 20;

impl<'a> PageCache<'a> {
    /// Every byte of `ranges` will be read once.
    pub fn of(file: &'a MappedFile, ranges: impl IntoIterator<Item = Range<u64>>) -> PageCache<'a> {
        let blocks = (file.bytes().len() as u64).div_ceil(BLOCK_BYTES);
        let left_bytes: Vec<AtomicU64> = (0..blocks).map(|_| AtomicU64::new(0)).collect();
        for (block, bytes) in ranges.into_iter().flat_map(shares) {
            left_bytes[block as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        PageCache { file, left_bytes }
    }

    /// A part of them was read.
    pub fn has_been_read(&self, range: Range<u64>) {
        for (block, bytes) in shares(range) {
            // Nothing but the number itself goes from thread to thread.
            if self.left_bytes[block as usize].fetch_sub(bytes, Ordering::Relaxed) == bytes {
                self.file.release_cache(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
            }
        }
    }
}

/// The blocks that a range reaches into, and how many of its bytes are in each.
fn shares(range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)).map(move |block| {
        let (begin, end) = (block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        (block, range.end.min(end) - range.start.max(begin))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_shared_out_over_the_blocks_that_it_reaches_into() {
        let of = |range| shares(range).collect::<Vec<_>>();
        assert_eq!(of(0..BLOCK_BYTES), [(0, BLOCK_BYTES)]);
        assert_eq!(of(5..7), [(0, 2)]);
        assert_eq!(of(BLOCK_BYTES - 1..2 * BLOCK_BYTES + 3), [(0, 1), (1, BLOCK_BYTES), (2, 3)]);
        assert_eq!(of(7..7), [(0, 0)]);
        assert_eq!(of(BLOCK_BYTES..BLOCK_BYTES), []);
    }
}
