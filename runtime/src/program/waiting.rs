//! Programs for while weights are on their way: cut as always, and also where a dispatch needs weights that none before it
//! did, so that each list can be submitted as soon as what it reads is there.

use std::sync::Arc;

use crate::error::LoadError;
use crate::program::pace::{Pace, Piece};
use crate::program::programs::{Prepared, PreparedProgram};
use crate::vk::device::Device;
use crate::vk::record::CommandList;

/// A program, once, or twice where its steps can follow one another without the host.
pub struct WaitingProgram {
    pub turns: Vec<Vec<CommandList>>,
    /// Pieces of the route that each list of a turn waits for.
    pub needs: Vec<usize>,
}

/// Records every program; `needs` are those of each dispatch of each.
///
/// # Errors
/// When the device fails.
pub fn record(
    device: &Arc<Device>,
    prepared: &Prepared,
    paces: &[Pace],
    bound_seconds: f64,
    needs: &[Vec<usize>],
) -> Result<Vec<WaitingProgram>, LoadError> {
    let one = |((program, pace), needs): ((&PreparedProgram, &Pace), &Vec<usize>)| {
        let lists = cut(program.cuts(*pace, bound_seconds), needs);
        let (submissions, needs): (Vec<Vec<Piece>>, Vec<usize>) = lists.into_iter().unzip();
        let commands = program.commands(&submissions);
        let record_turn = || commands.iter().map(|list| CommandList::record(device, list.clone())).collect();
        let turns = (0..program.shape.turns()).map(|_| record_turn()).collect::<Result<_, _>>()?;
        Ok(WaitingProgram { turns, needs })
    };
    prepared.programs.iter().zip(paces).zip(needs).map(one).collect()
}

/// The same submissions, or several for one: their pieces, and how many of the route's they wait for. No piece of a submission
/// waits for more than its first.
fn cut(submissions: Vec<Vec<Piece>>, needs: &[usize]) -> Vec<(Vec<Piece>, usize)> {
    let mut lists: Vec<(Vec<Piece>, usize)> = Vec::new();
    let mut reached = 0;
    for submission in submissions {
        for (index, piece) in submission.into_iter().enumerate() {
            let need = needs[piece.dispatch];
            match lists.last_mut() {
                Some((pieces, _)) if index > 0 && need <= reached => pieces.push(piece),
                _ => lists.push((vec![piece], reached.max(need))),
            }
            reached = reached.max(need);
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::dispatch_range::{Band, bands};

    fn whole(dispatch: usize) -> Piece {
        Piece { dispatch, band: Band::whole([8, 1, 1]) }
    }

    /// Dispatches and needs of each list.
    fn cut_whole(submissions: &[&[usize]], needs: &[usize]) -> Vec<(Vec<usize>, usize)> {
        let submissions = submissions.iter().map(|dispatches| dispatches.iter().copied().map(whole).collect());
        let dispatches = |pieces: Vec<Piece>| pieces.iter().map(|piece| piece.dispatch).collect();
        cut(submissions.collect(), needs).into_iter().map(|(pieces, need)| (dispatches(pieces), need)).collect()
    }

    #[test]
    fn a_dispatch_that_needs_more_begins_a_list() {
        // The fourth reads what is there; the fifth begins a submission anyway.
        assert_eq!(
            cut_whole(&[&[0, 1, 2, 3], &[4, 5]], &[1, 0, 3, 2, 0, 4]),
            [(vec![0, 1], 1), (vec![2, 3], 3), (vec![4], 3), (vec![5], 4)]
        );
        assert_eq!(cut_whole(&[&[0, 1, 2]], &[0, 0, 0]), [(vec![0, 1, 2], 0)]);
        assert!(cut_whole(&[], &[]).is_empty());
    }

    #[test]
    fn a_dispatchs_first_band_waits_for_all_of_them() {
        let halves: Vec<Piece> = bands([8, 1, 1], 4).into_iter().map(|band| Piece { dispatch: 1, band }).collect();
        let found = cut(vec![vec![whole(0), halves[0]], vec![halves[1], whole(2)]], &[1, 2, 2]);
        assert_eq!(found, [(vec![whole(0)], 1), (vec![halves[0]], 2), (vec![halves[1], whole(2)], 2)]);
    }
}
