//! Which dispatches have to wait for those before them: the compiler plans barriers by it, and readers check a plan by it.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernels::{Binding, BufferRef, Order};

/// What the dispatches since the last barrier read and write.
#[derive(Debug, Default)]
pub struct Hazards {
    reads: Ranges,
    writes: Ranges,
    /// Ranges that were written, as they were bound.
    outputs: BTreeSet<Range>,
    /// The last dispatch waited by its counter: no barrier covers what came before it.
    counted: bool,
}

impl Hazards {
    /// Whether a dispatch with these bindings has to wait: it reads what was written, or writes what was read or written.
    ///
    /// `is_next_part`: it writes other elements of the output of a dispatch before it, of which both bind the same range.
    pub fn must_wait(&self, bindings: &[Binding], is_next_part: bool) -> bool {
        let waits = |binding: &Binding| {
            let Some(range) = range(binding) else { return false };
            let is_part = is_next_part && binding.writes && self.outputs.contains(&range);
            (self.writes.overlap(range) && !is_part) || (binding.writes && self.reads.overlap(range))
        };
        self.counted || bindings.iter().any(waits)
    }

    /// Adds a dispatch that is started in this order.
    pub fn record(&mut self, bindings: &[Binding], order: Order) {
        if order != Order::Free {
            *self = Hazards::default();
        }
        self.counted = order == Order::CounterSync;
        for (range, writes) in bindings.iter().filter_map(|one| Some((range(one)?, one.writes))) {
            if writes {
                self.writes.insert(range);
                self.outputs.insert(range);
            } else {
                self.reads.insert(range);
            }
        }
    }
}

/// Buffer, first byte, and the byte behind the last; the end of a whole buffer is the largest number.
type Range = (BufferRef, u64, u64);

/// `None` for weights, which no dispatch writes.
fn range(binding: &Binding) -> Option<Range> {
    let Binding { buffer, offset_bytes, len_bytes, .. } = *binding;
    let end = if len_bytes == 0 { u64::MAX } else { offset_bytes + len_bytes };
    (!matches!(buffer, BufferRef::Weights { .. })).then_some((buffer, offset_bytes, end))
}

/// A union of ranges: the end of each by its buffer and start. No two overlap.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<(BufferRef, u64), u64>);

impl Ranges {
    fn overlap(&self, range: Range) -> bool {
        self.last_overlap(range).is_some()
    }

    fn last_overlap(&self, (buffer, start, end): Range) -> Option<Range> {
        let (&(of, other), &other_end) = self.0.range(..(buffer, end)).next_back()?;
        (of == buffer && start < other_end).then_some((of, other, other_end))
    }

    fn insert(&mut self, (buffer, mut start, mut end): Range) {
        while let Some((_, other, other_end)) = self.last_overlap((buffer, start, end)) {
            self.0.remove(&(buffer, other));
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.0.insert((buffer, start), end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(offset_bytes: u64, writes: bool) -> Binding {
        Binding { buffer: BufferRef::Arena, offset_bytes, len_bytes: 256, writes }
    }

    fn order(hazards: &mut Hazards, bindings: &[Binding], is_next_part: bool) -> Order {
        let order = if hazards.must_wait(bindings, is_next_part) { Order::Barrier } else { Order::Free };
        hazards.record(bindings, order);
        order
    }

    #[test]
    fn parts_of_one_matrix_do_not_wait_for_each_other() {
        let hazards = &mut Hazards::default();
        assert_eq!(order(hazards, &[arena(0, false), arena(256, true)], false), Order::Free);
        assert_eq!(order(hazards, &[arena(0, false), arena(256, true)], true), Order::Free);
        // A reader of the result waits once, and so does a part that reads what was written.
        assert_eq!(order(hazards, &[arena(256, false), arena(512, true)], false), Order::Barrier);
        assert_eq!(order(hazards, &[arena(512, false), arena(768, true)], true), Order::Barrier);
        assert_eq!(order(hazards, &[arena(768, true)], false), Order::Barrier);
    }

    #[test]
    fn a_dispatch_after_one_with_counter_sync_has_it_too_or_a_barrier() {
        let hazards = &mut Hazards::default();
        hazards.record(&[arena(0, true)], Order::CounterSync);
        assert_eq!(order(hazards, &[arena(512, false)], false), Order::Barrier);
        assert_eq!(order(hazards, &[arena(512, false)], false), Order::Free);
    }

    #[test]
    fn ranges_that_overlap_become_one() {
        let mut ranges = Ranges::default();
        for (start, end) in [(0, 4), (8, 12), (20, 24), (3, 9)] {
            ranges.insert((BufferRef::Arena, start, end));
        }
        assert_eq!(
            ranges.0.into_iter().collect::<Vec<_>>(),
            [((BufferRef::Arena, 0), 12), ((BufferRef::Arena, 20), 24)]
        );
    }
}
