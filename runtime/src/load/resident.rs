//! An artifact onto a device: what a start does once, and again for a device that was lost.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unicorn_artifact::view::WeightSection;
use unicorn_artifact::{
    ArtifactView, Kernels, MappedFile, Meta, Plan, ReadError, SlicePlan, TargetKernels, TokenizerSection, cores,
};

use crate::device::plan::{DeviceFacts, DeviceFeatures, DeviceKind};
use crate::error::LoadError;
use crate::load::delivery::{Delivery, Filled, Verify};
use crate::load::order::Route;
use crate::load::streaming::Loading;
use crate::load::upload_path::{Extent, Source, Ways};
use crate::load::weights::Slice;
use crate::memory::buffers::{Allocated, Buffers};
use crate::memory::pages::{HeldPages, PagePool};
use crate::memory::residency::{ContextRequest, planned_bytes, pool_pages, table_stride};
use crate::memory::usage::Accounts;
use crate::model::{LoadOptions, LoadReport};
use crate::program::fragments;
use crate::program::pace;
use crate::program::pipeline_cache::{self, Compiled};
use crate::program::programs;
use crate::program::runnable;
use crate::program::waiting;
use crate::step::engine::Engine;
use crate::tune::measure::Workbench;
use crate::tune::tuning;
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::pipeline::Pipeline;
use crate::vk::submit::Lane;

/// An open artifact. All but the weights is in memory of our own, and the weights are only ever read: a file that is cut
/// or changed while it is in use gives an error.
pub struct ArtifactFile {
    file: Arc<MappedFile>,
    view: ArtifactView<'static>,
}

/// What was decided about a load, and holds for every later one of the same model.
pub struct Decided {
    /// Index into the artifact's targets.
    pub target: usize,
    pub request: ContextRequest,
    pub context_tokens: u32,
    pub held_pages: HeldPages,
    pub options: LoadOptions,
    /// Dispatches do not wait for each other by themselves: the options say so, or one of them gave up waiting.
    pub barriers: AtomicBool,
}

/// An artifact on a device.
pub struct Resident {
    pub engine: Engine,
    pub report: LoadReport,
    /// If candidates were asked for.
    pub workbench: Option<Workbench>,
}

/// No submission to a healthy GPU takes this long.
const GPU_TIMEOUT: Duration = Duration::from_secs(10);
/// Software devices are slow, not lost.
const SOFTWARE_TIMEOUT: Duration = Duration::from_secs(600);

