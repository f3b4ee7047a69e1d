//! NPU programs of a model: one for each shape of its matrix products in prefill.

use std::collections::BTreeMap;
use std::fmt::Write;

use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::emit::{Dialect, generic_text, module, readable};
use unicorn_npu::stream::encode;
use unicorn_npu::{Problem, solve};

use crate::Planned;
use crate::error::{CompileError, Result};
use crate::fuse::FusedOp;
use crate::npu_options::{NpuOptions, NpuProgram};

/// The programs of `planned`, in the order of their names.
///
/// # Errors
/// [`CompileError::Option`] for options that no program can be made with.
pub fn npu_programs(planned: &Planned, options: &NpuOptions) -> Result<Vec<NpuProgram>> {
    let refused = |option, what| Err(CompileError::Option { option, what });
    let NpuOptions { columns, rows, .. } = *options;
    if !(1..=4).contains(&columns) {
        return refused("npu_columns", format!("columns of the NPU are {columns}, expected 1 to 4"));
    }
    if rows == 0 {
        return refused("npu_rows", "rows of an NPU program are 0, expected at least 1".into());
    }
    let dialect = Dialect::ALL.into_iter().find(|dialect| dialect.name() == options.dialect);
    let Some(dialect) = dialect else {
        let what = format!("dialect of mlir-aie is {}, expected 2024 or 2026", options.dialect);
        return refused("npu_dialect", what);
    };
    let mut programs = Vec::new();
    for (problem, uses) in problems(planned, rows, columns) {
        let Problem { cols, depth, epilogue, .. } = problem;
        let Some(solution) = solve(&problem) else {
            return refused(
                "npu",
                format!("product of {rows} × {cols} × {depth} fits no NPU program of {columns} columns"),
            );
        };
        let name = match epilogue {
            Epilogue::Scale => format!("{cols}x{depth}"),
            Epilogue::ActMul(activation) => format!("{cols}x{depth}-{activation:?}").to_lowercase(),
        };
        let operations = module(&solution.design, dialect);
        let mut explanation = solution.to_string();
        write!(explanation, "\n  computes           {}", uses.join(", ")).expect("writing to a String");
        let generic = generic_text(&operations).expect("MLIR takes what this project makes");
        let (readable, instructions) = (readable(&operations), encode(&solution.design, &solution.lowered));
        programs.push(NpuProgram { name, explanation, readable, generic, instructions });
    }
    Ok(programs)
}

/// Every shape of a product, with the names of the matrices of the first layer that has it.
fn problems(planned: &Planned, rows: usize, columns: usize) -> BTreeMap<Problem, Vec<String>> {
    let graph = planned.verified.graph();
    let mut problems: BTreeMap<Problem, Vec<String>> = BTreeMap::new();
    for node in &graph.nodes {
        let FusedOp::MatMul { matrix, act_mul, .. } = &node.op else { continue };
        let matrix = &graph.matrices[matrix.0];
        // The output head computes one row.
        if matrix.is_head {
            continue;
        }
        let cols = matrix.parts.iter().map(|part| part.rows).sum();
        let depth = matrix.parts.first().map_or(0, |part| part.cols);
        let epilogue = act_mul.map_or(Epilogue::Scale, Epilogue::ActMul);
        let names = problems.entry(Problem { rows, cols, depth, epilogue, columns }).or_default();
        if names.len() < 2 {
            names.push(matrix.name.clone());
        }
    }
    problems
}
