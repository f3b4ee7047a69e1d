//! NPU programs of a model as MLIR: one for each shape of its matrix products in prefill.

use std::collections::BTreeMap;
use std::fmt::Write;

use unicorn_npu::Problem;
use unicorn_npu::emit::{Dialect, generic_text, module, readable};
use unicorn_npu::stream::encode;

use super::options::{NpuMlir, NpuOptions};
use super::products::{products, solution};
use crate::Planned;
use crate::error::{CompileError, Result};

/// The programs of all products of `planned`, in the order of their shapes, in mlir-aie's dialects of `dialect`: 2024 or 2026.
///
/// # Errors
/// [`CompileError::Option`] for options that no program can be made with.
pub fn npu_mlir(planned: &Planned, options: &NpuOptions, dialect: &str) -> Result<Vec<NpuMlir>> {
    options.check()?;
    let Some(dialect) = Dialect::ALL.into_iter().find(|one| one.name() == dialect) else {
        let what = format!("dialect of mlir-aie is {dialect}, expected 2024 or 2026");
        return Err(CompileError::Option { option: "npu_dialect", what });
    };
    let graph = planned.verified.graph();
    let mut uses: BTreeMap<Problem, Vec<&str>> = BTreeMap::new();
    for product in products(graph, options) {
        let names = uses.entry(product.problem).or_default();
        if names.len() < 2 {
            names.push(&graph.matrices[product.matrix.0].name);
        }
    }
    let mut programs = Vec::new();
    for (problem, uses) in uses {
        let solution = solution(&problem).map_err(|what| CompileError::Option { option: "npu", what })?;
        let operations = module(&solution.design, dialect);
        let mut explanation = solution.to_string();
        write!(explanation, "\n  computes           {}", uses.join(", ")).expect("writing to a String");
        let generic = generic_text(&operations).expect("MLIR takes what this project makes");
        let (readable, instructions) = (readable(&operations), encode(&solution.design, &solution.lowered));
        programs.push(NpuMlir { name: super::program_name(&problem), explanation, readable, generic, instructions });
    }
    Ok(programs)
}
