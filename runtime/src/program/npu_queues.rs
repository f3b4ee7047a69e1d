//! The two queues of a program in which an NPU takes part, as command lists: what each entry of the schedule submits.
//!
//! ```text
//! GPU's entry   [copy outputs of the commands that it waited for] dispatches [copy activations of the commands that wait for it]
//! ```

use std::ops::Range;

use unicorn_artifact::npu::{DispatchPart, NpuScheduleEntry, NpuWorkItem};

use crate::memory::buffers::Buffers;
use crate::program::npu_steps::{NpuTransfer, NpuWork};
use crate::program::submissions::DispatchRange;
use crate::vk::command_list::Command;
use crate::vk::workgroup_range::WorkgroupRange;

/// The NPU's part of a program, bound to its buffers.
pub struct BoundNpuWork {
    entries: Vec<NpuScheduleEntry>,
    transfers: Vec<Vec<BoundTransfer>>,
}

/// An [`NpuTransfer`] as copies.
struct BoundTransfer {
    product: usize,
    first_row: u32,
    to_npu: Command,
    from_npu: Command,
}

/// What is submitted to one of the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEntry {
    /// To the GPU.
    Gpu {
        /// Indices of its command lists; the last entry has all that follow.
        lists: Range<usize>,
        /// Index of the NPU's entry whose outputs, and those of all before it, it needs.
        waits_for: Option<usize>,
    },
    /// To the NPU.
    Npu(NpuRun),
}

/// One run of the NPU's program of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuRun {
    /// Index of the product.
    pub product: usize,
    /// Its number among the runs of the step: each has buffers of its own.
    pub run: usize,
    /// First row of the step that it computes: a step with fewer rows has nothing to compute.
    pub first_row: u32,
    /// Index of the GPU's entry that writes its activations.
    pub waits_for: usize,
}

impl BoundNpuWork {
    /// Binds the transfers of a program to the buffers of each run.
    pub fn bind(work: &NpuWork, buffers: &Buffers) -> BoundNpuWork {
        let bound = |(run, transfer): (usize, &NpuTransfer)| BoundTransfer {
            product: transfer.product,
            first_row: transfer.first_row,
            to_npu: buffers.copy_to_npu(run, transfer.activations),
            from_npu: buffers.copy_from_npu(run, transfer.outputs),
        };
        let transfers = work.transfers.iter().map(|runs| runs.iter().enumerate().map(bound).collect()).collect();
        BoundNpuWork { entries: work.schedule.entries.clone(), transfers }
    }

    /// Command lists of a program whose dispatches have `grids`, and the entries of both queues that submit them. `lists_of` makes lists of ranges of dispatches, one
    /// a submission.
    pub fn lists(
        &self,
        grids: impl Fn(usize) -> [u32; 3],
        lists_of: impl Fn(Vec<DispatchRange>) -> Vec<Vec<Command>>,
    ) -> (Vec<Vec<Command>>, Vec<QueueEntry>) {
        let range = |part: &DispatchPart| {
            let dispatch = part.dispatch as usize;
            let (first, workgroups) = part.range(grids(dispatch));
            DispatchRange { dispatch, workgroups: WorkgroupRange { first, workgroups, continues: false } }
        };
        let (mut lists, mut queues): (Vec<Vec<Command>>, Vec<QueueEntry>) = (Vec::new(), Vec::new());
        // The NPU's entries whose outputs the GPU has received.
        let mut received = 0;
        for (index, NpuScheduleEntry { work, waits_for }) in self.entries.iter().enumerate() {
            let waits_for = waits_for.map(|other| other as usize);
            match work {
                NpuWorkItem::Dispatches(parts) => {
                    let mut commands = lists_of(parts.iter().map(range).collect());
                    if commands.is_empty() {
                        // It may receive outputs and pass activations on all the same.
                        commands.push(Vec::new());
                    }
                    let awaited = received..waits_for.map_or(received, |other| other + 1);
                    received = received.max(awaited.end);
                    let outputs: Vec<Command> =
                        awaited.filter_map(|other| Some(self.transfer(other)?.from_npu.clone())).collect();
                    if !outputs.is_empty() {
                        drop(commands[0].splice(0..0, outputs.into_iter().chain([Command::Barrier])));
                    }
                    let begin = lists.len();
                    lists.extend(commands);
                    queues.push(QueueEntry::Gpu { lists: begin..lists.len(), waits_for });
                }
                NpuWorkItem::Run { run, .. } => {
                    let BoundTransfer { product, first_row, to_npu, .. } = self.transfer(index).expect("it is a run");
                    let waits_for = waits_for.expect("a reader has checked that it waits");
                    let QueueEntry::Gpu { lists: of_entry, .. } = &queues[waits_for] else {
                        unreachable!("a reader has checked that runs wait for the GPU")
                    };
                    lists[of_entry.end - 1].extend([Command::Barrier, to_npu.clone()]);
                    let run = NpuRun { product: *product, run: *run as usize, first_row: *first_row, waits_for };
                    queues.push(QueueEntry::Npu(run));
                }
            }
        }
        (lists, queues)
    }

    /// What passes to and from the NPU in one of its entries.
    fn transfer(&self, entry: usize) -> Option<&BoundTransfer> {
        match self.entries[entry].work {
            NpuWorkItem::Run { command, run } => Some(&self.transfers[command as usize][run as usize]),
            NpuWorkItem::Dispatches(_) => None,
        }
    }
}
