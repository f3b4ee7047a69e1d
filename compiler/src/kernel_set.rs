//! SPIR-V of a selection: each distinct kernel is compiled once a target, each distinct module stored once.

use std::collections::BTreeMap;

use rayon::prelude::*;
use unicorn_artifact::{Alternative, Kernels, Pipeline, Program, TargetKernels};
use unicorn_kernels::fused_tail::NextSpec;
use unicorn_kernels::split::Split;
use unicorn_kernels::{KernelSpec, WeightLayout};
use unicorn_spirv::Target;

use crate::Progress;
use crate::alternatives;
use crate::error::{CompileError, Result};
use crate::select::{SelectedKernel, Selection};

/// Compiles every kernel of `selection`. `programs` are those of each target as `place` bound them; they are stored as they are.
///
/// # Errors
/// When a kernel is more than a target can do.
pub fn build(selection: &Selection, programs: &[Vec<Program>], progress: &mut dyn Progress) -> Result<Kernels> {
    let mut targets = Vec::new();
    let mut module_of_words: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    for (selected, programs) in selection.targets.iter().zip(programs) {
        let target = &selected.target;
        let mut module_of = |words: Vec<u32>| {
            let next = module_of_words.len() as u32;
            *module_of_words.entry(words).or_insert(next)
        };
        let specs: Vec<&KernelSpec> = selected.kernels.iter().map(|kernel| &kernel.spec).collect();
        let modules: Vec<u32> = compile(&specs, target)?.into_iter().map(&mut module_of).collect();
        let others: Vec<&KernelSpec> = selected.kernels.iter().flat_map(|kernel| &kernel.alternatives).collect();
        let mut other_modules = compile(&others, target)?.into_iter().map(&mut module_of);
        let pipeline = |(SelectedKernel { spec, alternatives }, module): (&SelectedKernel, u32)| Pipeline {
            name: pipeline_name(spec),
            module,
            bindings: spec.bindings().len() as u32,
            alternatives: alternatives
                .iter()
                .zip(&mut other_modules)
                .map(|(other, module)| Alternative { name: alternatives::alternative_name(other), module })
                .collect(),
        };
        targets.push(TargetKernels {
            name: target.name.into(),
            matches: target.matches(),
            pipelines: selected.kernels.iter().zip(modules).map(pipeline).collect(),
            programs: programs.clone(),
            checksum: Some(selected.checksum as u32),
            reads: Some(selected.bandwidth_probe as u32),
            fragments: selected.fragments.map(|index| index as u32),
        });
        crate::progress::check(progress.advance(1))?;
    }
    let mut modules: Vec<(Vec<u32>, u32)> = module_of_words.into_iter().collect();
    modules.sort_by_key(|(_, index)| *index);
    Ok(Kernels { modules: modules.into_iter().map(|(words, _)| words).collect(), targets })
}

/// SPIR-V of each spec, on all cores, in order.
fn compile(specs: &[&KernelSpec], target: &Target) -> Result<Vec<Vec<u32>>> {
    let one = |spec: &&KernelSpec| {
        unicorn_spirv::emit(spec, target).map(|binary| binary.words).map_err(|error| CompileError::Kernel {
            kernel: pipeline_name(spec),
            target: target.name.into(),
            what: error.to_string(),
        })
    };
    specs.par_iter().map(one).collect()
}

/// Family and shape, short enough for a table. A kernel that multiplies by a matrix names its `ROWS×COLS`, from which
/// profiles work out its flops.
pub fn pipeline_name(spec: &KernelSpec) -> String {
    match spec {
        KernelSpec::MatMul(spec) => {
            let layout = &spec.layout;
            let norm = if spec.prologue.is_some() { "norm+" } else { "" };
            let (rows, cols, format) = (layout.rows, layout.cols, layout.format.name());
            let next = next_name(spec.next.as_ref());
            format!("{norm}matmul {rows}×{cols} {format} {} ×{}{next}", spec.input.name(), spec.tile.columns)
        }
        KernelSpec::Gemm(spec) => {
            let WeightLayout { rows, cols, format } = spec.product.layout;
            format!("gemm {rows}×{cols} {} ×{}", format.name(), spec.tile.step_rows)
        }
        KernelSpec::RegisterGemm(spec) => {
            let WeightLayout { rows, cols, format } = spec.product.layout;
            format!("register gemm {rows}×{cols} {} ×{} /{}", format.name(), spec.tile.step_rows, spec.splits)
        }
        KernelSpec::Attention(spec) => {
            let heads = if spec.prologue.is_some() { "heads+" } else { "" };
            let Split { rows_per_group, splits, .. } = spec.split;
            format!("{heads}attention {} ×{rows_per_group} /{splits}", spec.cache.format.name())
        }
        KernelSpec::DecodeAttention(spec) => {
            let next = next_name(spec.next.as_ref());
            format!("decode attention {} /{}{next}", spec.cache.format.name(), spec.split.splits)
        }
        KernelSpec::Flash(spec) => format!("flash {} ×{}", spec.cache.format.name(), spec.tile.queries(&spec.cache)),
        other => other.name().into(),
    }
}

/// Of the matmul that a kernel does besides.
fn next_name(next: Option<&NextSpec>) -> String {
    let name = |next: &NextSpec| format!(" +{}×{} {}", next.layout.rows, next.layout.cols, next.layout.format.name());
    next.map_or(String::new(), name)
}
