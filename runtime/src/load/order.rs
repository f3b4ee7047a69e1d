//! The order in which weights are loaded: pure functions of the artifact. Slices are loaded in chunks, and chunks in an order,
//! so that one number (how many chunks from the front are complete) determines which dispatches can run.

use unicorn_artifact::{Binding, BufferRef, Dispatch, TargetKernels};

/// Consecutive bytes of one slice that are loaded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightChunk {
    /// Index of the weight slice.
    pub slice: usize,
    /// Offset in the slice; a multiple of [`WEIGHT_CHUNK_BYTES`].
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

/// Every chunk of every slice once.
#[derive(Clone, Debug)]
pub struct LoadOrder {
    chunks: Vec<WeightChunk>,
    /// For each slice, the positions of its chunks in `chunks`.
    positions: Vec<Vec<usize>>,
}

/// Size of a chunk: large enough for several reads, and small enough that the first layer is complete early.
pub const WEIGHT_CHUNK_BYTES: u64 = 8 << 20;

const UNPLACED: usize = usize::MAX;

impl LoadOrder {
    /// The order of the slices in the file. `slice_bytes`: length of each slice.
    pub fn in_file_order(slice_bytes: &[u64]) -> LoadOrder {
        let mut order = LoadOrder::empty(slice_bytes);
        order.append_rest(slice_bytes);
        order
    }

    /// The order in which programs first read the weights. The programs of one token come first: they read all that
    /// generating text needs.
    pub fn in_reading_order(slice_bytes: &[u64], target: &TargetKernels) -> LoadOrder {
        let mut order = LoadOrder::empty(slice_bytes);
        let (one_token, others): (Vec<_>, Vec<_>) =
            target.programs.iter().partition(|program| program.samples && program.rows == 1);
        for dispatch in one_token.into_iter().chain(others).flat_map(|program| &program.dispatches) {
            for binding in &dispatch.bindings {
                let Some((slice, first, end)) = order.span(binding) else { continue };
                (first..end).for_each(|index| order.append(slice_bytes, slice, index));
            }
        }
        order.append_rest(slice_bytes);
        order
    }

    /// All chunks, first to load first.
    pub fn chunks(&self) -> &[WeightChunk] {
        &self.chunks
    }

    /// Positions in [`LoadOrder::chunks`] of a slice's chunks, by their offset in the slice.
    pub fn positions(&self, slice: usize) -> &[usize] {
        &self.positions[slice]
    }

    /// Number of chunks from the front that must be complete before a dispatch can run.
    pub fn chunks_needed(&self, dispatch: &Dispatch) -> usize {
        let spans = dispatch.bindings.iter().filter_map(|binding| self.span(binding));
        let last = spans.flat_map(|(slice, first, end)| &self.positions[slice][first..end]).max();
        last.map_or(0, |position| position + 1)
    }

    fn empty(slice_bytes: &[u64]) -> LoadOrder {
        let unplaced = |bytes: &u64| vec![UNPLACED; bytes.div_ceil(WEIGHT_CHUNK_BYTES) as usize];
        LoadOrder { chunks: Vec::new(), positions: slice_bytes.iter().map(unplaced).collect() }
    }

    /// Appends all chunks that are not placed yet, in file order.
    fn append_rest(&mut self, slice_bytes: &[u64]) {
        for slice in 0..slice_bytes.len() {
            (0..self.positions[slice].len()).for_each(|index| self.append(slice_bytes, slice, index));
        }
    }

    fn append(&mut self, slice_bytes: &[u64], slice: usize, index: usize) {
        if self.positions[slice][index] != UNPLACED {
            return;
        }
        let offset_bytes = index as u64 * WEIGHT_CHUNK_BYTES;
        let len_bytes = WEIGHT_CHUNK_BYTES.min(slice_bytes[slice] - offset_bytes);
        self.positions[slice][index] = self.chunks.len();
        self.chunks.push(WeightChunk { slice, offset_bytes, len_bytes });
    }

    /// The slice that a binding reads, with the indices of its first chunk and of the one behind its last.
    fn span(&self, binding: &Binding) -> Option<(usize, usize, usize)> {
        let BufferRef::Weights { slice } = binding.buffer else { return None };
        let slice = slice as usize;
        let count = self.positions[slice].len();
        if binding.len_bytes == 0 {
            return Some((slice, 0, count));
        }
        let end = (binding.offset_bytes + binding.len_bytes).div_ceil(WEIGHT_CHUNK_BYTES) as usize;
        // A range may end in the padding behind a slice.
        Some((slice, (binding.offset_bytes / WEIGHT_CHUNK_BYTES) as usize, end.min(count)))
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
            images: false,
            from_tokens: 0,
            dispatches,
        };
        TargetKernels {
            name: "made up".into(),
            matches: TargetMatch::default(),
            modules: Default::default(),
            pipelines: vec![],
            programs: programs.into_iter().map(program).collect(),
            checksum: None,
            bandwidth_probe: None,
            fragments: None,
        }
    }

    #[test]
    fn chunks_are_loaded_in_the_order_in_which_steps_read_them() {
        let slices = [20 * MIB, 9 * MIB];
        // The embedding is stored last and read first; the prompt's program reads what no step of one token does.
        let one_token = vec![reads(1, 0, 3 * MIB), reads(0, 0, 4 * MIB), reads(0, 4 * MIB, 5 * MIB)];
        let prompt = vec![reads(1, 0, 3 * MIB), reads(1, 8 * MIB, MIB)];
        let target = target(vec![(64, false, prompt), (1, true, one_token)]);
        let order = LoadOrder::in_reading_order(&slices, &target);
        let found: Vec<(usize, u64)> =
            order.chunks().iter().map(|chunk| (chunk.slice, chunk.offset_bytes / WEIGHT_CHUNK_BYTES)).collect();
        assert_eq!(found, [(1, 0), (0, 0), (0, 1), (1, 1), (0, 2)]);
        let needs: Vec<usize> =
            target.programs.iter().flat_map(|one| &one.dispatches).map(|one| order.chunks_needed(one)).collect();
        assert_eq!(needs, [1, 4, 1, 2, 3]);
        assert_eq!(order.chunks()[4].len_bytes, 4 * MIB);
        assert_eq!(order.chunks()[3].len_bytes, MIB);
    }

    #[test]
    fn every_byte_is_loaded_once() {
        let slices = [1, 8 * MIB, 0, 8 * MIB + 1];
        for order in [LoadOrder::in_file_order(&slices), LoadOrder::in_reading_order(&slices, &target(vec![]))] {
            for (slice, &bytes) in slices.iter().enumerate() {
                let of_slice = order.positions(slice).iter().map(|&position| order.chunks()[position]);
                let mut at = 0;
                for chunk in of_slice {
                    assert_eq!((chunk.slice, chunk.offset_bytes), (slice, at));
                    at += chunk.len_bytes;
                }
                assert_eq!(at, bytes);
            }
        }
    }

    #[test]
    fn a_dispatch_without_weights_needs_no_chunk() {
        let order = LoadOrder::in_file_order(&[MIB]);
        assert_eq!(order.chunks_needed(&Dispatch { bindings: vec![], ..reads(0, 0, 1) }), 0);
        // The whole slice, and a range that ends in the padding.
        assert_eq!(order.chunks_needed(&reads(0, 0, 0)), 1);
        assert_eq!(order.chunks_needed(&reads(0, 512, MIB)), 1);
    }
}
