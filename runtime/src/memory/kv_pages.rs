//! Pages of the KV cache: which are free, and each sequence's block tables. Bookkeeping only, no Vulkan.
//!
//! ```text
//! position    0 1 2 3 │ 4 5 6 7 │ 8 9 ..      page_tokens = 4
//! logical        0    │    1    │   2
//! physical       7    │    2    │   5         index in the group's pool, the same in all its layers
//! ```
//!
//! Sequences that begin with the same tokens may hold the same pages, whole ones only: a page that several hold is never written. A
//! sequence that has ended may keep its pages for those that begin alike: they are not in use, and are given back when pages run out.
//!
//! A page of recurrent state is that of all tokens so far. Each step changes it, so that a sequence continues at the position behind its
//! last step, goes back to a copy of an earlier state (`state_copies`) or starts from zero, and no page of it is shared: a sequence that
//! begins as another one gets a page of its own, and a copy of what was in the other's.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use unicorn_artifact::KvGroupPlan;

/// The pages of one KV group: which are free, and how many sequences hold each of the others.
pub struct PagePool {
    free: Vec<u32>,
    /// Sequences that hold each page; 0: it is free.
    holders: Vec<u32>,
    /// How many of them have ended.
    ended_holders: Vec<u32>,
    /// Pages that ended sequences alone hold.
    n_kept: u32,
    in_use: PagesInUse,
}

/// The pools of one engine, one a KV group. Sequences share them, and give their pages back without the engine.
#[derive(Clone)]
pub struct PagePools(Arc<Mutex<Vec<PagePool>>>);

impl PagePools {
    pub fn new(pools: Vec<PagePool>) -> PagePools {
        PagePools(Arc::new(Mutex::new(pools)))
    }

