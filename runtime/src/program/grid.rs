//! Splits a dispatch's grid, or a part of it, into ranges of consecutive workgroups, in linear order (x fastest, then y, then z), that can be
//! submitted one after another instead of at once.
//!
//! ```text
//! grid of 4 × 3, at most 4 a range       at most 3
//!   y 0  ■ ■ ■ ■  range 0                  ■ ■ □ □   ranges 0 and 1
//!   y 1  □ □ □ □  range 1                  ■ ■ □ □   ranges 2 and 3
//!   y 2  ■ ■ ■ ■  range 2                  ■ ■ □ □   ranges 4 and 5
//! ```
//!
//! The result is the same bit for bit, by three properties of the kernels. Workgroups of one dispatch never wait for each other,
//! since Vulkan guarantees no order among them. No workgroup reads what another of the same dispatch writes, except for the
//! last to finish, which reduces the others' partial results in a fixed order (`kernels/src/decode_attention/`). And no kernel
//! reads `NumWorkgroups`, which would differ (`shaders-gen/src/check.rs` rejects it); counter synchronisation passes the
//! dispatch's total instead (`counters.rs`).

use crate::vk::workgroup_range::WorkgroupRange;

/// Ranges of at most `max_workgroups` (at least 1) that cover `whole`, in order. Each of its axes has 1 to 65535 workgroups, as the artifact's
/// reader has checked.
pub fn split_grid(whole: WorkgroupRange, max_workgroups: u64) -> Vec<WorkgroupRange> {
    if whole.count() <= max_workgroups {
        return vec![whole];
    }
    let mut ranges = Vec::new();
    split_axis(whole, 2, max_workgroups.max(1), &mut ranges);
    ranges.iter_mut().skip(1).for_each(|range| range.continues = true);
    ranges
}

/// Splits along `axis`, and within single steps of it where a step is too large.
fn split_axis(whole: WorkgroupRange, axis: usize, max_workgroups: u64, ranges: &mut Vec<WorkgroupRange>) {
    let steps = whole.workgroups[axis];
    let steps_that_fit = max_workgroups / (whole.count() / u64::from(steps));
    if steps_that_fit == 0 {
        for step in 0..steps {
            let mut slice = whole;
            (slice.first[axis], slice.workgroups[axis]) = (whole.first[axis] + step, 1);
            split_axis(slice, axis - 1, max_workgroups, ranges);
        }
        return;
    }
    // Of nearly equal length: a short rest would be a submission of its own.
    let n_ranges = u64::from(steps).div_ceil(steps_that_fit).max(1);
    let bound = |range: u64| (u64::from(steps) * range / n_ranges) as u32;
    ranges.extend((0..n_ranges).map(|range| {
        let mut part = whole;
        (part.first[axis], part.workgroups[axis]) = (whole.first[axis] + bound(range), bound(range + 1) - bound(range));
        part
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linear indices of a range's workgroups, in order.
    fn numbers(grid: [u32; 3], range: &WorkgroupRange) -> Vec<u64> {
        let [x, y, z] = [0, 1, 2].map(|axis| range.first[axis]..range.first[axis] + range.workgroups[axis]);
        let [width, height, _] = grid.map(u64::from);
        let number = |x: u32, y: u32, z: u32| u64::from(x) + width * (u64::from(y) + height * u64::from(z));
        let rows = z.flat_map(|z| y.clone().map(move |y| (y, z)));
        rows.flat_map(|(y, z)| x.clone().map(move |x| number(x, y, z))).collect()
    }

    #[test]
    fn the_drawing_is_correct() {
        let firsts = |max_workgroups| {
            split_grid(WorkgroupRange::whole([4, 3, 1]), max_workgroups)
                .iter()
                .map(|range| (range.first, range.count()))
                .collect::<Vec<_>>()
        };
        assert_eq!(firsts(4), [([0, 0, 0], 4), ([0, 1, 0], 4), ([0, 2, 0], 4)]);
        assert_eq!(firsts(3)[..3], [([0, 0, 0], 2), ([2, 0, 0], 2), ([0, 1, 0], 2)]);
        assert_eq!(firsts(12), [([0, 0, 0], 12)]);
        assert_eq!(firsts(8), [([0, 0, 0], 4), ([0, 1, 0], 8)]);
    }

    #[test]
    fn ranges_cover_the_grid_in_order_and_none_is_too_large() {
        let sides = [1, 2, 3, 5, 7, 16];
        let grids = sides.iter().flat_map(|&x| sides.iter().flat_map(move |&y| sides.map(|z| [x, y, z])));
        for grid in grids {
            let all = WorkgroupRange::whole(grid).count();
            for max_workgroups in [0, 1, 2, 3, 4, 6, 7, 15, 35, 100, all - 1, all, all + 1, u64::from(u32::MAX)] {
                let ranges = split_grid(WorkgroupRange::whole(grid), max_workgroups);
                let found: Vec<u64> = ranges.iter().flat_map(|range| numbers(grid, range)).collect();
                assert_eq!(found, (0..all).collect::<Vec<_>>(), "{grid:?} by {max_workgroups}: {ranges:?}");
                assert!(
                    ranges.iter().all(|range| range.count() <= max_workgroups.max(1)),
                    "{grid:?} by {max_workgroups}: {ranges:?}"
                );
                assert!(ranges.iter().skip(1).all(|range| range.continues) && !ranges[0].continues);
            }
        }
    }

    #[test]
    fn a_part_of_a_grid_is_split_where_it_is() {
        let part = WorkgroupRange { first: [0, 2, 0], workgroups: [4, 3, 1], continues: false };
        for max_workgroups in [1, 3, 4, 8, 12] {
            let ranges = split_grid(part, max_workgroups);
            let found: Vec<u64> = ranges.iter().flat_map(|range| numbers([4, 9, 1], range)).collect();
            assert_eq!(found, (8..20).collect::<Vec<_>>(), "{ranges:?}");
            assert!(ranges.iter().skip(1).all(|range| range.continues) && !ranges[0].continues);
        }
    }

    #[test]
    fn the_largest_possible_grid_is_split() {
        let found = split_grid(WorkgroupRange::whole([65_535; 3]), 65_535 * 65_535 * 1000);
        assert_eq!(found.len(), 66);
        assert_eq!(found.iter().map(|range| u64::from(range.workgroups[2])).sum::<u64>(), 65_535);
    }
}
