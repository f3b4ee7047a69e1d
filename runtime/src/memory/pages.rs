//! Pages of the KV cache: who holds which. Pure bookkeeping, no Vulkan.
//!
//! ```text
//! position    0 1 2 3 │ 4 5 6 7 │ 8 9 ..      page_tokens = 4
//! logical        0    │    1    │   2
//! physical       7    │    2    │   5         a page of the group's pool, the same in all its layers
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use unicorn_artifact::KvGroupPlan;

/// Pages of one KV group that no sequence holds.
pub struct PagePool {
    pages: u32,
    free: Vec<u32>,
    held: HeldPages,
}

/// Pages that sequences hold, of all pools, for whoever watches.
#[derive(Clone, Default)]
pub struct HeldPages(Arc<AtomicU32>);

impl HeldPages {
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl PagePool {
    /// All of `pages` free; the lowest is given out first.
    pub fn new(pages: u32, held: &HeldPages) -> PagePool {
        PagePool { pages, free: (0..pages).rev().collect(), held: held.clone() }
    }

    /// The pool has pages for every slot's longest sequence, so an empty one is our own mistake.
    fn take(&mut self) -> u32 {
        self.held.0.fetch_add(1, Ordering::Relaxed);
        self.free.pop().expect("pool holds pages for every slot's longest sequence")
    }

    fn give_back(&mut self, page: Option<u32>) {
        self.held.0.fetch_sub(page.iter().len() as u32, Ordering::Relaxed);
        self.free.extend(page);
    }
}

impl Drop for PagePool {
    /// A pool that goes with its device takes the pages along that sequences hold.
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.pages - self.free.len() as u32, Ordering::Relaxed);
    }
}

/// The pages that one sequence holds of one KV group, as a contiguous range of logical pages.
pub struct BlockTable {
    page_tokens: u32,
    window_tokens: Option<u32>,
    /// Logical page of `pages[0]`.
    first_page: u32,
    pages: VecDeque<u32>,
}

impl BlockTable {
    /// An empty table that will not grow beyond `max_pages`, which it reserves.
    pub fn new(group: &KvGroupPlan, max_pages: u32) -> BlockTable {
        BlockTable {
            page_tokens: group.page_tokens,
            window_tokens: group.window_tokens,
            first_page: 0,
            pages: VecDeque::with_capacity(max_pages as usize),
        }
    }

    /// Prepares a step that appends positions `rows`: first gives back the pages that no row of it can see any more, then
    /// takes what is missing. `taken` hears of each new (logical, physical) page.
    pub fn advance(&mut self, pool: &mut PagePool, rows: Range<u32>, mut taken: impl FnMut(u32, u32)) {
        let oldest_seen = self.oldest_seen(rows.start);
        while !self.pages.is_empty() && (self.first_page + 1) * self.page_tokens <= oldest_seen {
            pool.give_back(self.pages.pop_front());
            self.first_page += 1;
        }
        for logical in self.end_page()..rows.end.div_ceil(self.page_tokens) {
            let physical = pool.take();
            self.pages.push_back(physical);
            taken(logical, physical);
        }
    }

    /// First position whose key and value are still there.
    pub fn kept_from(&self) -> u32 {
        self.first_page * self.page_tokens
    }

    /// Whether a row appended at `position` would find all that it attends to.
    pub fn can_continue_at(&self, position: u32) -> bool {
        position == 0 || self.oldest_seen(position) >= self.kept_from()
    }

    /// Forgets positions from `len_tokens` on. The caller has asked [`BlockTable::can_continue_at`].
    pub fn truncate(&mut self, pool: &mut PagePool, len_tokens: u32) {
        let end_page = len_tokens.div_ceil(self.page_tokens);
        while self.end_page() > end_page && !self.pages.is_empty() {
            pool.give_back(self.pages.pop_back());
        }
        if len_tokens == 0 {
            self.first_page = 0;
        }
    }

    /// Empties the table of pages whose pool is gone.
    pub fn forget(&mut self) {
        self.pages.clear();
        self.first_page = 0;
    }

    /// First position that a row at `position` attends to: windows count the row itself.
    fn oldest_seen(&self, position: u32) -> u32 {
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
    fn a_full_group_keeps_everything_and_gives_it_back() {
        let mut pool = PagePool::new(5, &HeldPages::default());
        let mut table = BlockTable::new(&group(None), 5);
        let mut taken = Vec::new();
        table.advance(&mut pool, 0..3, |logical, physical| taken.push((logical, physical)));
        table.advance(&mut pool, 3..4, |_, _| panic!("position 3 is on the first page"));
        table.advance(&mut pool, 4..17, |logical, physical| taken.push((logical, physical)));
        assert_eq!(taken, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
        assert_eq!((pool.free.len(), table.kept_from()), (0, 0));
        table.truncate(&mut pool, 8);
        assert_eq!(pool.free.len(), 3);
        table.truncate(&mut pool, 0);
        assert_eq!(pool.free.len(), 5);
    }

    #[test]
    fn a_window_keeps_exactly_what_the_next_row_sees() {
        let window = 6;
        let mut pool = PagePool::new(4, &HeldPages::default());
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
            let mut pool = PagePool::new(limit, &HeldPages::default());
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
        let mut pool = PagePool::new(10, &HeldPages::default());
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
    fn a_window_refuses_to_go_back_to_what_it_forgot() {
        let mut pool = PagePool::new(4, &HeldPages::default());
        let mut table = BlockTable::new(&group(Some(6)), 4);
        for position in 0..20 {
            table.advance(&mut pool, position..position + 1, |_, _| ());
        }
        // Row 19 sees 14 to 19, so pages from position 12 on are left; row 17 sees 12 to 17.
        assert!(table.can_continue_at(17) && !table.can_continue_at(16) && table.can_continue_at(0));
        table.truncate(&mut pool, 17);
        table.advance(&mut pool, 17..18, |_, _| panic!("the page of position 17 was kept"));
        table.truncate(&mut pool, 0);
        assert_eq!((pool.free.len(), table.kept_from()), (4, 0));
    }
}
