//! What a product costs on the GPU and on the NPU: estimates from published figures, by which the plan decides.
//!
//! Nothing was measured here: there is no NPU. Each figure has its source beside it. What both devices compute at once is in [`super::timeline`].

use std::fmt::{self, Display};

use unicorn_npu::Problem;
use unicorn_npu::attention::{AttentionProblem, AttentionSolution};
use unicorn_npu::device::CLOCK_HZ;
use unicorn_npu::solve::Estimate;

/// Operations a second of a 780M's prefill: 310 tokens/s of Qwen2.5-7B Q4 (7.6 billion weights, two operations each), llama.cpp on Vulkan,
/// published by its users.
pub const GPU_OPS_PER_S: f64 = 4.7e12;
/// Operations a second of XDNA1 in INT8, the most that was measured end to end (arXiv 2512.13282).
pub const NPU_OPS_PER_S: f64 = 6.76e12;
/// Seconds of one command in addition to its work: 0.22 ms from end to end, of which a kernel that does nothing takes 0.12 to 0.14
/// (open-xdna on a Ryzen 7 8845HS).
pub const DISPATCH_S: f64 = 0.2e-3;
/// Bytes a second through all shim tiles at the array's highest clock: four columns of two channels of 4 bytes at 1.6 GHz.
pub const SHIM_BYTES_PER_S: f64 = 51.2e9;
/// Bytes a second that a 780M reads of two channels of DDR5-5600, as measured by users of llama.cpp. The NPU's traffic is part of it.
pub const GPU_BYTES_PER_S: f64 = 73e9;

/// A time, and what it is limited by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limited {
    pub s: f64,
    pub by: &'static str,
}

/// The longest of some times.
fn longest<const N: usize>(times: [(f64, &'static str); N]) -> Limited {
    let (s, by) = times.into_iter().max_by(|one, other| one.0.total_cmp(&other.0)).expect("there are some");
    Limited { s, by }
}

/// Estimated times of one product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    pub gpu: Limited,
    /// Of the NPU's array, without the command and what is handed over.
    pub computed: Limited,
    /// In which activations and outputs are written and read by the GPU.
    pub handed_s: f64,
}

impl Times {
    /// Those of a product; `useful_ops` without padding, `handed_bytes` of activations and outputs, which the GPU writes and reads.
    pub fn of(estimate: &Estimate, useful_ops: f64, handed_bytes: u64, weight_bytes: u64) -> Times {
        let [at_best, _] = estimate.seconds();
        Times {
            // Both have about as many bytes of weights.
            gpu: product_on_gpu(useful_ops, weight_bytes as f64),
            computed: longest([
                (at_best, "the model of the array"),
                (useful_ops / NPU_OPS_PER_S, "the published rate"),
                (estimate.shim_bytes as f64 / SHIM_BYTES_PER_S, "the shim tiles' streams"),
            ]),
            handed_s: handed_bytes as f64 / GPU_BYTES_PER_S,
        }
    }

    /// Those of one layer's attention.
    pub fn of_attention(solution: &AttentionSolution, problem: &AttentionProblem) -> Times {
        let shape = &solution.shape;
        // On the NPU, keys and values are read once for each tile of query rows, which is a part of its cycles.
        let handed = shape.query_bytes() + shape.key_value_bytes() + 2 * shape.output_values();
        Times {
            gpu: attention_on_gpu(problem),
            computed: Limited { s: solution.cycles as f64 / CLOCK_HZ[0], by: "the model of the array" },
            handed_s: handed as f64 / GPU_BYTES_PER_S,
        }
    }

    /// Seconds on the NPU.
    pub fn npu_s(&self) -> f64 {
        self.computed.s + DISPATCH_S + self.handed_s
    }
}

/// One layer's attention on the GPU: two products of each query row with all keys, of which it is taken to be as fast as of other products.
pub fn attention_on_gpu(problem: &AttentionProblem) -> Limited {
    let AttentionProblem { heads, rows, keys, depth, .. } = *problem;
    let ops = 4.0 * (heads * rows) as f64 * (keys * depth) as f64;
    // f16 keys and values.
    let cache_bytes = (4 * heads * keys * depth) as f64;
    longest([(ops / GPU_OPS_PER_S, "products"), (cache_bytes / GPU_BYTES_PER_S, "reading keys and values")])
}

/// Seconds of a product on the GPU, whose weights have about half a byte each.
pub fn on_gpu_s(problem: &Problem) -> f64 {
    let weights = problem.cols as f64 * problem.depth as f64;
    product_on_gpu(2.0 * problem.rows as f64 * weights, weights / 2.0).s
}

/// A product on the GPU: a step of few tokens waits for weights.
fn product_on_gpu(ops: f64, weight_bytes: f64) -> Limited {
    longest([(ops / GPU_OPS_PER_S, "products"), (weight_bytes / GPU_BYTES_PER_S, "reading weights")])
}

/// `GPU 5.5 ms, limited by products; NPU 4.2 ms: 3.8 ms …`
impl Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Times { gpu, computed, handed_s } = self;
        write!(
            f,
            "GPU {:.2} ms, limited by {}; NPU {:.2} ms: {:.2} ms limited by {}, {:.2} ms for a command, {:.2} ms for activations and outputs",
            1e3 * gpu.s,
            gpu.by,
            1e3 * self.npu_s(),
            1e3 * computed.s,
            computed.by,
            1e3 * DISPATCH_S,
            1e3 * handed_s
        )
    }
}

