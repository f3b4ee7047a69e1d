//! Programs that run while weights are still being loaded: split as always, and also where a dispatch needs more weight chunks
//! than those before it, so that each list is submitted as soon as the weights that it reads are resident.

use std::sync::Arc;

use crate::error::LoadError;
use crate::program::programs::{PreparedProgram, PreparedPrograms};
use crate::program::submissions::{CostModel, DispatchRange};
use crate::vk::command_list::CommandList;
use crate::vk::device::Device;

/// A recorded program whose lists wait for weights.
pub struct StreamedProgram {
    /// For each slot, the command lists in order.
    pub slots: Vec<Vec<CommandList>>,
    /// For each list, the number of chunks of the load order that it needs.
    pub chunks_needed: Vec<usize>,
}

/// Records every program; `chunks_needed` are those of each dispatch of each program.
///
/// # Errors
/// When the device fails.
pub fn record(
    device: &Arc<Device>,
    prepared: &PreparedPrograms,
    cost_models: &[CostModel],
    bound_seconds: f64,
    chunks_needed: &[Vec<usize>],
) -> Result<Vec<StreamedProgram>, LoadError> {
    let one = |((program, cost_model), needed): ((&PreparedProgram, &CostModel), &Vec<usize>)| {
        let lists = split(program.submissions(*cost_model, bound_seconds), needed);
        let (submissions, chunks_needed): (Vec<Vec<DispatchRange>>, Vec<usize>) = lists.into_iter().unzip();
        let commands = program.commands(&submissions);
        let record_slot = || commands.iter().map(|list| CommandList::record(device, list.clone())).collect();
        let slots = (0..program.shape.slots()).map(|_| record_slot()).collect::<Result<_, _>>()?;
        Ok(StreamedProgram { slots, chunks_needed })
    };
    prepared.programs.iter().zip(cost_models).zip(chunks_needed).map(one).collect()
}

/// Splits submissions where a dispatch needs more chunks than those before it; each list comes with the chunks that it needs. No
/// range of a list needs more chunks than its first.
fn split(submissions: Vec<Vec<DispatchRange>>, chunks_needed: &[usize]) -> Vec<(Vec<DispatchRange>, usize)> {
    let mut lists: Vec<(Vec<DispatchRange>, usize)> = Vec::new();
    let mut reached = 0;
    for submission in submissions {
        for (index, range) in submission.into_iter().enumerate() {
            let needed = chunks_needed[range.dispatch];
            match lists.last_mut() {
                Some((ranges, _)) if index > 0 && needed <= reached => ranges.push(range),
                _ => lists.push((vec![range], reached.max(needed))),
            }
            reached = reached.max(needed);
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::grid::split_grid;
    use crate::vk::workgroup_range::WorkgroupRange;

    fn whole(dispatch: usize) -> DispatchRange {
        DispatchRange { dispatch, workgroups: WorkgroupRange::whole([8, 1, 1]) }
    }

    /// Dispatches and needs of each list.
    fn split_whole(submissions: &[&[usize]], needs: &[usize]) -> Vec<(Vec<usize>, usize)> {
        let submissions = submissions.iter().map(|dispatches| dispatches.iter().copied().map(whole).collect());
        let dispatches = |ranges: Vec<DispatchRange>| ranges.iter().map(|range| range.dispatch).collect();
        split(submissions.collect(), needs).into_iter().map(|(ranges, need)| (dispatches(ranges), need)).collect()
    }

    #[test]
    fn a_dispatch_that_needs_more_chunks_begins_a_list() {
        // The fourth reads resident weights; the fifth begins a submission anyway.
        assert_eq!(
            split_whole(&[&[0, 1, 2, 3], &[4, 5]], &[1, 0, 3, 2, 0, 4]),
            [(vec![0, 1], 1), (vec![2, 3], 3), (vec![4], 3), (vec![5], 4)]
        );
        assert_eq!(split_whole(&[&[0, 1, 2]], &[0, 0, 0]), [(vec![0, 1, 2], 0)]);
        assert!(split_whole(&[], &[]).is_empty());
    }

    #[test]
    fn the_first_range_of_a_dispatch_waits_for_all_its_chunks() {
        let halves: Vec<DispatchRange> = split_grid(WorkgroupRange::whole([8, 1, 1]), 4)
            .into_iter()
            .map(|workgroups| DispatchRange { dispatch: 1, workgroups })
            .collect();
        let found = split(vec![vec![whole(0), halves[0]], vec![halves[1], whole(2)]], &[1, 2, 2]);
        assert_eq!(found, [(vec![whole(0)], 1), (vec![halves[0]], 2), (vec![halves[1], whole(2)], 2)]);
    }
}
