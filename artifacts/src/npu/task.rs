//! A transfer of a shim's DMA engine: words, innermost dimension first.

/// Unit of a DMA engine in bytes: transfers, offsets and strides are multiples of it.
pub const WORD_BYTES: usize = 4;

/// A buffer descriptor of a shim tile, and the number of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimTask {
    /// Index of the host's buffer.
    pub argument: usize,
    /// Bytes before the first word.
    pub offset_bytes: usize,
    /// Words of one run.
    pub words: usize,
    /// Counts of the inner two dimensions; none: the words of a run are consecutive.
    pub wraps: Option<[usize; 2]>,
    /// Strides of the three dimensions, in words.
    pub strides: [usize; 3],
    /// Words between one run and the next.
    pub iteration_stride: usize,
    /// Number of runs.
    pub runs: usize,
}

impl ShimTask {
    /// Byte offset of word `index` of run `run`.
    pub fn at(&self, run: usize, index: usize) -> usize {
        let words = match self.wraps {
            None => index,
            Some([inner, middle]) => {
                index % inner * self.strides[0]
                    + index / inner % middle * self.strides[1]
                    + index / inner / middle * self.strides[2]
            }
        };
        self.offset_bytes + WORD_BYTES * (words + run * self.iteration_stride)
    }

    /// Bytes of the host's buffer up to the end of the last word that a task of one word or more touches. Strides are not negative.
    pub fn end(&self) -> usize {
        let words = match self.wraps {
            None => self.words - 1,
            // The last word of each dimension, not the last word of the run: an inner dimension may reach further.
            Some([inner, middle]) => {
                (inner.min(self.words) - 1) * self.strides[0]
                    + (middle.min(self.words.div_ceil(inner)) - 1) * self.strides[1]
                    + (self.words.div_ceil(inner * middle) - 1) * self.strides[2]
            }
        };
        self.offset_bytes + WORD_BYTES * (words + (self.runs - 1) * self.iteration_stride + 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_task_ends_behind_its_furthest_word(
            counts in [1usize..6, 1..5, 1..4],
            strides in [1usize..2, 1..50, 1..50],
            runs in 1usize..4,
            iteration_stride in 0usize..30,
            is_line: bool,
        ) {
            let wraps = (!is_line).then_some([counts[0], counts[1]]);
            let words = counts.iter().product();
            let task = ShimTask { argument: 0, offset_bytes: 8, words, wraps, strides, iteration_stride, runs };
            let all = (0..runs).flat_map(|run| (0..words).map(move |word| (run, word)));
            let furthest = all.map(|(run, word)| task.at(run, word) + WORD_BYTES).max();
            prop_assert_eq!(Some(task.end()), furthest);
        }
    }
}
