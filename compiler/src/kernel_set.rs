//! SPIR-V of a selection: each distinct kernel is compiled once for all targets that share its code, each distinct module
//! stored once a target.

use std::collections::BTreeMap;

use rayon::prelude::*;
use unicorn_artifact::{Alternative, Kernels, Module, ModuleSet, Pipeline, Program, TargetKernels};
use unicorn_kernels::KernelSpec;
use unicorn_spirv::Target;

use crate::Progress;
use crate::alternatives;
use crate::error::{CompileError, Result};
use crate::pipeline_name::pipeline_name;
use crate::select::{SelectedKernel, Selection, TargetSelection};

/// Compiles every kernel of `selection`. `programs` are those of each target as `place` bound them; they are stored as they are.
///
/// # Errors
/// When a kernel needs more than a target has.
pub fn build(selection: &Selection, programs: &[Vec<Program>], progress: &mut dyn Progress) -> Result<Kernels> {
    let mut compiled: Vec<(&Target, BTreeMap<&KernelSpec, Module>)> = Vec::new();
    let mut sharing = Vec::new();
    for selected in &selection.targets {
        let target = &selected.target;
        // Targets that differ in their tiles, or in missing features, have most kernels in common.
        let alike = compiled.iter().position(|(other, _)| target.emits_like(other));
        let alike = alike.unwrap_or_else(|| {
            compiled.push((target, BTreeMap::new()));
            compiled.len() - 1
        });
        let modules = &mut compiled[alike].1;
        let specs = selected.kernels.iter().flat_map(|kernel| [&kernel.spec].into_iter().chain(&kernel.alternatives));
        let is_there = |spec: &&KernelSpec| modules.get(spec).is_some_and(|module| target.allows(&module.needs));
        let new: BTreeMap<&KernelSpec, ()> = specs.filter(|spec| !is_there(spec)).map(|spec| (spec, ())).collect();
        let new: Vec<&KernelSpec> = new.into_keys().collect();
        modules.extend(compile(&new, target)?);
        sharing.push(alike);
        crate::progress::check(progress.advance(1))?;
    }
    // Compressing takes long, and one thread a target.
    let targets = (selection.targets.par_iter().zip(programs).zip(sharing))
        .map(|((selected, programs), alike)| store(selected, programs, &compiled[alike].1));
    Ok(Kernels { targets: targets.collect::<Result<_>>()? })
}

/// A target's kernels with their modules: the compiler's choices first, in a frame by themselves.
fn store(
    selected: &TargetSelection,
    programs: &[Program],
    modules: &BTreeMap<&KernelSpec, Module>,
) -> Result<TargetKernels> {
    let mut stored = Stored::default();
    let own: Vec<u32> = selected.kernels.iter().map(|kernel| stored.number(&modules[&kernel.spec])).collect();
    let own_modules = stored.modules.len();
    let pipeline = |(kernel, module): (&SelectedKernel, u32)| Pipeline {
        name: pipeline_name(&kernel.spec),
        module,
        bindings: kernel.spec.bindings().len() as u32,
        alternatives: kernel
            .alternatives
            .iter()
            .map(|other| Alternative {
                name: alternatives::alternative_name(other),
                module: stored.number(&modules[other]),
            })
            .collect(),
    };
    let pipelines = selected.kernels.iter().zip(own).map(pipeline).collect();
    let (own, others) = stored.modules.split_at(own_modules);
    let packed = ModuleSet::pack([own, others]);
    let modules = packed.map_err(|source| CompileError::Compression { target: selected.target.name.into(), source })?;
    Ok(TargetKernels {
        name: selected.target.name.into(),
        matches: selected.target.matches(),
        modules,
        pipelines,
        programs: programs.to_vec(),
        checksum: selected.checksum.map(|index| index as u32),
        bandwidth_probe: selected.bandwidth_probe.map(|index| index as u32),
        fragments: selected.fragments.map(|index| index as u32),
    })
}

/// Modules of a target in the order of their numbers, each content once.
#[derive(Default)]
struct Stored {
    modules: Vec<Module>,
    numbers: BTreeMap<Module, u32>,
}

impl Stored {
    fn number(&mut self, module: &Module) -> u32 {
        if let Some(&number) = self.numbers.get(module) {
            return number;
        }
        let number = self.modules.len() as u32;
        self.modules.push(module.clone());
        self.numbers.insert(module.clone(), number);
        number
    }
}

/// The module of each spec, on all cores.
fn compile<'s>(specs: &[&'s KernelSpec], target: &Target) -> Result<Vec<(&'s KernelSpec, Module)>> {
    let one = |&spec: &&'s KernelSpec| match unicorn_spirv::emit(spec, target) {
        Ok(binary) => Ok((spec, Module { words: binary.words, needs: binary.needs })),
        Err(error) => Err(CompileError::Kernel {
            kernel: pipeline_name(spec),
            target: target.name.into(),
            what: error.to_string(),
        }),
    };
    specs.par_iter().map(one).collect()
}
