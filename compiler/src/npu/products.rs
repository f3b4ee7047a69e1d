//! The matrix products of a model that NPU programs can compute.

use unicorn_artifact::account::size;
use unicorn_artifact::header::MAX_SLICE_BYTES;
use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::{Problem, Solution, solve};

use super::options::{NpuOptions, NpuWork};
use crate::fuse::{FusedGraph, FusedOp, Matrix, MatrixId};
use crate::graph::MatrixRef;

/// One product of a prefill step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    pub matrix: MatrixId,
    pub work: NpuWork,
    pub problem: Problem,
    /// NPU programs add no bias.
    pub has_bias: bool,
}

/// All such products, in the order of a step. Not among them: the output head, which computes one row; routers, which choose; gates
/// of recurrent state, whose errors add up over all tokens; and experts, each of which multiplies other rows.
pub fn products(graph: &FusedGraph, options: &NpuOptions) -> Vec<Product> {
    let product = |op: &FusedOp| {
        let FusedOp::MatMul { matrix: id, act_mul, bias, .. } = op else { return None };
        if *act_mul == Some(Activation::ClampedSwiGlu) {
            return None;
        }
        let matrix = &graph.matrices[id.0];
        if matrix.is_head || matrix.is_router || matrix.is_state_gate {
            return None;
        }
        let cols = matrix.parts.iter().map(|part| part.rows).sum();
        let epilogue = act_mul.map_or(Epilogue::Scale, Epilogue::ActMul);
        let NpuOptions { rows, columns, .. } = *options;
        let problem = Problem { rows, cols, depth: matrix.cols(), epilogue, columns };
        Some(Product { matrix: *id, work: work_of(matrix), problem, has_bias: bias.is_some() })
    };
    graph.nodes.iter().filter_map(|node| product(&node.op)).collect()
}

fn work_of(matrix: &Matrix) -> NpuWork {
    let all = |name: &str| matrix.parts.iter().all(|part| part.tensor.contains(name));
    match () {
        () if all(".self_attn.o_proj.") || all(".linear_attn.out_proj.") => NpuWork::Output,
        () if all(".self_attn.") || all(".linear_attn.") => NpuWork::Qkv,
        () => NpuWork::Ffn,
    }
}

/// The fastest program for a problem.
///
/// # Errors
/// When there is none, the reason: no design fits the array, or its weights fit no section of an artifact.
pub fn solution(problem: &Problem) -> Result<Solution, String> {
    let Problem { rows, cols, depth, columns, .. } = problem;
    let of_product = format!("product of {rows} × {cols} × {depth}");
    // A section that is too short for the weights as they are is too short for all layouts of them: the search is not needed.
    let least_bytes = (cols * depth / 2) as u64;
    let too_long =
        |bytes| format!("{of_product} has {} of weights, expected at most {}", size(bytes), size(MAX_SLICE_BYTES));
    if least_bytes > MAX_SLICE_BYTES {
        return Err(too_long(least_bytes));
    }
    let solution = solve(problem).ok_or_else(|| format!("{of_product} fits no NPU program of {columns} columns"))?;
    match solution.estimate.shape.weight_bytes() as u64 {
        bytes if bytes > MAX_SLICE_BYTES => Err(too_long(bytes)),
        _ => Ok(solution),
    }
}

/// What column `col` of a product's weights is: gate before up, as [`unicorn_kernels::npu::quantize::source_column`] counts.
pub fn source_of(matrix: &Matrix, col: usize) -> (&MatrixRef, usize) {
    let mut first = 0;
    for part in &matrix.parts {
        if col < first + part.rows {
            return (part, col - first);
        }
        first += part.rows;
    }
    panic!("column {col} is inside {}", matrix.name);
}
