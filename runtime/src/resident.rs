//! An artifact onto a device: what a start does once, and again for a device that was lost.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use artifacts::view::WeightSection;
use artifacts::{ArtifactView, Kernels, MappedFile, Meta, Plan, ReadError, SlicePlan, TargetKernels, TokenizerSection};

use crate::buffers::{Allocated, Buffers};
use crate::checksum::Checksum;
use crate::device_plan::{DeviceFacts, DeviceFeatures, DeviceKind};
use crate::engine::Engine;
use crate::error::LoadError;
use crate::held::Accounts;
use crate::model::{LoadOptions, LoadReport, Verified};
use crate::pace;
use crate::pages::{HeldPages, PagePool};
use crate::pipeline_cache::{self, Compiled};
use crate::programs;
use crate::reader::Reader;
use crate::residency::{ContextRequest, planned_bytes, pool_pages, table_stride};
use crate::runnable;
use crate::tune::Workbench;
use crate::tuning;
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::submit::Lane;
use crate::ways::{Extent, Source, Ways};
use crate::weights;

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

/// Opens the device, fills its memory and records every program. `progress` is told weight bytes done and in all.
///
/// # Errors
/// [`LoadError`] says whether the file, the device or the room on it is to blame. Nothing is left on the device then.
pub fn make_resident(
    artifact: &ArtifactFile,
    decided: &Decided,
    instance: Instance,
    facts: &DeviceFacts,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Resident, LoadError> {
    let begin = Instant::now();
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

    let (filled, compiled) = thread::scope(|scope| {
        let on_host = options.verify_weights && target.checksum.is_none();
        let verified = on_host.then(|| scope.spawn(|| artifact.verify()));
        let compiled = scope.spawn(|| {
            timed(|| pipeline_cache::compile(&device, artifact.kernels(), target, options.cache_folder.as_deref()))
        });
        let filled = timed(|| weights::fill(&source, slices, progress));
        if let Some(verified) = verified {
            verified.join().expect("hashing does not panic")?;
        }
        Ok::<_, LoadError>((filled, compiled.join().expect("compiling does not panic")))
    })?;
    let ((filled, seconds_weights), (compiled, seconds_pipelines)) = (filled, compiled);
    filled?;
    let Compiled { pipelines, report: pipeline_report } = compiled?;
    let verified = match target.checksum {
        _ if !options.verify_weights => Verified::No,
        None => Verified::InFile,
        Some(checksum) => {
            let begin = Instant::now();
            let mut checksum = Checksum::create(&device, &pipelines[checksum as usize])?;
            for (slice, (section, buffer)) in artifact.view.weights().iter().zip(&buffers.weights).enumerate() {
                checksum.verify(&mut lane, &artifact.file, slice, section, buffer)?;
            }
            Verified::OnDevice { seconds: begin.elapsed().as_secs_f64() }
        }
    };

    let prepared = programs::prepare(&device, plan, target, &pipelines, &buffers, context_tokens)?;
    let mut paces = prepared.guessed_paces();
    let bound = options.submission_seconds();
    let mut engine = Engine {
        lane,
        profiles: Vec::new(),
        views,
        programs: prepared.record(&device, &paces, bound, options.profile.then_some(target))?,
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
    let held = Accounts::now(facts, &device.heaps()?);
    let held = before.compare(&held, &buffers.bytes_by_heap(facts.heaps.len()), facts, plan)?;
    let direct = Reader::direct(&artifact.file).is_direct();
    let report = LoadReport {
        seconds_total: begin.elapsed().as_secs_f64(),
        seconds_weights,
        seconds_pipelines,
        pipelines: pipeline_report,
        tuning,
        weight_bytes: plan.slices.iter().map(|slice| slice.bytes).sum(),
        way: ways.describe(|tier| buffers.is_device_local(plan, tier), direct),
        verified,
        target: target.name.clone(),
        memory: buffers.resident_bytes(),
        held,
        submissions: engine.programs.submissions(),
    };
    let workbench = options.candidates.then_some(Workbench { device, buffers, bound_seconds: bound });
    Ok(Resident { engine, report, workbench })
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

    fn verify(&self) -> Result<(), LoadError> {
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