    /// Locks the pools, for as long as pages are allocated or released.
    pub fn lock(&self) -> MutexGuard<'_, Vec<PagePool>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Number of pages in all pools that sequences hold which have not ended, each counted once. Clones share the count; any thread may read it.
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
        let none = vec![0; pages as usize];
        let free = (0..pages).rev().collect();
        PagePool { free, holders: none.clone(), ended_holders: none, n_kept: 0, in_use: in_use.clone() }
    }

    /// Pages that no sequence holds.
    pub fn n_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages that sequences alone hold which have ended.
    pub fn n_kept(&self) -> u32 {
        self.n_kept
    }

    /// Allocates a page. One must be free.
    fn allocate(&mut self) -> u32 {
        self.in_use.0.fetch_add(1, Ordering::Relaxed);
        let page = self.free.pop().expect("a free page: see BlockTable::can_advance");
        self.holders[page as usize] = 1;
        page
    }

    /// One more sequence holds a page that another one holds.
    fn share(&mut self, page: u32) {
        debug_assert_ne!(self.holders[page as usize], 0, "a free page is shared by nobody");
        if self.is_kept(page) {
            self.n_kept -= 1;
            self.in_use.0.fetch_add(1, Ordering::Relaxed);
        }
        self.holders[page as usize] += 1;
    }

    /// One of the sequences that hold the page has ended, and holds it still.
    fn keep(&mut self, page: u32) {
        self.ended_holders[page as usize] += 1;
        if self.is_kept(page) {
            self.n_kept += 1;
            self.in_use.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A sequence holds the page no more; if it was the last one, the page is free. `has_ended`: it was one that had ended.
    fn release(&mut self, page: u32, has_ended: bool) {
        let was_kept = self.is_kept(page);
        self.ended_holders[page as usize] -= u32::from(has_ended);
        self.holders[page as usize] -= 1;
        let is_free = self.holders[page as usize] == 0;
        match (was_kept, is_free || self.is_kept(page)) {
            (true, _) => self.n_kept -= u32::from(is_free),
            (false, true) => {
                self.n_kept += u32::from(!is_free);
                self.in_use.0.fetch_sub(1, Ordering::Relaxed);
            }
            (false, false) => {}
        }
        if is_free {
            self.free.push(page);
        }
    }

    /// Whether ended sequences alone hold a page.
    fn is_kept(&self, page: u32) -> bool {
        let holders = self.holders[page as usize];
        holders > 0 && holders == self.ended_holders[page as usize]
    }

    fn is_shared(&self, page: u32) -> bool {
        self.holders[page as usize] > 1
    }
}

impl Drop for PagePool {
    /// Pages of a lost device count as released with their pool.
    fn drop(&mut self) {
        let in_use = (self.holders.len() - self.free.len()) as u32 - self.n_kept;
        self.in_use.0.fetch_sub(in_use, Ordering::Relaxed);
    }
}

/// Pages that one sequence holds of one KV group: a contiguous range of logical pages.
pub struct BlockTable {
    page_tokens: u32,
    window_tokens: Option<u32>,
    /// Tokens behind the window whose pages small steps keep as well.
    kept_behind_window: u32,
    /// Logical page of `pages[0]`.
    first_page: u32,
    pages: VecDeque<u32>,
    /// The sequence has ended, and keeps its pages.
    has_ended: bool,
    /// Number of tokens that the recurrent state includes, with those of steps in flight. `None`: these are pages of a KV cache.
    state_at: Option<u32>,
}

/// Most tokens of a step that keeps pages behind a sliding window.
const SMALL_STEP_TOKENS: usize = 8;

impl BlockTable {
    /// An empty table that reserves space for `max_pages`, its limit.
    pub fn new(group: &KvGroupPlan, max_pages: u32) -> BlockTable {
        BlockTable {
            page_tokens: group.page_tokens,
            window_tokens: group.window_tokens,
            kept_behind_window: 0,
            first_page: 0,
            pages: VecDeque::with_capacity(max_pages as usize),
            has_ended: false,
            state_at: group.is_state().then_some(0),
        }
    }

    /// Whether the pool has the pages that [`BlockTable::advance`] allocates, including those that it releases first.
    pub fn can_advance(&self, pool: &PagePool, rows: Range<u32>) -> bool {
        let oldest_kept = self.oldest_kept(&rows);
        let ends = (self.first_page + 1..).map(|end| end * self.page_tokens);
        let released = self.pages.iter().zip(ends).take_while(|(_, end)| *end <= oldest_kept);
        let n_freed = released.filter(|(page, _)| !pool.is_shared(**page)).count() as u32;
        let wanted = rows.end.div_ceil(self.page_tokens).saturating_sub(self.end_page());
        wanted <= pool.n_free() + n_freed
    }

    /// Physical pages that the sequence holds.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.pages.iter().copied()
    }

    /// Number of pages that no other sequence holds but ended ones.
    pub fn n_exclusive_pages(&self, pool: &PagePool) -> u32 {
        let holders = |page: u32| pool.holders[page as usize] - pool.ended_holders[page as usize];
        self.pages.iter().filter(|&&page| holders(page) == 1).count() as u32
    }

    /// Prepares a step that appends positions `rows`: first releases the pages that none of its rows attends to, then
    /// allocates the missing ones, which the pool has. `allocated` is called with each new (logical, physical) page.
    pub fn advance(&mut self, pool: &mut PagePool, rows: Range<u32>, mut allocated: impl FnMut(u32, u32)) {
        debug_assert!(
            !self.is_inside_shared_page(pool, rows.start),
            "a page that several sequences hold is not written"
        );
        if let Some(state_at) = &mut self.state_at {
            // Steps in flight may have continued it.
            *state_at = if rows.start == 0 { rows.end } else { rows.end.max(*state_at) };
        }
        let oldest_kept = self.oldest_kept(&rows);
        while !self.pages.is_empty() && (self.first_page + 1) * self.page_tokens <= oldest_kept {
            self.pages.pop_front().into_iter().for_each(|page| pool.release(page, self.has_ended));
            self.first_page += 1;
        }
        for logical in self.end_page()..rows.end.div_ceil(self.page_tokens) {
            let physical = pool.allocate();
            self.pages.push_back(physical);
            allocated(logical, physical);
        }
    }

    /// From now on, small steps keep this number of tokens behind a sliding window, so that the sequence can go back by as many.
    pub fn keep_behind_window(&mut self, n_tokens: u32) {
        self.kept_behind_window = n_tokens;
    }

    /// First position whose K and V are still held; for recurrent state, the only position at which it can continue.
    pub fn kept_from(&self) -> u32 {
        self.state_at.unwrap_or(self.first_page * self.page_tokens)
    }

    /// Whether everything that a row at `position` depends on is still held.
    pub fn can_continue_at(&self, position: u32) -> bool {
        match self.state_at {
            _ if position == 0 => true,
            Some(state_at) => position == state_at,
            None => self.oldest_visible(position) >= self.kept_from(),
        }
    }

    /// Whether its page is recurrent state.
    pub fn is_state(&self) -> bool {
        self.state_at.is_some()
    }

    /// Recurrent state is that of the tokens before `position`: the step that [`BlockTable::advance`] prepared last does not run, or the state
    /// is kept elsewhere.
    pub fn keep_state_at(&mut self, position: u32) {
        self.state_at = self.state_at.map(|_| position);
    }

    /// Releases positions from `len_tokens` on. [`BlockTable::can_continue_at`] must hold for `len_tokens`.
    pub fn truncate(&mut self, pool: &mut PagePool, len_tokens: u32) {
        let end_page = len_tokens.div_ceil(self.page_tokens);
        while self.end_page() > end_page && !self.pages.is_empty() {
            self.pages.pop_back().into_iter().for_each(|page| pool.release(page, self.has_ended));
        }
        if len_tokens == 0 {
            self.first_page = 0;
            self.state_at = self.state_at.map(|_| 0);
        }
    }

    /// Whether position `len_tokens` lies on a page that another sequence holds too, so that nothing may be appended there.
    pub fn is_inside_shared_page(&self, pool: &PagePool, len_tokens: u32) -> bool {
        let page = (len_tokens / self.page_tokens).checked_sub(self.first_page);
        page.and_then(|page| self.pages.get(page as usize)).is_some_and(|&page| pool.is_shared(page))
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Holds the pages of `donor` up to `len_tokens`, whole pages, from now on as well, or allocates one for a copy of its recurrent state. The
    /// table is empty. `adopted` is called with each (logical, physical) page.
    pub fn adopt(
        &mut self,
        pool: &mut PagePool,
        donor: &BlockTable,
        len_tokens: u32,
        mut adopted: impl FnMut(u32, u32),
    ) {
        debug_assert!(self.pages.is_empty());
        if self.is_state() {
            return self.restore(pool, 0..1, len_tokens, adopted);
        }
        debug_assert!(len_tokens.is_multiple_of(self.page_tokens));
        self.first_page = donor.first_page;
        for (logical, &physical) in (donor.first_page..len_tokens / self.page_tokens).zip(&donor.pages) {
            pool.share(physical);
            self.pages.push_back(physical);
            adopted(logical, physical);
        }
    }

    /// The sequence has ended, and keeps its pages until the table is truncated.
    pub fn end(&mut self, pool: &mut PagePool) {
        self.has_ended = true;
        self.pages.iter().for_each(|&page| pool.keep(page));
    }

    /// The logical pages that the sequence holds.
    pub fn held(&self) -> Range<u32> {
        self.first_page..self.end_page()
    }

    /// Gives the table, which is empty, the logical `pages`, which the pool has: those of a sequence of `len_tokens`. `allocated` is called
    /// with each (logical, physical) page.
    pub fn restore(
        &mut self,
        pool: &mut PagePool,
        pages: Range<u32>,
        len_tokens: u32,
        mut allocated: impl FnMut(u32, u32),
    ) {
        debug_assert!(self.pages.is_empty() && pages.len() <= pool.n_free() as usize);
        self.first_page = pages.start;
        self.state_at = self.state_at.map(|_| len_tokens);
        for logical in pages {
            let physical = pool.allocate();
            self.pages.push_back(physical);
            allocated(logical, physical);
        }
    }

    /// Empties the table without releasing pages, for a pool that no longer exists.
    pub fn forget(&mut self) {
        self.pages.clear();
        self.first_page = 0;
        self.state_at = self.state_at.map(|_| 0);
    }

    /// First position that a row at `position` attends to: a window includes the row itself.
    fn oldest_visible(&self, position: u32) -> u32 {
        self.window_tokens.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// First position that a step of `rows` keeps. The pages of a sequence are enough for a window and a long step; a small step leaves some.
    fn oldest_kept(&self, rows: &Range<u32>) -> u32 {
        let behind = if rows.len() <= SMALL_STEP_TOKENS { self.kept_behind_window } else { 0 };
        self.oldest_visible(rows.start).saturating_sub(behind)
    }

    fn end_page(&self) -> u32 {
        self.first_page + self.pages.len() as u32
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use unicorn_artifact::Tier;
    use unicorn_artifact::plan::STATE_PAGE_TOKENS;

    pub fn group(window_tokens: Option<u32>) -> KvGroupPlan {
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
    fn a_table_advances_while_the_pool_has_pages() {
        let mut pool = PagePool::new(3, &PagesInUse::default());
        let mut table = BlockTable::new(&group(None), 5);
        assert!(table.can_advance(&pool, 0..12) && !table.can_advance(&pool, 0..13));
        table.advance(&mut pool, 0..12, |_, _| ());
        assert!(table.can_advance(&pool, 11..12) && !table.can_advance(&pool, 12..13));
        assert_eq!((pool.n_free(), table.n_exclusive_pages(&pool), table.pages().count()), (0, 3, 3));
        // A window gives a page back for each that it takes, unless another sequence holds it.
        let mut pool = PagePool::new(3, &PagesInUse::default());
        let mut windowed = BlockTable::new(&group(Some(6)), 5);
        windowed.advance(&mut pool, 0..12, |_, _| ());
        assert!(windowed.can_advance(&pool, 12..13) && !windowed.can_advance(&pool, 12..17));
        let mut other = BlockTable::new(&group(Some(6)), 5);
        other.adopt(&mut pool, &windowed, 4, |_, _| ());
        assert!(!windowed.can_advance(&pool, 12..13));
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

    #[test]
    fn state_continues_behind_its_last_token_alone_and_has_one_page() {
        let state = KvGroupPlan { page_tokens: STATE_PAGE_TOKENS, ..group(None) };
        assert_eq!((state.pages_per_sequence(100_000, 512), state.bytes_read_per_token(100_000)), (1, 512));
        let mut pool = PagePool::new(1, &PagesInUse::default());
        let mut table = BlockTable::new(&state, 1);
        let mut allocated = Vec::new();
        table.advance(&mut pool, 0..7, |logical, physical| allocated.push((logical, physical)));
        table.advance(&mut pool, 7..9, |_, _| panic!("state has one page"));
        assert_eq!(allocated, [(0, 0)]);
        assert!(table.can_continue_at(9) && table.can_continue_at(0));
        assert!([1, 7, 8, 10].iter().all(|&position| !table.can_continue_at(position)));
        // Steps ahead of the sequence bring it further than the sequence may come to be.
        table.advance(&mut pool, 9..13, |_, _| ());
        table.advance(&mut pool, 10..11, |_, _| ());
        assert_eq!((table.kept_from(), table.can_continue_at(11)), (13, false));
        table.keep_state_at(11);
        assert!(table.can_continue_at(11));
        table.truncate(&mut pool, 0);
        assert_eq!((pool.free.len(), table.kept_from()), (1, 0));
        table.advance(&mut pool, 0..2, |_, _| ());
        assert!(table.can_continue_at(2));
    }

    #[test]
    fn a_window_can_keep_tokens_to_go_back_to() {
        let mut pool = PagePool::new(8, &PagesInUse::default());
        let mut table = BlockTable::new(&group(Some(6)), 8);
        table.keep_behind_window(8);
        for position in 0..40 {
            table.advance(&mut pool, position..position + 1, |_, _| ());
            assert!((position.saturating_sub(8)..=position).all(|back| table.can_continue_at(back)), "{position}");
        }
        assert!(!table.can_continue_at(24) && pool.n_free() >= 8 - 5);
        table.advance(&mut pool, 40..56, |_, _| ());
        assert_eq!(table.kept_from(), 32);
    }

    #[test]
    fn sequences_that_begin_alike_hold_the_same_whole_pages() {
        let in_use = PagesInUse::default();
        let mut pool = PagePool::new(10, &in_use);
        let mut donor = BlockTable::new(&group(None), 5);
        donor.advance(&mut pool, 0..11, |_, _| ());
        let mut other = BlockTable::new(&group(None), 5);
        let mut adopted = Vec::new();
        other.adopt(&mut pool, &donor, 8, |logical, physical| adopted.push((logical, physical)));
        assert_eq!((adopted, in_use.count()), (vec![(0, 0), (1, 1)], 3));
        assert!(other.is_inside_shared_page(&pool, 7) && !other.is_inside_shared_page(&pool, 8));
        other.advance(&mut pool, 8..9, |logical, physical| assert_eq!((logical, physical), (2, 3)));
        donor.truncate(&mut pool, 0);
        assert_eq!((in_use.count(), other.is_inside_shared_page(&pool, 7)), (3, false));
        other.truncate(&mut pool, 0);
        assert_eq!((in_use.count(), pool.free.len()), (0, 10));
    }

    #[test]
    fn a_sequence_that_begins_as_another_one_has_a_page_of_state_for_a_copy() {
        let mut pool = PagePool::new(2, &PagesInUse::default());
        let state = KvGroupPlan { page_tokens: STATE_PAGE_TOKENS, ..group(None) };
        let [mut donor, mut other] = [(); 2].map(|()| BlockTable::new(&state, 1));
        donor.advance(&mut pool, 0..8, |_, _| ());
        let mut pages = Vec::new();
        other.adopt(&mut pool, &donor, 8, |logical, physical| pages.push((logical, physical)));
        assert_eq!(pages, [(0, 1)]);
        assert!(other.can_continue_at(8) && !other.can_continue_at(7) && !other.is_inside_shared_page(&pool, 8));
    }

    #[test]
    fn a_restored_table_continues_as_the_one_that_was_saved() {
        let state = KvGroupPlan { page_tokens: STATE_PAGE_TOKENS, ..group(None) };
        for group in [group(None), group(Some(6)), state] {
            let mut pool = PagePool::new(20, &PagesInUse::default());
            let [mut saved, mut restored] = [(); 2].map(|()| BlockTable::new(&group, 10));
            saved.advance(&mut pool, 0..9, |_, _| ());
            saved.advance(&mut pool, 9..23, |_, _| ());
            let mut pages = Vec::new();
            restored.restore(&mut pool, saved.held(), 23, |logical, physical| pages.push((logical, physical)));
            assert_eq!(pages.iter().map(|&(logical, _)| logical).collect::<Vec<_>>(), saved.held().collect::<Vec<_>>());
            assert_eq!(
                pages.iter().map(|&(_, physical)| physical).collect::<Vec<_>>(),
                restored.pages().collect::<Vec<_>>()
            );
            assert!((0..30).all(|position| restored.can_continue_at(position) == saved.can_continue_at(position)));
            restored.truncate(&mut pool, 0);
            saved.truncate(&mut pool, 0);
            assert_eq!(pool.n_free(), 20);
        }
    }

    /// Sequences begin, grow, share a beginning, are cut back, end and are given up in random order: no page is lost or written by two.
    #[test]
    fn no_page_is_lost_or_written_by_two() {
        for window in [None, Some(6)] {
            let (group, context) = (group(window), 40);
            let limit = group.pages_per_sequence(context, 8);
            let in_use = PagesInUse::default();
            // Too few pages for all sequences at their longest.
            let mut pool = PagePool::new(4 * limit, &in_use);
            let mut tables: Vec<(BlockTable, u32)> = (0..6).map(|_| (BlockTable::new(&group, limit), 0)).collect();
            let mut ended: VecDeque<(BlockTable, u32)> = VecDeque::new();
            let mut state = 7_u32;
            let mut random = |below: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % below
            };
            for _ in 0..20_000 {
                let (index, donor) = (random(6) as usize, random(6) as usize);
                let (mut table, mut len) = std::mem::replace(&mut tables[index], (BlockTable::new(&group, limit), 0));
                match random(5) {
                    3 if len > 0 => {
                        let empty = BlockTable::new(&group, limit);
                        let mut kept = std::mem::replace(&mut table, empty);
                        kept.end(&mut pool);
                        ended.push_back((kept, std::mem::take(&mut len)));
                    }
                    4 => {
                        if random(2) == 0
                            && let Some((mut kept, _)) = ended.pop_front()
                        {
                            kept.truncate(&mut pool, 0);
                        } else if let Some((given, given_len)) = ended.back() {
                            let to = given_len / 4 * 4;
                            if to > 0 && given.can_continue_at(to) {
                                table.truncate(&mut pool, 0);
                                table.adopt(&mut pool, given, to, |_, _| ());
                                len = to;
                            }
                        }
                    }
                    0 => {
                        let to = random(len + 1);
                        let to = if table.is_inside_shared_page(&pool, to) { to / 4 * 4 } else { to };
                        len = if table.can_continue_at(to) { to } else { 0 };
                        table.truncate(&mut pool, len);
                    }
                    1 if index != donor => {
                        let (given, given_len) = &tables[donor];
                        let to = random(given_len + 1) / 4 * 4;
                        if to > 0 && given.can_continue_at(to) {
                            table.truncate(&mut pool, 0);
                            table.adopt(&mut pool, given, to, |_, _| ());
                            len = to;
                        }
                    }
                    _ => {
                        let end = context.min(len + 1 + random(8));
                        if len < end && table.can_advance(&pool, len..end) {
                            table.advance(&mut pool, len..end, |_, _| ());
                            len = end;
                        }
                    }
                }
                tables[index] = (table, len);
                let [mut running, mut all] = [(); 2].map(|()| vec![0; pool.holders.len()]);
                for page in tables.iter().flat_map(|(table, _)| &table.pages) {
                    running[*page as usize] += 1;
                    all[*page as usize] += 1;
                }
                ended.iter().flat_map(|(table, _)| &table.pages).for_each(|&page| all[page as usize] += 1);
                let held_by = |holders: &[u32]| holders.iter().filter(|&&holders| holders > 0).count();
                assert_eq!(all, pool.holders);
                assert_eq!((in_use.count() as usize, all.len() - held_by(&all)), (held_by(&running), pool.free.len()));
                assert_eq!(pool.n_kept() as usize, held_by(&all) - held_by(&running));
            }
        }
    }
}
