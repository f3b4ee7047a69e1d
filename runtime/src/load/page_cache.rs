//! Releases the artifact's pages from the system's page cache once they have been read, unless memory is plentiful: then they stay,
//! so that the next start does not read the disk.
//!
//! The system caches files in pages of up to 2 MiB and drops only whole pages. So the file is released in blocks of that size,
//! each when all of it that will be read has been read, by any thread and in any order.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use unicorn_artifact::MappedFile;

/// Number of bytes of each block of a file that are still to be read.
pub struct PageCache<'a> {
    file: &'a MappedFile,
    /// Bytes of each block that are still to be read.
    left_bytes: Vec<AtomicU64>,
    /// Nothing is released.
    is_kept: bool,
}

/// The page cache is kept where the weights fit into the available memory this number of times: once resident, once in the page cache, and the
/// rest for other programs.
const PLENTIFUL: u64 = 4;

/// Whether the page cache may keep `weight_bytes` of an artifact, given the system's available memory.
pub fn is_plentiful(weight_bytes: u64, available_bytes: Option<u64>) -> bool {
    available_bytes.is_some_and(|available_bytes| available_bytes / PLENTIFUL >= weight_bytes)
}

/// Largest page of the page cache, on x86-64 and on ARM with 4 KiB pages.
const BLOCK_BYTES: u64 = 2 << 20;

impl<'a> PageCache<'a> {
    /// Every byte of `ranges` will be read once, and stays in the page cache if `is_kept`.
    pub fn new(file: &'a MappedFile, ranges: impl IntoIterator<Item = Range<u64>>, is_kept: bool) -> PageCache<'a> {
        let blocks = (file.bytes().len() as u64).div_ceil(BLOCK_BYTES);
        let left_bytes: Vec<AtomicU64> = (0..blocks).map(|_| AtomicU64::new(0)).collect();
        for (block, bytes) in ranges.into_iter().flat_map(blocks_of) {
            left_bytes[block as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        PageCache { file, left_bytes, is_kept }
    }

    /// Whether reads should leave the file in the page cache.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Counts a part of the ranges as read, and releases the blocks that are complete.
    pub fn mark_read(&self, range: Range<u64>) {
        if self.is_kept {
            return;
        }
        for (block, bytes) in blocks_of(range) {
            // Relaxed: threads share only the count itself.
            if self.left_bytes[block as usize].fetch_sub(bytes, Ordering::Relaxed) == bytes {
                self.file.release_cache(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
            }
        }
    }
}

/// The blocks that a range overlaps, with the number of its bytes in each.
fn blocks_of(range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)).map(move |block| {
        let (begin, end) = (block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        (block, range.end.min(end) - range.start.max(begin))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_kept_where_memory_holds_the_weights_several_times() {
        assert!(is_plentiful(100, Some(400)) && !is_plentiful(100, Some(399)) && !is_plentiful(1, None));
    }

    #[test]
    fn a_range_is_divided_among_the_blocks_that_it_overlaps() {
        let of = |range| blocks_of(range).collect::<Vec<_>>();
        assert_eq!(of(0..BLOCK_BYTES), [(0, BLOCK_BYTES)]);
        assert_eq!(of(5..7), [(0, 2)]);
        assert_eq!(of(BLOCK_BYTES - 1..2 * BLOCK_BYTES + 3), [(0, 1), (1, BLOCK_BYTES), (2, 3)]);
        assert_eq!(of(7..7), [(0, 0)]);
        assert_eq!(of(BLOCK_BYTES..BLOCK_BYTES), []);
    }
}