/// Opens the device, fills its memory and records every program; `begun` is when loading began. `progress` is told weight
/// bytes done and in all. A lazy load returns before its memory is full: the engine's `loading` goes on with that.
///
/// # Errors
/// [`LoadError`] says whether the file, the device or the room on it is to blame. Nothing is left on the device then.
pub fn make_resident(
    artifact: &Arc<ArtifactFile>,
    decided: &Decided,
    instance: Instance,
    facts: &DeviceFacts,
    begun: Instant,
    lazy: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Resident, LoadError> {
    let Decided { request, context_tokens, options, .. } = decided;
    let (context_tokens, plan, untuned) = (*context_tokens, artifact.plan(), artifact.target(decided.target));
    let device = Device::open(instance, facts, options.robust_buffer_access)?;
    let key = tuning::key(&device.identity()?, &artifact.view.content_hash, untuned);
    let (target, tuning) = tuning::tuned(untuned, key, options.tuning.as_ref());
    let target = &target;
    let timeout = if facts.kind == DeviceKind::Cpu { SOFTWARE_TIMEOUT } else { GPU_TIMEOUT };
    let before = Accounts::now(facts, &device.heaps()?);
    let mut lane = Lane::create(&device, timeout)?;
    let source = Source { device: &device, file: &artifact.file, timeout };
    let extents = artifact.extents();
    let ways = Ways::choose(&source, &extents, &planned_bytes(plan, context_tokens, request), options.residency)?;
    let Allocated { buffers, views, slices } =
        Buffers::allocate(&source, &extents, &ways, plan, context_tokens, request)?;
    buffers.clear(&device, &mut lane)?;

    let slice_bytes: Vec<u64> = slices.iter().map(Slice::len_bytes).collect();
    let delivery = Delivery {
        artifact: artifact.clone(),
        device: device.clone(),
        timeout,
        slices,
        route: if lazy { Route::in_reading_order(&slice_bytes, target) } else { Route::in_file_order(&slice_bytes) },
        before,
        allocated: buffers.bytes_by_heap(facts.heaps.len()),
        begun,
    };
    let compile =
        || timed(|| pipeline_cache::compile(&device, artifact.kernels(), target, options.cache_folder.as_deref()));
    let verify = |pipelines: &[Arc<Pipeline>]| match target.checksum {
        _ if !options.verify_weights => Verify::No,
        None => Verify::InFile,
        Some(kernel) => Verify::OnDevice(pipelines[kernel as usize].clone()),
    };
    let (loading, delivered, compiled, seconds_pipelines) = if lazy {
        let loading = Loading::start(delivery, target)?;
        let (compiled, seconds) = compile();
        let compiled = compiled?;
        loading.verify(verify(&compiled.pipelines));
        (Some(loading), None, compiled, seconds)
    } else {
        let mut delivery = delivery;
        let (filled, (compiled, seconds)) = if options.load_alone {
            (fill(&mut delivery, progress), compile())
        } else {
            thread::scope(|scope| {
                let compiling = cores::start(scope, 1, compile).pop();
                let filled = fill(&mut delivery, progress);
                let compiled = match compiling {
                    Some(thread) => thread.join().expect("compiling does not panic"),
                    None => compile(),
                };
                (filled, compiled)
            })
        };
        let (filled, compiled) = (filled?, compiled?);
        let delivered = delivery.check(filled, verify(&compiled.pipelines))?;
        (None, Some(delivered), compiled, seconds)
    };
    let Compiled { pipelines, report: pipeline_report } = compiled;
    if let Some(kernel) = target.fragments {
        fragments::check(&device, &mut lane, &pipelines[kernel as usize], &target.name)?;
    }

    let barriers = options.profile || decided.barriers.load(Ordering::Relaxed);
    let prepared = programs::prepare(&device, plan, target, &pipelines, &buffers, context_tokens, barriers)?;
    let mut paces = prepared.guessed_paces();
    let bound = options.submission_seconds();
    let mut engine = Engine {
        lane,
        loading,
        profiles: Vec::new(),
        views,
        programs: prepared.record(&device, &paces, bound, options.profile.then_some(target))?,
        reads: target.reads.map(|kernel| pipelines[kernel as usize].clone()),
        pools: plan
            .kv_groups
            .iter()
            .map(|group| PagePool::new(pool_pages(group, context_tokens, request) as u32, &decided.held_pages))
            .collect(),
        slots: request.slots,
        table_stride: table_stride(plan, context_tokens),
        long_rope_above: artifact.meta().model.long_rope_above_tokens.unwrap_or(u32::MAX),
        logits_stride: plan.logits_stride,
    };
    if options.submission.is_some() || facts.kind != DeviceKind::Cpu {
        pace::measure(&mut engine, &prepared, &mut paces, bound, context_tokens)?;
        engine.programs = prepared.record(&device, &paces, bound, options.profile.then_some(target))?;
    }
    if let Some(loading) = &mut engine.loading {
        loading.programs = waiting::record(&device, &prepared, &paces, bound, &loading.needs)?;
    }
    let report = LoadReport {
        seconds_total: begun.elapsed().as_secs_f64(),
        seconds_pipelines,
        pipelines: pipeline_report,
        tuning,
        weight_bytes: plan.slices.iter().map(|slice| slice.bytes).sum(),
        way: ways.describe(|tier| buffers.is_device_local(plan, tier)),
        delivered,
        target: target.name.clone(),
        memory: buffers.resident_bytes(),
        submissions: engine.programs.submissions(),
    };
    let workbench = options.candidates.then_some(Workbench { device, buffers, bound_seconds: bound });
    Ok(Resident { engine, report, workbench })
}

/// To the end; `progress` is told weight bytes done and in all.
fn fill(delivery: &mut Delivery, progress: &mut dyn FnMut(u64, u64)) -> Result<Filled, LoadError> {
    let lengths: Vec<u64> = delivery.route.pieces().iter().map(|piece| piece.len_bytes).collect();
    let (mut done, total) = (0, lengths.iter().sum());
    progress(done, total);
    let filled = delivery.fill(&mut |place| {
        done += lengths[place];
        progress(done, total);
        ControlFlow::Continue(())
    })?;
    Ok(filled.expect("nobody broke off"))
}

impl ArtifactFile {
    /// # Errors
    /// When the file cannot be read, or is no artifact.
    pub fn open(path: &Path) -> Result<ArtifactFile, LoadError> {
        let file = MappedFile::open(path).map_err(|source| LoadError::File { path: path.to_owned(), source })?;
        let view = ArtifactView::read(file.file()).map_err(|error| in_file(path, error))?;
        Ok(ArtifactFile { file: Arc::new(file), view })
    }

    pub fn meta(&self) -> &Meta {
        &self.view.meta
    }

    pub fn plan(&self) -> &Plan {
        &self.view.plan
    }

    pub fn tokenizer(&self) -> &TokenizerSection {
        &self.view.tokenizer
    }

    pub fn kernels(&self) -> &Kernels {
        &self.view.kernels
    }

    pub fn target(&self, index: usize) -> &TargetKernels {
        &self.view.kernels.targets[index]
    }

    /// Takes out the alternatives that a device cannot run.
    pub fn keep_runnable(&mut self, features: &DeviceFeatures) {
        runnable::keep_runnable(&mut self.view.kernels, features);
    }

    /// Where the weights lie in the file, and where they belong.
    fn extents(&self) -> Vec<Extent> {
        let both = self.view.weights().iter().zip(&self.view.plan.slices);
        let extent = |(section, slice): (&WeightSection<'_>, &SlicePlan)| Extent {
            file_offset_bytes: section.offset_bytes,
            len_bytes: section.len_bytes,
            tier: slice.tier,
        };
        both.map(extent).collect()
    }

    pub fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    /// One a slice of the plan.
    pub fn weights(&self) -> &[WeightSection<'static>] {
        self.view.weights()
    }

    /// Compares the weights in the file with their hashes.
    pub fn verify(&self) -> Result<(), LoadError> {
        let verified = self.view.weights().iter().try_for_each(|section| section.verify_in(self.file.file()));
        verified.map_err(|error| in_file(self.file.path(), error))
    }
}

fn in_file(path: &Path, error: ReadError) -> LoadError {
    match error {
        ReadError::File(source) => LoadError::File { path: path.to_owned(), source },
        ReadError::Artifact(source) => LoadError::Artifact { path: path.to_owned(), source },
    }
}

/// Runs `work` and says how many seconds it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let done = work();
    (done, begin.elapsed().as_secs_f64())
}
