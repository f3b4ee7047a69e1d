//! All kernels and programs of an artifact: each distinct spec is compiled once a target, each distinct module stored once.

use std::collections::BTreeMap;

use rayon::prelude::*;
use unicorn_artifact::{ActivationPlan, Alternative, Kernels, LogitsRows, Pipeline, TargetKernels};
use unicorn_kernels::bandwidth_probe::BandwidthProbeSpec;
use unicorn_kernels::checksum::ChecksumSpec;
use unicorn_kernels::fragments::FragmentsSpec;
use unicorn_kernels::next::NextSpec;
use unicorn_kernels::split::Split;
use unicorn_kernels::{KernelSpec, WeightLayout};
use unicorn_spirv::Target;

use crate::Progress;
use crate::alternatives;
use crate::error::{CompileError, Result};
use crate::import::ModelConfig;
use crate::place::{self, StepPipeline, WeightPlacement};
use crate::select::{PROGRAMS, ProgramKind, SelectOptions, Step, select};
use crate::verify::VerifiedGraph;
use crate::weights::PackedWeights;

/// The kernels section and what the plan says of its programs.
pub struct KernelSet {
    pub kernels: Kernels,
    /// Specs of each target's pipelines, for the text form.
    pub specs: Vec<Vec<KernelSpec>>,
    /// Enough for every program of every target.
    pub arena_bytes: u64,
    /// Of the program that needs the largest arena.
    pub activations: Vec<ActivationPlan>,
}

impl KernelSet {
    /// Rows of the logits buffer: those of the largest program that gives logits for all rows.
    pub fn logits_rows(&self) -> usize {
        let of_all = |kind: &&ProgramKind| kind.logits == LogitsRows::All;
        PROGRAMS.iter().filter(of_all).map(|kind| kind.rows).max().unwrap_or(1)
    }
}

/// Selects, compiles and places every program of every target.
pub fn build(
    graph: &VerifiedGraph,
    config: &ModelConfig,
    weights: &PackedWeights,
    placement: &WeightPlacement,
    targets: &[Target],
    options: SelectOptions,
    progress: &mut dyn Progress,
) -> Result<KernelSet> {
    let mut set = KernelSet { kernels: Kernels::default(), specs: Vec::new(), arena_bytes: 0, activations: Vec::new() };
    let mut module_of_words: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    for target in targets {
        let mut programs: Vec<(ProgramKind, Vec<Step>)> = Vec::new();
        for (kind, target) in alternatives::programs(target, config.max_positions, options.alternatives) {
            let steps = select(graph, config, weights, &target, kind, options);
            let specs = |steps: &[Step]| steps.iter().map(|step| step.spec.clone()).collect::<Vec<_>>();
            // What was to be another way may come out as the same, as may what was to be for long sequences.
            let serves = |other: &ProgramKind| *other == kind || *other == ProgramKind { from_tokens: 0, ..kind };
            if !programs.iter().any(|(other, of_other)| serves(other) && specs(of_other) == specs(&steps)) {
                programs.push((kind, steps));
            }
        }
        let mut pipeline_of_spec: BTreeMap<KernelSpec, u32> = BTreeMap::new();
        let mut specs = Vec::new();
        for step in programs.iter().flat_map(|(_, steps)| steps) {
            pipeline_of_spec.entry(step.spec.clone()).or_insert_with(|| {
                specs.push(step.spec.clone());
                specs.len() as u32 - 1
            });
        }
        let checksum = specs.len() as u32;
        specs.extend([KernelSpec::Checksum(ChecksumSpec {}), KernelSpec::BandwidthProbe(BandwidthProbeSpec {})]);
        let fragments = target.fragments().map(|fragment| {
            specs.push(KernelSpec::Fragments(FragmentsSpec { fragment }));
            specs.len() as u32 - 1
        });
        let others = |spec| if options.alternatives { alternatives::alternatives(spec, target) } else { Vec::new() };
        let others: Vec<Vec<KernelSpec>> = specs.iter().map(others).collect();
        let mut module_of = |words: Vec<u32>| {
            let next = module_of_words.len() as u32;
            *module_of_words.entry(words).or_insert(next)
        };
        let modules: Vec<u32> = compile(&specs, target)?.into_iter().map(&mut module_of).collect();
        let flat: Vec<KernelSpec> = others.iter().flatten().cloned().collect();
        let mut other_modules = compile(&flat, target)?.into_iter().map(&mut module_of);
        let pipelines = specs.iter().zip(&others).zip(modules).map(|((spec, others), module)| Pipeline {
            name: pipeline_name(spec),
            module,
            bindings: spec.bindings().len() as u32,
            alternatives: others
                .iter()
                .zip(&mut other_modules)
                .map(|(other, module)| Alternative { name: alternatives::alternative_name(other), module })
                .collect(),
        });
        let pipelines = pipelines.collect();
        for (kind, steps) in &programs {
            let activations = place::place_activations(graph.graph(), steps, kind.rows);
            let arena_bytes = place::arena_bytes(activations.values());
            if arena_bytes > set.arena_bytes {
                set.arena_bytes = arena_bytes;
                set.activations = activations.into_values().collect();
            }
        }
        let programs = programs
            .iter()
            .map(|(kind, steps)| {
                let pipeline_of = |step: &Step| {
                    let pipeline = pipeline_of_spec[&step.spec];
                    let others = others[pipeline as usize].iter();
                    let alternatives = others.map(|other| other.workgroups(step.rows)).collect();
                    StepPipeline { pipeline, alternatives }
                };
                let pipelines: Vec<StepPipeline> = steps.iter().map(pipeline_of).collect();
                place::place_program(graph.graph(), placement, *kind, steps, &pipelines)
            })
            .collect();
        set.kernels.targets.push(TargetKernels {
            name: target.name.into(),
            matches: target.matches(),
            pipelines,
            programs,
            checksum: Some(checksum),
            reads: Some(checksum + 1),
            fragments,
        });
        set.specs.push(specs);
        progress.advance(1);
    }
    let mut modules: Vec<(Vec<u32>, u32)> = module_of_words.into_iter().collect();
    modules.sort_by_key(|(_, index)| *index);
    set.kernels.modules = modules.into_iter().map(|(words, _)| words).collect();
    Ok(set)
}

/// SPIR-V of each spec, on all cores, in order.
fn compile(specs: &[KernelSpec], target: &Target) -> Result<Vec<Vec<u32>>> {
    let one = |spec: &KernelSpec| {
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