/// Estimated time of products on the GPU and on the NPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub gpu_s: f64,
    pub npu_s: f64,
    pub products: usize,
    /// Bytes of the products' weights, in the NPU's layout.
    pub weight_bytes: u64,
}

impl Cost {
    /// Cost of one product.
    pub fn of(times: &Times, weight_bytes: u64) -> Cost {
        Cost { gpu_s: times.gpu.s, npu_s: times.npu_s(), products: 1, weight_bytes }
    }

    pub fn add(&mut self, other: Cost) {
        self.gpu_s += other.gpu_s;
        self.npu_s += other.npu_s;
        self.products += other.products;
        self.weight_bytes += other.weight_bytes;
    }
}

#[cfg(test)]
mod tests {
    use unicorn_kernels::npu::tile::Epilogue;
    use unicorn_npu::{Problem, solve};

    use super::*;

    fn cost(rows: usize, cols: usize, depth: usize) -> Cost {
        let solution = solve(&Problem { rows, cols, depth, epilogue: Epilogue::Scale, columns: 4 }).unwrap();
        let bytes = solution.estimate.shape.weight_bytes() as u64;
        let ops = 2.0 * (rows * cols * depth) as f64;
        Cost::of(&Times::of(&solution.estimate, ops, (rows * (depth + 2 * cols)) as u64, bytes), bytes)
    }

    #[test]
    fn large_products_of_many_rows_are_faster_on_the_npu_and_small_ones_are_not() {
        let large = cost(512, 6144, 4096);
        // 25.8 G operations: 5.5 ms at 4.7 T/s, 3.8 ms at 6.76 T/s and what is handed over.
        assert!((5.4e-3..5.6e-3).contains(&large.gpu_s) && (3.9e-3..4.6e-3).contains(&large.npu_s), "{large:?}");
        // A command takes longer than the GPU's whole product.
        let small = cost(512, 576, 576);
        assert!(small.gpu_s < small.npu_s && small.npu_s > DISPATCH_S, "{small:?}");
        // Few rows: both wait for weights, which the GPU reads faster.
        let few = cost(8, 6144, 4096);
        assert!(few.gpu_s < few.npu_s && few.gpu_s < 0.2e-3 && few.npu_s > 0.4e-3, "{few:?}");
    }
}
