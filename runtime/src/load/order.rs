//! The pieces in which weights travel to the device, in which order, and how many of them a dispatch waits for: pure
//! functions of the artifact. A route is followed from its front, so that one number says what has arrived.

use unicorn_artifact::{Binding, BufferRef, Dispatch, TargetKernels};

/// Bytes of one slice that are moved at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub slice: usize,
    /// In the slice; a multiple of [`PIECE_BYTES`].
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

/// Every piece of every slice once.
#[derive(Clone, Debug)]
pub struct Route {
    pieces: Vec<Piece>,
    /// Of each slice, where on the route its pieces are.
    places: Vec<Vec<usize>>,
}

/// What is told of as one when it has arrived: many reads, and few enough of them that a layer is soon there.
pub const PIECE_BYTES: u64 = 8 << 20;

const NOT_ON_THE_ROUTE: usize = usize::MAX;

impl Route {
    /// As slices of these lengths lie in the file.
    pub fn in_file_order(slice_bytes: &[u64]) -> Route {
        let mut route = Route::empty(slice_bytes);
        route.append_rest(slice_bytes);
        route
    }

    /// As the programs first read them: those of one token in front, because they read everything that a text needs.
    pub fn in_reading_order(slice_bytes: &[u64], target: &TargetKernels) -> Route {
        let mut route = Route::empty(slice_bytes);
        let (one_token, others): (Vec<_>, Vec<_>) =
            target.programs.iter().partition(|program| program.samples && program.rows == 1);
        for dispatch in one_token.into_iter().chain(others).flat_map(|program| &program.dispatches) {
            for binding in &dispatch.bindings {
                let Some((slice, first, end)) = route.span(binding) else { continue };
                (first..end).for_each(|index| route.append(slice_bytes, slice, index));
            }
        }
        route.append_rest(slice_bytes);
        route
    }

    /// From the front.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Where on the route the pieces of a slice are, in the slice's order.
    pub fn places(&self, slice: usize) -> &[usize] {
        &self.places[slice]
    }

    /// How many pieces from the front must be there before a dispatch may run.
    pub fn needed_by(&self, dispatch: &Dispatch) -> usize {
        let spans = dispatch.bindings.iter().filter_map(|binding| self.span(binding));
        let last = spans.flat_map(|(slice, first, end)| &self.places[slice][first..end]).max();
        last.map_or(0, |place| place + 1)
    }

    fn empty(slice_bytes: &[u64]) -> Route {
        let none = |bytes: &u64| vec![NOT_ON_THE_ROUTE; bytes.div_ceil(PIECE_BYTES) as usize];
        Route { pieces: Vec::new(), places: slice_bytes.iter().map(none).collect() }
    }

    fn append_rest(&mut self, slice_bytes: &[u64]) {
        for slice in 0..slice_bytes.len() {
            (0..self.places[slice].len()).for_each(|index| self.append(slice_bytes, slice, index));
        }
    }

    fn append(&mut self, slice_bytes: &[u64], slice: usize, index: usize) {
        if self.places[slice][index] != NOT_ON_THE_ROUTE {
            return;
        }
        let offset_bytes = index as u64 * PIECE_BYTES;
        let len_bytes = PIECE_BYTES.min(slice_bytes[slice] - offset_bytes);
        self.places[slice][index] = self.pieces.len();
        self.pieces.push(Piece { slice, offset_bytes, len_bytes });
    }

    /// The slice that a binding reads, and its pieces from the first to behind the last.
    fn span(&self, binding: &Binding) -> Option<(usize, usize, usize)> {
        let BufferRef::Weights { slice } = binding.buffer else { return None };
        let slice = slice as usize;
        let all = self.places[slice].len();
        if binding.len_bytes == 0 {
            return Some((slice, 0, all));
        }
        let end = (binding.offset_bytes + binding.len_bytes).div_ceil(PIECE_BYTES) as usize;
        // A range may end in the padding behind a slice.
        Some((slice, (binding.offset_bytes / PIECE_BYTES) as usize, end.min(all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicorn_artifact::{LogitsRows, Order, Program, TargetMatch};

    const MIB: u64 = 1 << 20;

    fn reads(slice: u32, offset_bytes: u64, len_bytes: u64) -> Dispatch {
        let buffer = BufferRef::Weights { slice };
        Dispatch {
            pipeline: 0,
            workgroups: [1, 1, 1],
            alternatives: vec![],
            bindings: vec![
                Binding { buffer: BufferRef::Arena, offset_bytes: 0, len_bytes: 64, writes: true },
                Binding { buffer, offset_bytes, len_bytes, writes: false },
            ],
            order: Order::Free,
            label: String::new(),
            weight_bytes: len_bytes,
        }
    }

    fn target(programs: Vec<(u32, bool, Vec<Dispatch>)>) -> TargetKernels {
        let program = |(rows, samples, dispatches)| Program {
            rows,
            logits: LogitsRows::None,
            samples,
            batch: samples,
            from_tokens: 0,
            dispatches,
        };
        TargetKernels {
            name: "made up".into(),
            matches: TargetMatch::default(),
            pipelines: vec![],
            programs: programs.into_iter().map(program).collect(),
            checksum: None,
            reads: None,
            fragments: None,
        }
    }

    #[test]
    fn pieces_follow_the_steps_not_the_file() {
        let slices = [20 * MIB, 9 * MIB];
        // The embedding lies behind, and is read first; the prompt's program reads what no step of one token does.
        let one_token = vec![reads(1, 0, 3 * MIB), reads(0, 0, 4 * MIB), reads(0, 4 * MIB, 5 * MIB)];
        let prompt = vec![reads(1, 0, 3 * MIB), reads(1, 8 * MIB, MIB)];
        let target = target(vec![(64, false, prompt), (1, true, one_token)]);
        let route = Route::in_reading_order(&slices, &target);
        let order: Vec<(usize, u64)> =
            route.pieces().iter().map(|piece| (piece.slice, piece.offset_bytes / PIECE_BYTES)).collect();
        assert_eq!(order, [(1, 0), (0, 0), (0, 1), (1, 1), (0, 2)]);
        let needs: Vec<usize> =
            target.programs.iter().flat_map(|one| &one.dispatches).map(|one| route.needed_by(one)).collect();
        assert_eq!(needs, [1, 4, 1, 2, 3]);
        assert_eq!(route.pieces()[4].len_bytes, 4 * MIB);
        assert_eq!(route.pieces()[3].len_bytes, MIB);
    }

    #[test]
    fn every_byte_travels_once() {
        let slices = [1, 8 * MIB, 0, 8 * MIB + 1];
        for route in [Route::in_file_order(&slices), Route::in_reading_order(&slices, &target(vec![]))] {
            for (slice, &bytes) in slices.iter().enumerate() {
                let of_slice = route.places(slice).iter().map(|&place| route.pieces()[place]);
                let mut at = 0;
                for piece in of_slice {
                    assert_eq!((piece.slice, piece.offset_bytes), (slice, at));
                    at += piece.len_bytes;
                }
                assert_eq!(at, bytes);
            }
        }
    }

    #[test]
    fn a_dispatch_without_weights_waits_for_nothing() {
        let route = Route::in_file_order(&[MIB]);
        assert_eq!(route.needed_by(&Dispatch { bindings: vec![], ..reads(0, 0, 1) }), 0);
        // All of it, and a range that ends in the padding.
        assert_eq!(route.needed_by(&reads(0, 0, 0)), 1);
        assert_eq!(route.needed_by(&reads(0, 512, MIB)), 1);
    }
}
