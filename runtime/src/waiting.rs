//! Programs for while weights are on their way: cut as always, and also where a dispatch needs weights that none before it
//! did, so that each list can be submitted as soon as what it reads is there.

use std::sync::Arc;

use crate::error::LoadError;
use crate::pace::Pace;
use crate::programs::{Prepared, PreparedProgram};
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
        let cuts = cut(&program.cuts(*pace, bound_seconds), needs);
        let lengths: Vec<usize> = cuts.iter().map(|cut| cut.0).collect();
        let lists = || program.parts(&lengths).into_iter().map(|commands| CommandList::record(device, commands));
        let turns = (0..program.shape.turns()).map(|_| lists().collect::<Result<_, _>>());
        Ok(WaitingProgram { turns: turns.collect::<Result<_, _>>()?, needs: cuts.iter().map(|cut| cut.1).collect() })
    };
    prepared.programs.iter().zip(paces).zip(needs).map(one).collect()
}

/// Consecutive runs of dispatches, each within one of those that are `lengths` long: how many, and how many pieces they
/// wait for. No dispatch of a run waits for more than its first.
fn cut(lengths: &[usize], needs: &[usize]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut rest = needs;
    let mut reached = 0;
    for &length in lengths {
        let (now, later) = rest.split_at(length);
        rest = later;
        for (index, &need) in now.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if index > 0 && need <= reached => run.0 += 1,
                _ => runs.push((1, reached.max(need))),
            }
            reached = reached.max(need);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatch_that_needs_more_begins_a_list() {
        // The fourth reads what is there; the fifth begins a submission anyway.
        assert_eq!(cut(&[4, 2], &[1, 0, 3, 2, 0, 4]), [(2, 1), (2, 3), (1, 3), (1, 4)]);
        assert_eq!(cut(&[3], &[0, 0, 0]), [(3, 0)]);
        assert_eq!(cut(&[], &[]), []);
    }
}
