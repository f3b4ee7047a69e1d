//! How a program is split into submissions, each estimated to stay below a bound: drivers reset a device that spends seconds on
//! one. A dispatch that exceeds the bound by itself is split into ranges of workgroups.
//!
//! A dispatch takes time in proportion to the bytes that it reads: weights, or a layer's K and V at the longest context. The time
//! per byte depends on the program: one row is limited by memory, 512 rows by arithmetic. It is estimated high, and then
//! measured: at load, the first dispatches of each program run (`step::calibration`). Starting workgroups takes time, too, so that
//! a dispatch of many takes long whatever bytes the plan declares for it.

use crate::program::grid::split_grid;
use crate::vk::workgroup_range::WorkgroupRange;

/// Time that a program takes for each byte that it reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    pub seconds_per_byte: f64,
}

/// Estimated memory bandwidth: slower than that of any GPU worth using.
const ESTIMATED_BYTES_PER_SECOND: f64 = 20e9;
/// Estimated bytes times rows a second: INT4 at 2.5 TFLOP/s, as a small APU computes.
const ESTIMATED_BYTE_ROWS_PER_SECOND: f64 = 0.6e12;

/// The same for one CPU core, ten times what llvmpipe reaches (38 s for 512 rows of SmolLM2-135M on two cores): with the
/// default bound, a submission takes about a second. Submissions of 0.1 s were measured to take half as long again in all on 16
/// cores: each ends with a wait for the slowest core.
const SOFTWARE_BYTE_ROWS_PER_CORE_SECOND: f64 = 5e9;

/// Time that a device takes for a workgroup at least, once it is busy.
const SECONDS_PER_WORKGROUP: f64 = 10e-9;

impl CostModel {
    /// Cost model of a program of `rows` rows that was not measured.
    pub fn estimate(rows: u32) -> CostModel {
        let arithmetic = f64::from(rows) / ESTIMATED_BYTE_ROWS_PER_SECOND;
        CostModel { seconds_per_byte: arithmetic + 1.0 / ESTIMATED_BYTES_PER_SECOND }
    }

    /// Cost model of a prefill program on a software device, which no driver resets and on which nothing is measured. Long prefills
    /// are split all the same, so that they can be cancelled between two submissions.
    pub fn estimate_software_prefill(rows: u32, cores: usize) -> CostModel {
        CostModel { seconds_per_byte: f64::from(rows) / (SOFTWARE_BYTE_ROWS_PER_CORE_SECOND * cores as f64) }
    }

    /// Seconds that `bytes` take.
    pub fn seconds(&self, bytes: u64) -> f64 {
        bytes as f64 * self.seconds_per_byte
    }
}

/// What the estimate of a dispatch's time depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchCost {
    /// Bytes that it reads.
    pub bytes: u64,
    /// Its workgroups on each axis.
    pub grid: [u32; 3],
}

/// A dispatch, or some of its workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchRange {
    /// Index into the program's dispatches.
    pub dispatch: usize,
    pub workgroups: WorkgroupRange,
}

/// A dispatch is split into at most about this many ranges: where more would be needed, the estimate or the bound is wrong.
const MAX_RANGES: u64 = 256;

/// The dispatch ranges of each submission of a program, in order. Each submission is estimated to take at most `bound_seconds`, or is a
/// single range of one workgroup or of 1/[`MAX_RANGES`] of its dispatch. Time is proportional to workgroups.
pub fn split(program: &[DispatchCost], cost_model: CostModel, bound_seconds: f64) -> Vec<Vec<DispatchRange>> {
    let whole = |(dispatch, cost): (usize, &DispatchCost)| DispatchRange {
        dispatch,
        workgroups: WorkgroupRange::whole(cost.grid),
    };
    split_ranges(program.iter().enumerate().map(whole), program, cost_model, bound_seconds)
}

/// The same for parts of a program's dispatches.
pub fn split_ranges(
    ranges: impl IntoIterator<Item = DispatchRange>,
    program: &[DispatchCost],
    cost_model: CostModel,
    bound_seconds: f64,
) -> Vec<Vec<DispatchRange>> {
    let mut submissions: Vec<Vec<DispatchRange>> = Vec::new();
    let mut seconds = 0.0;
    for DispatchRange { dispatch, workgroups } in ranges {
        let cost = &program[dispatch];
        let count = WorkgroupRange::whole(cost.grid).count();
        let seconds_per_workgroup = cost.seconds(cost_model) / count as f64;
        let max_workgroups = (bound_seconds / seconds_per_workgroup) as u64;
        for workgroups in split_grid(workgroups, max_workgroups.max(count / MAX_RANGES)) {
            let range = DispatchRange { dispatch, workgroups };
            let range_seconds = seconds_per_workgroup * workgroups.count() as f64;
            match submissions.last_mut() {
                Some(submission) if seconds + range_seconds <= bound_seconds => {
                    submission.push(range);
                    seconds += range_seconds;
                }
                _ => {
                    submissions.push(vec![range]);
                    seconds = range_seconds;
                }
            }
        }
    }
    submissions
}

impl DispatchCost {
    /// Seconds that the whole dispatch takes.
    pub fn seconds(&self, cost_model: CostModel) -> f64 {
        let workgroups = WorkgroupRange::whole(self.grid).count() as f64;
        cost_model.seconds(self.bytes).max(workgroups * SECONDS_PER_WORKGROUP)
    }

