//! How long a step takes on both devices at once: the end of the later of its two queues, by estimates, for a choice of what the NPU computes.
//!
//! ```text
//! GPU   a0 a1 │ b0   b1 │ c0   c1          stages between the NPU's commands, of part 0 and 1 of the rows
//! NPU      A0   A1   B0   B1               commands: each behind its own stage, and before that part's next stage
//! ```
//!
//! The order is that of [`crate::place::npu_schedule`] where all dispatches can be divided: stage after stage, and in each of them part after part. Estimated are
//! products and attention ([`super::cost`]). Norms and whatever else the GPU computes are left out, and so is that both devices read the same DRAM.

use std::collections::{BTreeMap, BTreeSet};

use unicorn_artifact::npu::MAX_RUNS;
use unicorn_npu::Problem;

use super::attention::attention_of_layers;
use super::cost::{DISPATCH_S, Times, on_gpu_s};
use super::options::{NpuOptions, NpuWork};
use crate::fuse::{FusedGraph, FusedNode, FusedOp, MatrixId};
use crate::import::ModelConfig;
use crate::select::PROGRAMS;

/// The works that the NPU computes.
pub type Choice = BTreeSet<NpuWork>;

/// A step, in the order of its work, for as many tokens as an NPU program has rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    items: Vec<Item>,
    /// Parts of the rows.
    parts: usize,
    /// Seconds of the step on the GPU alone, which takes all rows at a time and reads each weight once.
    alone_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Item {
    /// Only the GPU computes it: seconds.
    Gpu(f64),
    /// A product that has a program.
    Product(NpuWork, Times),
}

impl Timeline {
    /// The longest step that the NPU takes in parts of its programs' rows, in the middle of a sequence of `context_tokens`. `problems`: all of its products;
    /// `with_program`: those that have programs.
    pub fn of_step(
        graph: &FusedGraph,
        config: &ModelConfig,
        options: &NpuOptions,
        context_tokens: usize,
        problems: &BTreeMap<MatrixId, Problem>,
        with_program: &BTreeMap<MatrixId, (NpuWork, Times)>,
    ) -> Timeline {
        let parts = parts(options.rows);
        // Seconds of the GPU for so many rows.
        let gpu_s = |rows: usize| {
            let options = NpuOptions { rows, ..options.clone() };
            let of_attention = attention_of_layers(config, &options, context_tokens / 2);
            move |node: &FusedNode| match &node.op {
                FusedOp::MatMul { matrix, .. } => problems.get(matrix).map(|one| on_gpu_s(&Problem { rows, ..*one })),
                FusedOp::Attention { .. } => node.layer.and_then(|layer| of_attention.get(&layer)).copied(),
                _ => None,
            }
        };
        let of_part = gpu_s(options.rows);
        let item = |node: &FusedNode| {
            let FusedOp::MatMul { matrix, .. } = &node.op else { return of_part(node).map(Item::Gpu) };
            let product = with_program.get(matrix).map(|(work, times)| Item::Product(*work, *times));
            product.or_else(|| of_part(node).map(Item::Gpu))
        };
        let items = graph.nodes.iter().filter_map(item).collect();
        let alone_s = graph.nodes.iter().filter_map(gpu_s(parts * options.rows)).sum();
        Timeline { items, parts, alone_s }
    }

    /// Tokens of the step, of programs of `rows` rows.
    pub fn tokens(&self, rows: usize) -> usize {
        self.parts * rows
    }

    /// Seconds until both queues are empty.
    pub fn length_s(&self, on_npu: &Choice) -> f64 {
        if on_npu.is_empty() {
            return self.alone_s;
        }
        let (stages, last) = self.stages(on_npu);
        let (mut gpu, mut npu) = (0.0f64, 0.0f64);
        // When the NPU has ended with a part.
        let mut ready = vec![0.0f64; self.parts];
        for (gpu_s, npu_s) in stages {
            for ready in &mut ready {
                gpu = gpu.max(*ready) + gpu_s;
                npu = npu.max(gpu) + npu_s;
                *ready = npu;
            }
        }
        ready.into_iter().fold(gpu, |gpu, ready| gpu.max(ready) + last)
    }

