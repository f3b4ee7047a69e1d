//! A target's pipelines, made on all cores: drivers take their time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use unicorn_artifact::{Kernels, TargetKernels, cores};

use crate::error::LoadError;
use crate::vk::cache::PipelineCache;
use crate::vk::device::Device;
use crate::vk::pipeline::{Capture, Pipeline, PipelineRequest, SetLayout};

/// Compiles every pipeline of `target` and gives what `look` makes of each, in their order.
///
/// # Errors
/// [`LoadError::Pipeline`] names the first kernel that the driver refused.
pub fn compile_each<T: Send>(
    device: &Arc<Device>,
    kernels: &Kernels,
    target: &TargetKernels,
    cache: Option<&PipelineCache>,
    capture: Capture,
    look: impl Fn(Arc<Pipeline>) -> Result<T, LoadError> + Sync,
) -> Result<Vec<T>, LoadError> {
    let facts = device.facts();
    let varies = facts.min_subgroup_size != facts.max_subgroup_size;
    let subgroup_size = Some(target.matches.subgroup_size).filter(|&size| size > 0 && varies);
    let bindings: BTreeSet<u32> = target.pipelines.iter().map(|pipeline| pipeline.bindings).collect();
    let layouts = bindings.into_iter().map(|bindings| Ok((bindings, SetLayout::create(device, bindings)?)));
    let layouts: BTreeMap<u32, Arc<SetLayout>> = layouts.collect::<Result<_, LoadError>>()?;
    let one = |index: usize| {
        let pipeline = &target.pipelines[index];
        let request = PipelineRequest {
            spirv: &kernels.modules[pipeline.module as usize],
            layout: &layouts[&pipeline.bindings],
            subgroup_size,
            cache,
            capture,
        };
        Pipeline::create(device, &request)
            .map_err(LoadError::from)
            .and_then(&look)
            .map_err(|error| LoadError::Pipeline { name: pipeline.name.clone(), source: Box::new(error) })
    };
    on_all_cores(target.pipelines.len(), one).into_iter().collect()
}

/// `work` of 0..count, in order, each done once by whichever thread is free.
fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work_on_some = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return done;
            }
            done.push((index, work(index)));
        }
    };
    let mut done = thread::scope(|scope| {
        let others = cores::start(scope, cores::count().min(count).saturating_sub(1), work_on_some);
        let mut done = work_on_some();
        for other in others {
            done.extend(other.join().expect("compiling does not panic"));
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order() {
        assert_eq!(on_all_cores(100, |index| index * index), (0..100).map(|index| index * index).collect::<Vec<_>>());
        assert!(on_all_cores(0, |index| index).is_empty());
    }
}
