//! The arena: activations of one program, which share memory where they are not alive at the same time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rayon::prelude::*;
use unicorn_artifact::ActivationPlan;
use unicorn_artifact::plan::BUFFER_ALIGN;
use unicorn_kernels::completion::COMPLETION_COUNTERS;
use unicorn_kernels::counter_sync;
use unicorn_kernels::fixed_sums::WORDS_PER_ELEMENT;

use super::PlaceRequest;
use super::npu_schedule::bounds;
use crate::fuse::FusedGraph;
use crate::graph::ValueId;
use crate::select::{Operand, ProgramKind, SelectedProgram, Selection, stride};

/// Counters at the beginning of the arena, in words: of splits, then the slots of counters. No activation of any
/// program is stored there: the runtime zeros the arena once, and each step leaves the counters at 0.
const COUNTERS: usize = COMPLETION_COUNTERS + counter_sync::SLOTS * counter_sync::SLOT_WORDS;

/// Activations of one program by operand.
pub type Arena = BTreeMap<Operand, Activation>;

/// The place of an activation and its life, from its first dispatch to its last.
#[derive(Clone, Copy, Debug)]
pub struct Activation {
    pub offset_bytes: u64,
    pub len_bytes: u64,
    first: usize,
    last: usize,
}

/// The arena of each program of each target of `selection`.
pub fn arenas(request: &PlaceRequest, selection: &Selection) -> Vec<Vec<Arena>> {
    let of_program = |program: &SelectedProgram| place_activations(request.graph, program);
    let targets = selection.targets.par_iter();
    targets.map(|target| target.programs.par_iter().map(of_program).collect()).collect()
}

/// The first program that needs the largest arena, and that arena.
pub fn largest<'a>(
    selections: impl IntoIterator<Item = (&'a Selection, &'a Vec<Vec<Arena>>)>,
) -> Option<(&'a SelectedProgram, &'a Arena)> {
    let programs = selections.into_iter().flat_map(|(selection, arenas)| {
        selection.targets.iter().flat_map(|target| &target.programs).zip(arenas.iter().flatten())
    });
    programs.reduce(|largest, other| if bytes(other.1) > bytes(largest.1) { other } else { largest })
}

/// Bytes that an arena needs.
pub fn bytes(arena: &Arena) -> u64 {
    arena.values().map(|activation| activation.offset_bytes + activation.len_bytes).max().unwrap_or(0)
}

/// The activations of a program's arena, for people.
pub fn plans(graph: &FusedGraph, program: &SelectedProgram, arena: &Arena) -> Vec<ActivationPlan> {
    let plan = |(operand, activation): (&Operand, &Activation)| {
        let name = |id: ValueId| &graph.values[id.0].name;
        let Activation { offset_bytes, len_bytes, first, last } = *activation;
        ActivationPlan {
            name: match *operand {
                Operand::Encoded(id) => format!("{} as integers", name(id)),
                Operand::Sums(id) => format!("{} as sums", name(id)),
                Operand::Partials { of, .. } => format!("{} in parts", name(of)),
                Operand::ExpertRows { routes, .. } => format!("{} by expert", name(routes)),
                Operand::NpuInput { product, .. } => format!("activations of the NPU's product {product}"),
                Operand::NpuOutput { product, .. } => format!("outputs of the NPU's product {product}"),
                Operand::Value(id) => name(id).clone(),
                other => unreachable!("{other:?} is no activation"),
            },
            offset_bytes,
            len_bytes,
            first_use: first as u32,
            last_use: last as u32,
            reason: match (&program.dispatches[first].label, &program.dispatches[last].label) {
                (only, _) if first == last => format!("used within {only}"),
                (first, last) => format!("written by {first}, last read by {last}"),
            },
        }
    };
    arena.iter().map(plan).collect()
}

