//! Copies of recurrent state on the device, from which sequences continue whose last tokens were rejected. They lie in the same buffers as the
//! state of sequences, behind it, and each of them is for the same pages of sequences.
//!
//! ```text
//! page       0  1  2  3 │ 4        5            4 pages of sequences, 2 copies
//! holds      sequences  │ 0 or 2   1 or 3
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use unicorn_artifact::KvGroupPlan;

use crate::memory::buffers::KvBuffers;
use crate::memory::kv_pages::BlockTable;
use crate::memory::requirements::{ContextRequest, pool_pages, state_copies};
use crate::vk::Failure;
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::submission::SubmissionQueue;

/// The copies of one engine, and the recorded transfers that make and use them.
pub struct StateCopies {
    /// The KV group of the state.
    group: usize,
    /// One a page of sequences.
    pages: Vec<PageTransfers>,
    /// Of each copy, the number of the state that it holds: see [`StateCopy`].
    held: Vec<Arc<AtomicU64>>,
    /// Number of the next state.
    next_number: u64,
}

/// Transfers of one page's state.
struct PageTransfers {
    to_copy: CommandList,
    from_copy: CommandList,
}

/// A state that was copied. The copy may hold another one since.
pub struct StateCopy {
    held: Arc<AtomicU64>,
    number: u64,
}

impl StateCopy {
    /// Whether the copy still holds this state.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) == self.number
    }
}

impl StateCopies {
    /// Records the transfers. `None`: the model has no recurrent state, or state in several KV groups, which no compiler writes, or was loaded
    /// without copies.
    pub fn record(
        device: &Arc<Device>,
        groups: &[KvGroupPlan],
        buffers: &[KvBuffers],
        context_tokens: u32,
        request: &ContextRequest,
    ) -> Result<Option<StateCopies>, Failure> {
        let mut of_state = groups.iter().enumerate().filter(|(_, group)| group.is_state());
        let (Some((group, plan)), None) = (of_state.next(), of_state.next()) else { return Ok(None) };
        let n_pages = pool_pages(plan, context_tokens, request) as u32;
        let n_copies = state_copies(plan, request) as u32;
        if n_copies == 0 {
            return Ok(None);
        }
        let transfer = |from: u32, to: u32| {
            let (from, to) = ([from], [to]);
            let both = buffers[group].ranges(&from).zip(buffers[group].ranges(&to));
            CommandList::record(device, both.map(|(from, to)| Command::Copy { from, to }).collect())
        };
        let of_page = |page: u32| -> Result<PageTransfers, Failure> {
            let copy = n_pages + page % n_copies;
            Ok(PageTransfers { to_copy: transfer(page, copy)?, from_copy: transfer(copy, page)? })
        };
        let pages = (0..n_pages).map(of_page).collect::<Result<_, _>>()?;
        // No state has number 0.
        let held = (0..n_copies).map(|_| Arc::default()).collect();
        Ok(Some(StateCopies { group, pages, held, next_number: 1 }))
    }

    /// Copies the state of a sequence, which replaces another one. `None`: it has none. Nothing may be in flight.
    pub fn save(&mut self, queue: &mut SubmissionQueue, tables: &[BlockTable]) -> Result<Option<StateCopy>, Failure> {
        let Some(page) = self.page_of(tables) else { return Ok(None) };
        let held = self.held[page % self.held.len()].clone();
        held.store(0, Ordering::Relaxed);
        queue.run(std::slice::from_ref(&self.pages[page].to_copy))?;
        let number = self.next_number;
        self.next_number += 1;
        held.store(number, Ordering::Relaxed);
        Ok(Some(StateCopy { held, number }))
    }

    /// Gives a sequence back the state that was saved of it. Nothing may be in flight.
    ///
    /// # Panics
    /// If the sequence has no state.
    pub fn restore(&self, queue: &mut SubmissionQueue, tables: &[BlockTable]) -> Result<(), Failure> {
        let page = self.page_of(tables).expect("a state that was saved has a page");
        queue.run(std::slice::from_ref(&self.pages[page].from_copy))
    }

    fn page_of(&self, tables: &[BlockTable]) -> Option<usize> {
        tables[self.group].pages().next().map(|page| page as usize)
    }
}
