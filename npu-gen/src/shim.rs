//! A transfer in the form of the shim's DMA engine: words instead of elements, innermost dimension first.

pub use unicorn_artifact::npu::ShimTask;

use crate::design::{Element, Transfer};
use crate::device::{TileKind, WORD_BYTES, limits};
use crate::rule::Rule;

/// The transfer, whose elements have the size of `element`.
pub fn task(transfer: &Transfer, element: Element) -> ShimTask {
    let words = |elements: usize| elements * element.bytes() / WORD_BYTES;
    let [runs, outer, middle, inner] = transfer.sizes;
    let [iteration_stride, outer_stride, middle_stride, _] = transfer.strides;
    let is_line = outer == 1 && middle == 1;
    ShimTask {
        argument: transfer.argument,
        offset_bytes: transfer.offset * element.bytes(),
        words: words(inner) * middle * outer,
        wraps: (!is_line).then_some([words(inner), middle]),
        // The stride of a dimension with count 1 is never used; the encoding has no 0.
        strides: if is_line { [1; 3] } else { [1, words(middle_stride).max(1), words(outer_stride).max(1)] },
        // It is never used by a task that runs once.
        iteration_stride: if runs > 1 { words(iteration_stride) } else { 0 },
        runs,
    }
}

/// Words from word `index` of a run on that lie one behind the other in the host's buffer.
pub fn consecutive(task: &ShimTask, index: usize) -> usize {
    let left = task.words - index;
    match task.wraps {
        None => left,
        Some([inner, _]) if task.strides[0] == 1 => left.min(inner - index % inner),
        Some(_) => 1,
    }
}

/// Whether a transfer is one run of consecutive elements, which no count limits.
pub fn is_line(transfer: &Transfer) -> bool {
    transfer.sizes[..3] == [1; 3]
}

/// Why the engine cannot make a transfer, as rules and text; none if it can.
pub fn faults(transfer: &Transfer, element: Element) -> Vec<(Rule, String)> {
    let limits = limits(TileKind::Shim);
    let mut faults = Vec::new();
    let mut expect = |holds: bool, rule: Rule, fault: String| {
        if !holds {
            faults.push((rule, fault));
        }
    };
    let bytes = |elements: usize| elements * element.bytes();
    let what = format!("sizes are {:?}, expected none of 0", transfer.sizes);
    expect(transfer.sizes.iter().all(|size| *size > 0), Rule::TransferSizes, what);
    let what = format!("innermost stride is {}, expected 1", transfer.strides[3]);
    expect(transfer.strides[3] == 1, Rule::InnermostStride, what);
    for (what, value) in [("offset", transfer.offset), ("innermost size", transfer.sizes[3])] {
        let value = bytes(value);
        expect(
            value.is_multiple_of(WORD_BYTES),
            Rule::TransferWords,
            format!("{what} is {value} bytes, expected a multiple of {WORD_BYTES}"),
        );
    }
    for (size, stride) in transfer.sizes.iter().zip(transfer.strides).take(3).filter(|(size, _)| **size > 1) {
        let value = bytes(stride);
        expect(
            value.is_multiple_of(WORD_BYTES),
            Rule::TransferWords,
            format!("stride of {size} steps is {value} bytes, expected a multiple of {WORD_BYTES}"),
        );
        let words = value / WORD_BYTES;
        let what = format!("stride is {words} words, expected at most {}", limits.stride_max);
        expect(words <= limits.stride_max, Rule::StrideMax, what);
    }
    for (size, stride) in transfer.sizes.iter().zip(transfer.strides).skip(1).take(2) {
        expect(
            *size == 1 || stride > 0,
            Rule::ZeroStride,
            format!("stride of {size} steps is 0, which only the outermost dimension has"),
        );
    }
    if !is_line(transfer) {
        let [runs, outer, middle, inner] = transfer.sizes;
        let inner = bytes(inner) / WORD_BYTES;
        for (what, size) in [("innermost size", inner), ("second size", middle), ("third size", outer)] {
            let what = format!("{what} is {size}, expected at most {}", limits.wrap_max);
            expect(size <= limits.wrap_max, Rule::Wraps, what);
        }
        let most = crate::device::ITERATION_MAX;
        let what = format!("outermost size is {runs}, expected at most {most}");
        expect(runs <= most, Rule::Iterations, what);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design::FifoId;

    fn transfer(sizes: [usize; 4], strides: [usize; 4]) -> Transfer {
        Transfer { fifo: FifoId(0), argument: 0, offset: 8, sizes, strides, descriptor: 0 }
    }

    #[test]
    fn words_are_visited_in_the_order_of_the_nested_loops() {
        let transfer = transfer([2, 3, 2, 4], [100, 20, 8, 1]);
        let task = super::task(&transfer, Element::Bf16);
        let mut expected = Vec::new();
        for run in 0..2 {
            for outer in 0..3 {
                for middle in 0..2 {
                    for inner in (0..4).step_by(2) {
                        expected.push(2 * (8 + 100 * run + 20 * outer + 8 * middle + inner));
                    }
                }
            }
        }
        let found: Vec<usize> = (0..task.runs)
            .flat_map(|run| (0..task.words).map(move |word| (run, word)))
            .map(|(r, w)| task.at(r, w))
            .collect();
        assert_eq!(found, expected);
        // Two words at a time, but where the innermost stride is another.
        let runs = |task: &ShimTask| (0..task.words).map(|word| consecutive(task, word)).collect::<Vec<_>>();
        assert_eq!(runs(&task), [2, 1].repeat(6));
        assert_eq!(runs(&ShimTask { strides: [2, 4, 10], ..task.clone() }), [1; 12]);
        assert_eq!(runs(&ShimTask { wraps: None, ..task }), Vec::from_iter((1..=12).rev()));
    }

    #[test]
    fn each_limit_of_the_engine_is_checked() {
        let faults = |sizes, strides| {
            let found = faults(&transfer(sizes, strides), Element::Bf16);
            found.into_iter().map(|(_, what)| what).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(faults([1, 1, 1, 1 << 20], [0, 0, 0, 1]), "");
        assert_eq!(faults([64, 1023, 1023, 2046], [0, 4, 4, 1]), "");
        assert!(faults([65, 1, 2, 2], [0, 0, 2, 1]).starts_with("outermost size is 65"));
        assert!(faults([1, 1024, 2, 2], [0, 2, 2, 1]).starts_with("third size is 1024"));
        assert!(faults([1, 2, 1024, 2], [0, 2, 2, 1]).starts_with("second size is 1024"));
        assert!(faults([1, 1, 2, 2048], [0, 0, 2, 1]).starts_with("innermost size is 1024"));
        assert!(faults([1, 1, 2, 3], [0, 0, 2, 1]).starts_with("innermost size is 6 bytes"));
        assert!(faults([1, 1, 2, 2], [0, 0, 3, 1]).starts_with("stride of 2 steps is 6 bytes"));
        assert!(faults([1, 1, 2, 2], [0, 0, 1 << 22, 1]).starts_with("stride is 2097152 words"));
        assert!(faults([1, 2, 1, 2], [0, 0, 0, 1]).starts_with("stride of 2 steps is 0"));
        assert!(faults([1, 1, 1, 4], [0, 0, 0, 2]).starts_with("innermost stride is 2"));
        assert!(faults([1, 0, 1, 4], [0, 0, 0, 1]).starts_with("sizes are"));
    }
}
