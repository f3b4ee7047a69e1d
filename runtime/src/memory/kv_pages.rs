//! Pages of the KV cache: which are free, and each sequence's block tables. Bookkeeping only, no Vulkan.
//!
//! ```text
//! position    0 1 2 3 │ 4 5 6 7 │ 8 9 ..      page_tokens = 4
//! logical        0    │    1    │   2
//! physical       7    │    2    │   5         index in the group's pool, the same in all its layers
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use unicorn_artifact::KvGroupPlan;

/// Free pages of one KV group.
pub struct PagePool {
    pages: u32,
    free: Vec<u32>,
    in_use: PagesInUse,
}

/// The pools of one engine, one a KV group. Sequences share them, and give their pages back without the engine.
#[derive(Clone)]
pub struct PagePools(Arc<Mutex<Vec<PagePool>>>);

impl PagePools {
    pub fn new(pools: Vec<PagePool>) -> PagePools {
        PagePools(Arc::new(Mutex::new(pools)))
    }

    /// Held for as long as it takes to take pages or give them back.
    pub fn lock(&self) -> MutexGuard<'_, Vec<PagePool>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Number of pages that sequences hold in all pools. Clones share the count; any thread may read it.
#[derive(Clone, Default)]
pub struct PagesInUse(Arc<AtomicU32>);

impl PagesInUse {
    /// Pages in use now.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl PagePool {
    /// A pool of `pages` free pages; the lowest is allocated first.
    pub fn new(pages: u32, in_use: &PagesInUse) -> PagePool {
        PagePool { pages, free: (0..pages).rev().collect(), in_use: in_use.clone() }
    }

    /// The pool has pages for the longest sequence in every slot, so that an empty pool is a bug.
    fn allocate(&mut self) -> u32 {
        self.in_use.0.fetch_add(1, Ordering::Relaxed);
        self.free.pop().expect("pool holds pages for every slot's longest sequence")
    }

    fn release(&mut self, page: Option<u32>) {
        self.in_use.0.fetch_sub(page.iter().len() as u32, Ordering::Relaxed);
        self.free.extend(page);
    }
}

impl Drop for PagePool {
    /// Pages of a lost device count as released with their pool.
    fn drop(&mut self) {
        self.in_use.0.fetch_sub(self.pages - self.free.len() as u32, Ordering::Relaxed);
    }
}

/// Pages that one sequence holds of one KV group: a contiguous range of logical pages.
pub struct BlockTable {
    page_tokens: u32,
    window_tokens: Option<u32>,
    /// Logical page of `pages[0]`.
    first_page: u32,
    pages: VecDeque<u32>,
}

impl BlockTable {
    /// An empty table that reserves space for `max_pages`, its limit.
    pub fn new(group: &KvGroupPlan, max_pages: u32) -> BlockTable {
        BlockTable {
            page_tokens: group.page_tokens,
            window_tokens: group.window_tokens,
            first_page: 0,
            pages: VecDeque::with_capacity(max_pages as usize),
        }
    }

    /// Prepares a step that appends positions `rows`: first releases the pages that none of its rows attends to, then
    /// allocates the missing ones. `allocated` is called with each new (logical, physical) page.
    pub fn advance(&mut self, pool: &mut PagePool, rows: Range<u32>, mut allocated: impl FnMut(u32, u32)) {
        let oldest_visible = self.oldest_visible(rows.start);
        while !self.pages.is_empty() && (self.first_page + 1) * self.page_tokens <= oldest_visible {
            pool.release(self.pages.pop_front());
            self.first_page += 1;
        }
        for logical in self.end_page()..rows.end.div_ceil(self.page_tokens) {
            let physical = pool.allocate();
            self.pages.push_back(physical);
            allocated(logical, physical);
        }
    }

    /// First position whose K and V are still held.
    pub fn kept_from(&self) -> u32 {
        self.first_page * self.page_tokens
    }

    /// Whether everything that a row at `position` attends to is still held.
    pub fn can_continue_at(&self, position: u32) -> bool {
        position == 0 || self.oldest_visible(position) >= self.kept_from()
    }

    /// Releases positions from `len_tokens` on. [`BlockTable::can_continue_at`] must hold for `len_tokens`.
    pub fn truncate(&mut self, pool: &mut PagePool, len_tokens: u32) {
        let end_page = len_tokens.div_ceil(self.page_tokens);
        while self.end_page() > end_page && !self.pages.is_empty() {
            pool.release(self.pages.pop_back());
        }
        if len_tokens == 0 {
            self.first_page = 0;
        }
    }