/// Activations of one program in one arena: ranges of values that are alive at the same time never overlap.
fn place_activations(graph: &FusedGraph, program: &SelectedProgram) -> Arena {
    let SelectedProgram { dispatches, kind: ProgramKind { rows, .. }, .. } = program;
    let row_len = |id: ValueId| {
        let value = &graph.values[id.0];
        rows * value.rows_per_token * stride(value.width)
    };
    let mut lives: Arena = BTreeMap::new();
    for (index, dispatch) in dispatches.iter().enumerate() {
        for operand in dispatch.operands.iter().filter(|operand| operand.is_activation()) {
            let len = || match *operand {
                Operand::Encoded(id) | Operand::Value(id) => row_len(id),
                Operand::Sums(id) => WORDS_PER_ELEMENT * row_len(id),
                Operand::Partials { len, .. } | Operand::ExpertRows { len, .. } => len,
                Operand::NpuInput { words, .. } | Operand::NpuOutput { words, .. } => words,
                other => unreachable!("{other:?} is no activation"),
            };
            let new = || Activation { offset_bytes: 0, len_bytes: 4 * len() as u64, first: index, last: index };
            lives.entry(*operand).or_insert_with(new).last = index;
        }
    }
    // Large ones first, each at the lowest offset that is free for all of its life.
    let mut wanted: Vec<(Operand, &mut Activation)> = lives.iter_mut().map(|(operand, one)| (*operand, one)).collect();
    wanted.sort_by_key(|(operand, activation)| (Reverse(activation.len_bytes), activation.first, *operand));
    let mut taken = Taken::new(dispatches.len());
    let stages = bounds(dispatches);
    for (_, activation) in wanted {
        let life = match program.npu_parts {
            1 => (activation.first, activation.last),
            _ => whole_stages(activation, &stages),
        };
        taken.place(activation, life);
    }
    lives
}

/// The stages of an activation's life: parts of the rows come one after the other within each.
fn whole_stages(activation: &Activation, stages: &[(usize, usize)]) -> (usize, usize) {
    let stage_of = |dispatch: usize| {
        *stages.iter().find(|(begin, end)| (*begin..*end).contains(&dispatch)).expect("each dispatch is in a stage")
    };
    (stage_of(activation.first).0, stage_of(activation.last).1 - 1)
}

/// By dispatch, the ranges of the activations that are alive in it.
struct Taken(Vec<Vec<(u64, u64)>>);

impl Taken {
    fn new(n_dispatches: usize) -> Taken {
        Taken(vec![Vec::new(); n_dispatches])
    }

    /// Gives the activation the lowest offset that is free from the first dispatch of `life` to its last.
    fn place(&mut self, activation: &mut Activation, (first, last): (usize, usize)) {
        let of_life = &mut self.0[first..=last];
        let mut taken: Vec<(u64, u64)> = of_life.iter().flatten().copied().collect();
        taken.sort_unstable();
        let mut offset = 4 * COUNTERS as u64;
        for (start, end) in taken {
            if offset + activation.len_bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(BUFFER_ALIGN));
        }
        activation.offset_bytes = offset;
        of_life.iter_mut().for_each(|taken| taken.push((offset, offset + activation.len_bytes)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_alive_together_never_overlap(lives in prop::collection::vec((0usize..40, 0usize..10, 1u64..5000), 1..40)) {
            let (mut taken, mut placed) = (Taken::new(50), Vec::<Activation>::new());
            for (first, length, len_bytes) in lives {
                let mut one = Activation { offset_bytes: 0, len_bytes, first, last: first + length };
                let life = (one.first, one.last);
                taken.place(&mut one, life);
                prop_assert!(one.offset_bytes.is_multiple_of(BUFFER_ALIGN));
                for other in &placed {
                    let together = one.first <= other.last && other.first <= one.last;
                    let apart = one.offset_bytes >= other.offset_bytes + other.len_bytes
                        || other.offset_bytes >= one.offset_bytes + one.len_bytes;
                    prop_assert!(!together || apart);
                }
                placed.push(one);
            }
        }
    }
}
