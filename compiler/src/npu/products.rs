//! The matrix products of a model that NPU programs can compute.

use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::{Problem, Solution, solve};

use super::options::{NpuOptions, NpuWork};
use crate::error::{CompileError, Result};
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

/// All of them, in the order of a step. The output head computes one row, a router chooses, errors of a state's gates add up over all
/// tokens, and experts multiply other rows each: they are none.
pub fn products(graph: &FusedGraph, options: &NpuOptions) -> Vec<Product> {
    let product = |op: &FusedOp| {
        let FusedOp::MatMul { matrix: id, act_mul, bias, .. } = op else { return None };
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
/// [`CompileError::Option`] where none fits the array.
pub fn solution(problem: &Problem) -> Result<Solution> {
    solve(problem).ok_or_else(|| {
        let Problem { rows, cols, depth, columns, .. } = problem;
        let what = format!("product of {rows} × {cols} × {depth} fits no NPU program of {columns} columns");
        CompileError::Option { option: "npu", what }
    })
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