    /// The share of the bytes that `workgroups` read.
    pub fn bytes_in(&self, workgroups: &WorkgroupRange) -> u64 {
        let all = WorkgroupRange::whole(self.grid).count();
        (u128::from(self.bytes) * u128::from(workgroups.count())).div_ceil(u128::from(all)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dispatches of one workgroup each.
    fn single_workgroups(bytes: &[u64]) -> Vec<DispatchCost> {
        bytes.iter().map(|&bytes| DispatchCost { bytes, grid: [1; 3] }).collect()
    }

    #[test]
    fn programs_are_split_where_the_estimates_reach_the_bound() {
        let cost_model = CostModel { seconds_per_byte: 1e-3 };
        let program = single_workgroups(&[10, 20, 0, 40, 70, 0]);
        let lengths = |bound| split(&program, cost_model, bound).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(0.064), [3, 1, 1, 1]);
        // Dispatches without bytes take as long as their workgroups.
        assert_eq!(lengths(0.070_001), [4, 2]);
        assert_eq!(lengths(1.0), [6]);
        assert_eq!(lengths(1e-9), [1; 6]);
        assert!(split(&[], cost_model, 1.0).is_empty());
    }

    #[test]
    fn a_dispatch_that_exceeds_the_bound_is_split_into_ranges() {
        let cost_model = CostModel { seconds_per_byte: 1e-3 };
        let program =
            [(10, [5, 1, 1]), (80, [4, 2, 1]), (10, [9, 1, 1])].map(|(bytes, grid)| DispatchCost { bytes, grid });
        let found: Vec<Vec<_>> = split(&program, cost_model, 0.040)
            .iter()
            .map(|ranges| {
                ranges.iter().map(|range| (range.dispatch, range.workgroups.first, range.workgroups.count())).collect()
            })
            .collect();
        assert_eq!(
            found,
            [vec![(0, [0, 0, 0], 5)], vec![(1, [0, 0, 0], 4)], vec![(1, [0, 1, 0], 4)], vec![(2, [0, 0, 0], 9)]]
        );
        // The next dispatch joins the last range where the bound allows it.
        assert_eq!(split(&program, cost_model, 0.045).len(), 4);
        assert_eq!(split(&program, cost_model, 0.050).last().unwrap().len(), 2);
    }

    #[test]
    fn every_submission_stays_within_the_bound_and_every_workgroup_is_in_one() {
        let work = |at: u64| DispatchCost {
            bytes: at * at % 37 * 1_000_000,
            grid: [(at % 11 + 1) as u32, (at % 3 + 1) as u32, (at % 2 + 1) as u32],
        };
        let program: Vec<DispatchCost> = (0..200).map(work).collect();
        for bound in [1e-5, 1e-4, 1e-3, 1e-2] {
            let cost_model = CostModel::estimate(8);
            let submissions = split(&program, cost_model, bound);
            for ranges in &submissions {
                let of_range = |range: &DispatchRange| {
                    let whole = &program[range.dispatch];
                    let count = WorkgroupRange::whole(whole.grid).count() as f64;
                    whole.seconds(cost_model) * range.workgroups.count() as f64 / count
                };
                let seconds: f64 = ranges.iter().map(of_range).sum();
                let is_one = ranges.len() == 1 && ranges[0].workgroups.count() == 1;
                assert!(is_one || seconds <= bound * (1.0 + 1e-6), "{seconds} s of {bound} s: {ranges:?}");
            }
            let mut ranges = submissions.concat().into_iter().peekable();
            for (dispatch, work) in program.iter().enumerate() {
                let of_it: Vec<WorkgroupRange> =
                    std::iter::from_fn(|| ranges.next_if(|range| range.dispatch == dispatch))
                        .map(|range| range.workgroups)
                        .collect();
                let max = of_it.iter().map(WorkgroupRange::count).max().unwrap();
                assert_eq!(of_it, split_grid(WorkgroupRange::whole(work.grid), max), "{work:?}");
            }
            assert!(ranges.next().is_none());
        }
    }

    #[test]
    fn extreme_estimates_give_a_limited_number_of_ranges() {
        let work = DispatchCost { bytes: u64::MAX, grid: [65_535; 3] };
        let ranges = split(&[work], CostModel::estimate(512), 1e-3).len() as u64;
        assert!((MAX_RANGES..=2 * MAX_RANGES).contains(&ranges), "{ranges}");
    }

    #[test]
    fn workgroups_take_time_whatever_bytes_they_declare() {
        let undeclared = DispatchCost { bytes: 0, grid: [1024, 1024, 16] };
        let submissions = split(&[undeclared; 2], CostModel::estimate(1), 0.1);
        assert!(submissions.len() >= 4, "{submissions:?}");
        let small = DispatchCost { bytes: 0, grid: [64, 1, 1] };
        assert_eq!(split(&[small; 100], CostModel::estimate(1), 0.1).len(), 1);
    }

    #[test]
    fn more_rows_cost_more() {
        assert!(CostModel::estimate(512).seconds_per_byte > 10.0 * CostModel::estimate(8).seconds_per_byte);
        // A decode step over 4 GiB of weights exceeds the bound on a slow device.
        assert!(CostModel::estimate(1).seconds(4 << 30) > 0.1);
    }
}
