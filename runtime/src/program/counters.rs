//! Counter synchronisation: instead of a barrier, a dispatch counts its workgroups, and those of the next wait for that count
//! (`kernels/src/counter_sync.rs`). The counts follow from what is submitted, so that a part of a program runs correctly, too.

use std::collections::BTreeMap;

use unicorn_artifact::Order;
use unicorn_artifact::step::CounterWait;

use crate::program::submissions::DispatchRange;

/// Push constants of each dispatch in `ranges`; `orders` are those of all dispatches of the program.
pub fn counters<'a>(
    orders: &[Order],
    ranges: impl IntoIterator<Item = &'a DispatchRange>,
) -> BTreeMap<usize, CounterWait> {
    let mut workgroups: BTreeMap<usize, u32> = BTreeMap::new();
    for range in ranges {
        *workgroups.entry(range.dispatch).or_default() += range.workgroups.count() as u32;
    }
    let is_counted = |dispatch: usize| orders.get(dispatch) == Some(&Order::CounterSync);
    let one = |(&dispatch, &count): (&usize, &u32)| {
        let before =
            dispatch.checked_sub(1).filter(|_| is_counted(dispatch)).and_then(|before| workgroups.get(&before));
        let is_awaited = is_counted(dispatch + 1) && workgroups.contains_key(&(dispatch + 1));
        let counter =
            CounterWait { waits_for: before.copied().unwrap_or(0), workgroups: count, ends: u32::from(!is_awaited) };
        (dispatch, counter)
    };
    workgroups.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::grid::split_grid;
    use crate::vk::workgroup_range::WorkgroupRange;

    const ORDERS: [Order; 4] = [Order::Barrier, Order::Barrier, Order::CounterSync, Order::CounterSync];

    fn range(dispatch: usize) -> DispatchRange {
        DispatchRange { dispatch, workgroups: WorkgroupRange::whole([dispatch as u32 + 2, 2, 1]) }
    }

    #[test]
    fn each_dispatch_waits_for_the_count_of_the_one_before() {
        let ranges: Vec<DispatchRange> = (0..4).map(range).collect();
        let found: Vec<CounterWait> = counters(&ORDERS, &ranges).into_values().collect();
        let counter = |waits_for, workgroups, ends| CounterWait { waits_for, workgroups, ends };
        assert_eq!(found, [counter(0, 4, 1), counter(0, 6, 0), counter(6, 8, 0), counter(8, 10, 1)]);
    }

    #[test]
    fn a_dispatch_waits_only_for_workgroups_of_the_same_submissions() {
        let halves: Vec<DispatchRange> = split_grid(WorkgroupRange::whole([4, 2, 1]), 4)
            .into_iter()
            .map(|workgroups| DispatchRange { dispatch: 2, workgroups })
            .collect();
        assert_eq!(counters(&ORDERS, &halves[..1])[&2], CounterWait { waits_for: 0, workgroups: 4, ends: 1 });
        let found = counters(&ORDERS, halves.iter().chain(&[range(3)]));
        assert_eq!((found[&2].workgroups, found[&3].waits_for), (8, 8));
    }
}
