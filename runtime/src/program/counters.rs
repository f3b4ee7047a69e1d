//! What the dispatches of a chain are told: how many workgroups to wait for, how many they are, and whether anybody waits for
//! them (`kernels/src/chain.rs`). It follows from what is submitted, so that a part of a program can run by itself.

use std::collections::BTreeMap;

use unicorn_artifact::Order;
use unicorn_artifact::step::Link;

use crate::program::pace::Piece;

/// The link of each dispatch that `pieces` have workgroups of, given the order of all dispatches of the program.
pub fn links<'a>(orders: &[Order], pieces: impl IntoIterator<Item = &'a Piece>) -> BTreeMap<usize, Link> {
    let mut workgroups: BTreeMap<usize, u32> = BTreeMap::new();
    for piece in pieces {
        *workgroups.entry(piece.dispatch).or_default() += piece.band.count() as u32;
    }
    let is_counted = |dispatch: usize| orders.get(dispatch) == Some(&Order::Counted);
    let link = |(&dispatch, &count): (&usize, &u32)| {
        let before =
            dispatch.checked_sub(1).filter(|_| is_counted(dispatch)).and_then(|before| workgroups.get(&before));
        let is_awaited = is_counted(dispatch + 1) && workgroups.contains_key(&(dispatch + 1));
        let link = Link { waits_for: before.copied().unwrap_or(0), workgroups: count, ends: u32::from(!is_awaited) };
        (dispatch, link)
    };
    workgroups.iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::dispatch_range::{Band, bands};

    const ORDERS: [Order; 4] = [Order::Barrier, Order::Barrier, Order::Counted, Order::Counted];

    fn piece(dispatch: usize) -> Piece {
        Piece { dispatch, band: Band::whole([dispatch as u32 + 2, 2, 1]) }
    }

    #[test]
    fn a_chain_counts_from_one_dispatch_to_the_next() {
        let pieces: Vec<Piece> = (0..4).map(piece).collect();
        let found: Vec<Link> = links(&ORDERS, &pieces).into_values().collect();
        let link = |waits_for, workgroups, ends| Link { waits_for, workgroups, ends };
        assert_eq!(found, [link(0, 4, 1), link(0, 6, 0), link(6, 8, 0), link(8, 10, 1)]);
    }

    #[test]
    fn a_part_of_a_chain_waits_for_nobody_outside() {
        let halves: Vec<Piece> = bands([4, 2, 1], 4).into_iter().map(|band| Piece { dispatch: 2, band }).collect();
        assert_eq!(links(&ORDERS, &halves[..1])[&2], Link { waits_for: 0, workgroups: 4, ends: 1 });
        let found = links(&ORDERS, halves.iter().chain(&[piece(3)]));
        assert_eq!((found[&2].workgroups, found[&3].waits_for), (8, 8));
    }
}