    /// Empties the table without releasing pages, for a pool that no longer exists.
    pub fn forget(&mut self) {
        self.pages.clear();
        self.first_page = 0;
    }

    /// First position that a row at `position` attends to: a window includes the row itself.
    fn oldest_visible(&self, position: u32) -> u32 {
        self.window_tokens.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    fn end_page(&self) -> u32 {
        self.first_page + self.pages.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use unicorn_artifact::Tier;

    fn group(window_tokens: Option<u32>) -> KvGroupPlan {
        KvGroupPlan {
            window_tokens,
            n_layers: 1,
            page_tokens: 4,
            page_bytes: 256,
            tier: Tier::Vram,
            reason: String::new(),
        }
    }

    #[test]
    fn a_group_without_a_window_keeps_all_pages_until_it_is_truncated() {
        let mut pool = PagePool::new(5, &PagesInUse::default());
        let mut table = BlockTable::new(&group(None), 5);
        let mut allocated = Vec::new();
        table.advance(&mut pool, 0..3, |logical, physical| allocated.push((logical, physical)));
        table.advance(&mut pool, 3..4, |_, _| panic!("position 3 is on the first page"));
        table.advance(&mut pool, 4..17, |logical, physical| allocated.push((logical, physical)));
        assert_eq!(allocated, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
        assert_eq!((pool.free.len(), table.kept_from()), (0, 0));
        table.truncate(&mut pool, 8);
        assert_eq!(pool.free.len(), 3);
        table.truncate(&mut pool, 0);
        assert_eq!(pool.free.len(), 5);
    }

    #[test]
    fn a_window_keeps_exactly_what_the_next_row_attends_to() {
        let window = 6;
        let mut pool = PagePool::new(4, &PagesInUse::default());
        let mut table = BlockTable::new(&group(Some(window)), 4);
        for position in 0..100u32 {
            table.advance(&mut pool, position..position + 1, |_, _| ());
            let oldest = (position + 1).saturating_sub(window);
            assert_eq!(table.kept_from(), oldest / 4 * 4, "at position {position}");
            assert_eq!(table.end_page(), position / 4 + 1);
        }
    }

    #[test]
    fn any_chunking_stays_within_the_planned_pages() {
        for (window, chunk, context) in [(6, 8, 64), (1, 1, 64), (4, 3, 61), (7, 16, 50)] {
            let group = group(Some(window));
            let limit = group.pages_per_sequence(context, chunk);
            let mut pool = PagePool::new(limit, &PagesInUse::default());
            let mut table = BlockTable::new(&group, limit);
            let mut position = 0;
            while position < context {
                let end = context.min(position + 1 + (position * 7) % chunk);
                table.advance(&mut pool, position..end, |_, _| ());
                assert_eq!(pool.free.len() + table.pages.len(), limit as usize);
                position = end;
            }
        }
    }

    #[test]
    fn sequences_never_share_a_page() {
        let group = group(None);
        let mut pool = PagePool::new(10, &PagesInUse::default());
        let mut tables = [BlockTable::new(&group, 5), BlockTable::new(&group, 5)];
        let mut seen = BTreeSet::new();
        for step in 0..5 {
            for table in &mut tables {
                table.advance(&mut pool, step * 4..step * 4 + 4, |_, physical| assert!(seen.insert(physical)));
            }
        }
        assert_eq!(seen.len(), 10);
    }

    #[test]
    fn a_window_cannot_continue_at_released_positions() {
        let mut pool = PagePool::new(4, &PagesInUse::default());
        let mut table = BlockTable::new(&group(Some(6)), 4);
        for position in 0..20 {
            table.advance(&mut pool, position..position + 1, |_, _| ());
        }
        // Row 19 attends to 14 to 19, so pages from position 12 on are held; row 17 attends to 12 to 17.
        assert!(table.can_continue_at(17) && !table.can_continue_at(16) && table.can_continue_at(0));
        table.truncate(&mut pool, 17);
        table.advance(&mut pool, 17..18, |_, _| panic!("the page of position 17 was kept"));
        table.truncate(&mut pool, 0);
        assert_eq!((pool.free.len(), table.kept_from()), (4, 0));
    }
}
