//! Compiles a target's pipelines on all cores.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use unicorn_artifact::spirv::{self, Limits};
use unicorn_artifact::{ModuleNeeds, ParseError, Pipeline as Kernel, TargetKernels};

use crate::error::LoadError;
use crate::parallel;
use crate::program::alternatives;
use crate::vk::device::Device;
use crate::vk::pipeline::{Capture, Pipeline, PipelineRequest, SetLayout};
use crate::vk::pipeline_cache::PipelineCache;

/// Compiles every pipeline of `target`, as [`compile_some`] does.
///
/// # Errors
/// Those of [`compile_some`].
pub fn compile_each<T: Send>(
    device: &Arc<Device>,
    target: &TargetKernels,
    cache: Option<&PipelineCache>,
    capture: Capture,
    is_cancelled: &AtomicBool,
    inspect: impl Fn(Arc<Pipeline>) -> Result<T, LoadError> + Sync,
) -> Result<Vec<T>, LoadError> {
    compile_some(device, target, 0..target.pipelines.len(), cache, capture, is_cancelled, inspect)
}

/// Compiles pipelines `which` of `target`; results of `inspect` for each, in order. `cache`: where the driver looks
/// for compiled pipelines and stores them.
///
/// # Errors
/// [`LoadError::Pipeline`] names the first kernel that breaks a rule of SPIR-V, or that the driver rejects. [`LoadError::Cancelled`] when `is_cancelled` becomes
/// true: no further pipeline is begun.
pub fn compile_some<T: Send>(
    device: &Arc<Device>,
    target: &TargetKernels,
    which: Range<usize>,
    cache: Option<&PipelineCache>,
    capture: Capture,
    is_cancelled: &AtomicBool,
    inspect: impl Fn(Arc<Pipeline>) -> Result<T, LoadError> + Sync,
) -> Result<Vec<T>, LoadError> {
    let facts = device.facts();
    let varies = facts.min_subgroup_size != facts.max_subgroup_size;
    let bindings: BTreeSet<u32> = target.pipelines[which.clone()].iter().map(|pipeline| pipeline.bindings).collect();
    let layouts = bindings.into_iter().map(|bindings| Ok((bindings, SetLayout::create(device, bindings)?)));
    let layouts: BTreeMap<u32, Arc<SetLayout>> = layouts.collect::<Result<_, LoadError>>()?;
    let modules = target.modules.unpack(target.pipelines[which.clone()].iter().map(|pipeline| pipeline.module));
    let modules = modules.map_err(|source| LoadError::Modules { target: target.name.clone(), source })?;
    let writable = target.writable_bindings();
    let one = |index: usize| {
        if is_cancelled.load(Ordering::Relaxed) {
            return Err(LoadError::Cancelled);
        }
        let index = which.start + index;
        let pipeline = &target.pipelines[index];
        let spirv = &modules[pipeline.module as usize];
        let name = |error| LoadError::Pipeline { name: pipeline.name.clone(), source: Box::new(error) };
        check(device, target, pipeline, writable[index], spirv).map_err(name)?;
        let needs = &target.modules.records[pipeline.module as usize].needs;
        let subgroup_size = Some(subgroup_size(needs, target.matches.subgroup_size)).filter(|&size| size > 0 && varies);
        let request = PipelineRequest { spirv, layout: &layouts[&pipeline.bindings], subgroup_size, cache, capture };
        Pipeline::create(device, &request).map_err(LoadError::from).and_then(&inspect).map_err(name)
    };
    parallel::map(which.len(), one).into_iter().collect()
}

/// The size of subgroups to require for a module; 0: any. A module's size differs from its target's where programs of another
/// target replace wrong ones.
fn subgroup_size(needs: &ModuleNeeds, of_target: u32) -> u32 {
    match needs.subgroup_size {
        // Full subgroups are required with a size, and a workgroup of a kernel that uses none may not be divisible by it.
        0 if needs.workgroup_invocations.is_multiple_of(of_target.max(1)) => of_target,
        size => size,
    }
}

/// Drivers trust their input, and an artifact may come from anywhere: a module is checked before a driver reads it.
fn check(
    device: &Device,
    target: &TargetKernels,
    pipeline: &Kernel,
    writable: u32,
    words: &[u32],
) -> Result<(), LoadError> {
    let needs = &target.modules.records[pipeline.module as usize].needs;
    let shared_memory_bytes = target.matches.shared_memory_bytes;
    let limits = Limits { needs, bindings: pipeline.bindings, writable, shared_memory_bytes };
    let checked = match alternatives::meets(&device.facts().features, needs) {
        true => spirv::check(words, &limits),
        false => Err(ParseError::Invalid {
            what: "needs of a module".into(),
            expected: "features of the device".into(),
            found: format!("{needs:?}"),
        }),
    };
    checked.map_err(|source| LoadError::Modules { target: target.name.clone(), source })
}
