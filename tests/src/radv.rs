//! Kernels of the targets for AMD's GPUs, compiled to real machine code by RADV on a machine without one, for each family of GPUs: what they
//! cost, which instructions they must have, and the estimated time of a step.
//!
//! ```text
//! a model's shape ─ compiler ─► SPIR-V ─ runtime, RADV ─► statistics, machine code ─► Kernel ─┬─ rules     what is wrong
//!                                                                                             ├─ table     the golden report
//!                                                                                             └─ estimate  time of a step
//! ```

pub mod family;
pub mod instructions;
pub mod listing;
pub mod stream;

pub mod estimate;
pub mod golden;
pub mod rules;
pub mod second_start;
pub mod table;

use std::collections::BTreeSet;
use std::path::Path;

use unicorn_artifact::{Alternative, Kernels, Pipeline, Program, TargetKernels};
use unicorn_compiler::{CompileError, Source, plan};
use unicorn_kernels::KernelSpec;
use unicorn_runtime::Executable;
use unicorn_runtime::{DeviceFacts, LoadError, kernel_statistics};
use unicorn_spirv::Target;

use crate::compiled::{Silent, options, with};
use instructions::{Class, Words};
use listing::normalized;

/// A model with all of its kernels on one device.
pub struct CompiledModel {
    pub name: String,
    pub set: Kernels,
    /// One kernel for each pipeline of the only target.
    pub kernels: Vec<Kernel>,
    /// One kernel for each alternative, in the order of the pipelines that they could replace.
    pub alternatives: Vec<Kernel>,
}

/// One pipeline, and what the driver made of it.
pub struct Kernel {
    pub name: String,
    pub spec: KernelSpec,
    /// Rows of the programs that use it by the compiler's choice; empty for a kernel that only another version uses.
    pub rows: BTreeSet<u32>,
    pub words: Words,
    /// Machine code, one instruction a line.
    pub assembly: String,
    pub executable: Executable,
}

impl CompiledModel {
    /// Compiles the model of the shape in `config`, INT4 in groups of 32, for `target` on the device of `facts`, with or without
    /// alternatives.
    ///
    /// # Errors
    /// When the compiler or the driver refuses.
    pub fn of(config: &Path, target: &Target, facts: &DeviceFacts, alternatives: bool) -> Result<CompiledModel, Error> {
        let options = with(options(vec![target.clone()], vec![]), |options| options.alternatives = alternatives);
        let planned = plan(Source::Synthetic(config), &options, &mut Silent)?;
        let selected = &planned.selection.targets[0];
        let set = planned.kernels(&mut Silent)?;
        let compiled = &set.targets[0];
        let modules = compiled.modules.unpack_all().expect("the compiler packed them");
        let executables = kernel_statistics(facts, compiled, true)?;
        let kernel = |pipeline: &Pipeline, spec: &KernelSpec, rows, mut executables: Vec<Executable>| {
            let executable = executables.pop().expect("a compute pipeline is one executable");
            Kernel {
                name: pipeline.name.clone(),
                spec: spec.clone(),
                rows,
                words: Words::of(&modules[pipeline.module as usize]),
                assembly: executable.representations.last().map(|last| normalized(&last.text)).unwrap_or_default(),
                executable,
            }
        };
        let own = || compiled.pipelines.iter().zip(&selected.kernels).zip(rows_of_pipelines(compiled));
        let kernels = own()
            .zip(executables)
            .map(|(((pipeline, selected), rows), executables)| kernel(pipeline, &selected.spec, rows, executables));
        let kernels = kernels.collect();

        let others: Vec<(Pipeline, KernelSpec, BTreeSet<u32>)> = own()
            .flat_map(|((pipeline, selected), rows)| {
                let others = pipeline.alternatives.iter().zip(&selected.alternatives);
                others.map(move |(other, spec)| (alone(pipeline, other), spec.clone(), rows.clone()))
            })
            .collect();
        let only_others = TargetKernels {
            pipelines: others.iter().map(|(pipeline, _, _)| pipeline.clone()).collect(),
            programs: Vec::new(),
            checksum: None,
            bandwidth_probe: None,
            ..compiled.clone()
        };
        let executables = kernel_statistics(facts, &only_others, true)?;
        let alternatives = others
            .iter()
            .zip(executables)
            .map(|((pipeline, spec, rows), executables)| kernel(pipeline, spec, rows.clone(), executables));
        let alternatives = alternatives.collect();
        let name = config.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(CompiledModel { name, kernels, alternatives, set })
    }
}

/// Rows of the programs that use each pipeline, of those that are the compiler's choice: the first of their kind.
fn rows_of_pipelines(target: &TargetKernels) -> Vec<BTreeSet<u32>> {
    let kind = |program: &Program| (program.rows, program.logits, program.samples, program.batch, program.from_tokens);
    let mut rows = vec![BTreeSet::new(); target.pipelines.len()];
    for (index, program) in target.programs.iter().enumerate() {
        if target.programs[..index].iter().all(|before| kind(before) != kind(program)) {
            for dispatch in &program.dispatches {
                rows[dispatch.pipeline as usize].insert(program.rows);
            }
        }
    }
    rows
}

/// The alternative as a pipeline of its own.
fn alone(pipeline: &Pipeline, other: &Alternative) -> Pipeline {
    Pipeline { name: other.name.clone(), module: other.module, alternatives: Vec::new(), ..pipeline.clone() }
}

impl Kernel {
    /// The statistic that RADV calls `name`.
    ///
    /// # Panics
    /// If RADV has no such statistic: the report would be empty.
    pub fn statistic(&self, name: &str) -> u64 {
        let found = self.executable.statistic(name);
        found.unwrap_or_else(|| panic!("RADV gives no statistic {name}; it gives {:?}", self.executable.statistics))
            as u64
    }

    /// Machine code, one instruction a line.
    pub fn assembly(&self) -> &str {
        &self.assembly
    }

    /// Machine instructions of a class.
    pub fn count(&self, class: Class) -> usize {
        class.count_in(self.assembly())
    }
}

/// Why there is no report.
#[derive(Debug)]
pub enum Error {
    Compile(CompileError),
    Driver(LoadError),
}

impl From<CompileError> for Error {
    fn from(error: CompileError) -> Error {
        Error::Compile(error)
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Error {
        Error::Driver(error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Compile(error) => error.fmt(f),
            Error::Driver(error) => error.fmt(f),
        }
    }
}