    /// Seconds of the GPU's work before each command and of that command, and of the work behind the last.
    fn stages(&self, on_npu: &Choice) -> (Vec<(f64, f64)>, f64) {
        let (mut stages, mut gpu_s) = (Vec::new(), 0.0);
        for item in &self.items {
            match item {
                Item::Product(work, times) if on_npu.contains(work) => {
                    // The GPU writes activations before the command and reads outputs behind it.
                    stages.push((gpu_s + times.handed_s / 2.0, times.computed.s + DISPATCH_S));
                    gpu_s = times.handed_s / 2.0;
                }
                Item::Product(_, times) => gpu_s += times.gpu.s,
                Item::Gpu(s) => gpu_s += s,
            }
        }
        (stages, gpu_s)
    }

    /// The choice with the shortest timeline among those of `works` that `fits`; of equal ones, that with the least work of the NPU.
    pub fn shortest(&self, works: &[NpuWork], fits: impl Fn(&Choice) -> bool) -> Choice {
        let subset = |bits: usize| -> Choice {
            works.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1).map(|(_, work)| *work).collect()
        };
        let mut choices: Vec<Choice> = (0..1 << works.len()).map(subset).filter(fits).collect();
        choices.sort_by_key(BTreeSet::len);
        let shortest = choices.into_iter().min_by(|one, other| self.length_s(one).total_cmp(&self.length_s(other)));
        shortest.unwrap_or_default()
    }
}

/// Parts of `rows` rows in the longest step that is whole ones.
fn parts(rows: usize) -> usize {
    let is_whole = |step: &usize| step.is_multiple_of(rows) && step / rows <= MAX_RUNS as usize && rows > 1;
    PROGRAMS.iter().map(|kind| kind.rows).filter(is_whole).max().map_or(1, |step| step / rows)
}

#[cfg(test)]
mod tests {
    use super::super::cost::Limited;
    use super::*;

    fn product(work: NpuWork, gpu_s: f64, npu_s: f64) -> Item {
        let limited = |s| Limited { s, by: "the test" };
        Item::Product(work, Times { gpu: limited(gpu_s), computed: limited(npu_s - DISPATCH_S), handed_s: 0.0 })
    }

    fn choice(works: &[NpuWork]) -> Choice {
        works.iter().copied().collect()
    }

    /// Two layers of these.
    fn two_layers(layer: [Item; 2], parts: usize) -> Timeline {
        let gpu_s = |item: &Item| match item {
            Item::Gpu(s) => *s,
            Item::Product(_, times) => times.gpu.s,
        };
        let alone_s = (2 * parts) as f64 * layer.iter().map(gpu_s).sum::<f64>();
        Timeline { items: [layer, layer].concat(), parts, alone_s }
    }

    #[test]
    fn parts_of_the_rows_are_computed_at_the_same_time() {
        // A product that both compute as fast, and other work of the GPU.
        let layer = [product(NpuWork::Ffn, 4.0, 4.0), Item::Gpu(4.0)];
        let lengths = |parts| [&[][..], &[NpuWork::Ffn]].map(|works| two_layers(layer, parts).length_s(&choice(works)));
        // In one part, everything waits for everything.
        assert_eq!(lengths(1), [16.0, 16.0]);
        // In two, the NPU begins at 0 and 4, 8 and 12; the GPU is at the other part meanwhile, and at both in the end.
        assert_eq!(lengths(2), [32.0, 20.0]);
    }

    #[test]
    fn work_that_takes_longer_alone_is_chosen_where_the_timeline_is_shorter() {
        let slower = |parts| two_layers([product(NpuWork::Ffn, 4.0, 5.0), Item::Gpu(4.0)], parts);
        assert_eq!(slower(1).shortest(&NpuWork::ALL, |_| true), choice(&[]));
        assert_eq!(slower(2).shortest(&NpuWork::ALL, |_| true), choice(&[NpuWork::Ffn]));
        assert_eq!(slower(2).shortest(&NpuWork::ALL, |choice| choice.is_empty()), choice(&[]));
    }

    #[test]
    fn work_that_both_take_longer_with_is_left_to_the_gpu() {
        // The NPU would be at work without pause, and later ready than the GPU alone.
        let timeline = two_layers([product(NpuWork::Qkv, 1.0, 9.0), product(NpuWork::Ffn, 8.0, 6.0)], 2);
        assert_eq!(timeline.shortest(&NpuWork::ALL, |_| true), choice(&[NpuWork::Ffn]));
    }

    #[test]
    fn steps_have_as_many_parts_as_programs_have_rows_in_them() {
        assert_eq!([512, 256, 128, 64, 8, 1, 100, 1024].map(parts), [1, 2, 4, 8, 8, 1, 1, 1]);
    }
}
