//! Loads an artifact onto a device: what a start does once, and again for a device that was lost.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unicorn_artifact::{ImageSection, TargetKernels, step};

use crate::device::facts::{DeviceFacts, DeviceKind};
use crate::device::limits::available_memory_bytes;
use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::load::artifact::ArtifactFile;
use crate::load::order::LoadOrder;
use crate::load::page_cache::is_plentiful;
use crate::load::path_choice::UploadPaths;
use crate::load::slices::{Slice, UploadSource};
use crate::load::streaming::StreamingLoad;
use crate::load::upload::{FillTimes, UploadReport, VerifyMethod, WeightUpload};
use crate::memory::buffers::{Allocator, Buffers, ByModel, HostViews};

use crate::memory::kv_pages::{PagePool, PagePools, PagesInUse};
use crate::memory::npu_memory::NpuBytes;
use crate::memory::requirements::{ContextRequest, pool_pages, table_stride};
use crate::memory::staging::StagingPool;
use crate::memory::state_copies::StateCopies;
use crate::memory::usage::MemoryUsage;
use crate::npu::{COMMAND_LIMIT, NpuDevice, NpuUse};
use crate::options::LoadOptions;
use crate::parallel;
use crate::program::npu_steps::{NpuTransfer, NpuWork, with_steps};
use crate::program::pipeline_cache::{self, Compiled};
use crate::program::{programs, streamed};
use crate::report::{LoadReport, NpuReport};
use crate::step::calibration;
use crate::step::engine::Engine;
use crate::step::images::Images;
use crate::tune::choices::{self, TuningReport};
use crate::tune::corrections::{CorrectionsReport, apply_corrected};
use crate::tune::measure::TuningResources;
use crate::vk::device::Device;
use crate::vk::submission::SubmissionQueue;

/// Decisions of the first load, which hold for every later one of the same model.
pub struct Decided {
    /// Index into the artifact's targets.
    pub target: usize,
    pub request: ContextRequest,
    pub context_tokens: u32,
    /// Longest context for which there was memory.
    pub max_context_tokens: u32,
    pub pages_in_use: PagesInUse,
    pub options: LoadOptions,
    /// Use barriers instead of counter synchronisation: the options require it, or a dispatch stopped waiting for a counter.
    pub barriers: AtomicBool,
    /// The GPU does all of the work: the options require it, or an NPU that is optional has failed.
    pub without_npu: AtomicBool,
    /// Images that sequences have rows of.
    pub images: Arc<Images>,
    /// Why targets before `target` do not run on the device.
    pub left_out: Vec<String>,
}

/// An artifact on a device.
pub struct Resident {
    pub engine: Engine,
    pub report: LoadReport,
    /// Present with [`LoadOptions::candidates`].
    pub tuning_resources: Option<TuningResources>,
}

/// Called with the weight bytes loaded and their total. Returning `Break` cancels the load.
pub type LoadProgress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// Longer than any submission to a working GPU.
const GPU_TIMEOUT: Duration = Duration::from_secs(10);
/// Software devices are slow.
const SOFTWARE_TIMEOUT: Duration = Duration::from_secs(600);

/// Loads the weights and records every program; `begun` is when loading began. A lazy load returns before all
/// weights are resident, and the engine's `loading` continues.
///
/// # Errors
/// [`LoadError`] names the file, the device or its memory as the cause, or that `progress` cancelled the load. Everything
/// allocated on the device is freed then.
pub fn make_resident(
    artifact: &Arc<ArtifactFile>,
    decided: &Decided,
    device: Arc<Device>,
    begun: Instant,
    lazy: bool,
    progress: &mut LoadProgress<'_>,
) -> Result<Resident, LoadError> {
    let Decided { request, context_tokens, options, .. } = decided;
    let (context_tokens, plan, facts) = (*context_tokens, artifact.plan(), device.facts());
    // First, so that an error of the NPU is found before weights are read.
    let mut chosen = choose_target(artifact, decided, &device)?;
    let usage_before = MemoryUsage::read(facts, &device.heaps()?);
    let mut queue = SubmissionQueue::create(&device, timeout_on(facts))?;
    let Allocated { slices, paths, buffers, views, keeps_page_cache } =
        allocate(artifact, decided, &device, &mut chosen)?;
    let ChosenTarget { target, npu, mut npu_report, npu_work, tuning, corrections } = chosen;
    let target = &target;
    npu_report.memory = buffers.npu_memory();

    let slice_bytes: Vec<u64> = slices.iter().map(Slice::len_bytes).collect();
    let upload = WeightUpload {
        artifact: artifact.clone(),
        device: device.clone(),
        timeout: timeout_on(facts),
        keeps_page_cache,
        slices,
        order: match lazy {
            true => LoadOrder::in_reading_order(&slice_bytes, target),
            false => LoadOrder::in_file_order(&slice_bytes),
        },
        usage_before,
        allocated: buffers.bytes_by_heap(facts.heaps.len()),
        begun,
    };
    let filled = match lazy {
        true => compile_while_streaming(upload, target, options, &buffers, &mut queue)?,
        false => fill_and_compile(upload, target, options, &buffers, &mut queue, progress)?,
    };
    let Compiled { pipelines, report: pipeline_report } = filled.compiled;

    let barriers = options.profile || decided.barriers.load(Ordering::Relaxed);
    let prepared = programs::prepare(&device, plan, target, &pipelines, &buffers, context_tokens, barriers)?
        .with_npu(&npu_work, &buffers);
    let mut cost_models = prepared.estimated_costs(facts.kind == DeviceKind::Cpu);
    let bound = options.submission_seconds();
    let pool = |group| PagePool::new(pool_pages(group, context_tokens, request) as u32, &decided.pages_in_use);
    let mut engine = Engine {
        queue,
        loading: filled.loading,
        in_flight: None,
        clear_arena: buffers.record_clear_arena(&device)?,
        profiles: Vec::new(),
        views,
        npu,
        n_rows: 0,
        programs: prepared.record(&device, &cost_models, bound, options.profile.then_some(target))?,
        bandwidth_probe: target.bandwidth_probe.map(|kernel| pipelines[kernel as usize].clone()),
        kv: buffers.kv().to_vec(),
        pools: PagePools::new(plan.kv_groups.iter().map(pool).collect()),
        state_copies: StateCopies::record(&device, &plan.kv_groups, buffers.kv(), context_tokens, request)?,
        staging: StagingPool::new(&device, timeout_on(facts), BufferUse::Readback),
        slots: request.slots,
        table_stride: table_stride(plan, context_tokens),
        mask_words: mask_words(artifact),
        long_rope_above: artifact.meta().model.long_rope_above_tokens.unwrap_or(u32::MAX),
        images: decided.images.clone(),
        image_row_stride: artifact.image().map_or(0, |image| image.row_stride as usize),
    };
    if options.submission.is_some() || facts.kind != DeviceKind::Cpu {
        calibration::measure(&mut engine, &prepared, &mut cost_models, bound, context_tokens)?;
        engine.programs = prepared.record(&device, &cost_models, bound, options.profile.then_some(target))?;
    }
    if let Some(loading) = &mut engine.loading {
        loading.programs = streamed::record(&device, &prepared, &cost_models, bound, &loading.chunks_needed)?;
    }

    let report = LoadReport {
        seconds_total: begun.elapsed().as_secs_f64(),
        seconds_pipelines: filled.seconds_pipelines,
        pipelines: pipeline_report,
        tuning,
        npu: npu_report,
        corrections,
        weight_bytes: plan.slices.iter().map(|slice| slice.bytes).sum(),
        upload_paths: paths.report(|tier| buffers.is_device_local(plan, tier)),
        upload: filled.report,
        target: target.name.clone(),
        left_out: decided.left_out.clone(),
        memory: buffers.resident_bytes(),
        submissions: engine.programs.submissions(),
    };
    let tuning_resources = options.candidates.then_some(TuningResources { device, buffers, bound_seconds: bound });
    Ok(Resident { engine, report, tuning_resources })
}

/// The kernels that run, and the NPU's part in them.
struct ChosenTarget {
    /// Tuned and corrected, with steps of the NPU if there is one.
    target: TargetKernels,
    npu: Option<NpuDevice>,
    npu_report: NpuReport,
    /// One a program of the target; empty without an NPU.
    npu_work: Vec<Option<NpuWork>>,
    tuning: TuningReport,
    corrections: CorrectionsReport,
}

fn choose_target(artifact: &ArtifactFile, decided: &Decided, device: &Device) -> Result<ChosenTarget, LoadError> {
    let (options, untuned) = (&decided.options, artifact.target(decided.target));
    let key = choices::key(&device.identity()?, artifact.content_hash(), untuned);
    let targets = &artifact.kernels().targets;
    let (tuning, corrections) = (options.tuning.as_ref(), options.corrections.as_ref());
    let (target, tuning, corrections) =
        apply_corrected(targets, decided.target, device.facts(), key, tuning, corrections);
    let (npu, npu_report) = open_npu(artifact, &untuned.name, decided)?;
    let steps = npu.as_ref().and_then(|_| artifact.npu_steps(&untuned.name));
    let (target, npu_work) = match steps {
        // Profiled dispatches are in the order of the program.
        Some((section, steps)) => with_steps(&target, steps, section, options.profile),
        None => (target, Vec::new()),
    };
    Ok(ChosenTarget { target, npu, npu_report, npu_work, tuning, corrections })
}

/// Memory of the model, without its contents.
struct Allocated {
    slices: Vec<Slice>,
    paths: UploadPaths,
    buffers: Buffers,
    views: HostViews,
    /// The weights go through the page cache, and the file stays in it.
    keeps_page_cache: bool,
}

fn allocate(
    artifact: &ArtifactFile,
    decided: &Decided,
    device: &Arc<Device>,
    chosen: &mut ChosenTarget,
) -> Result<Allocated, LoadError> {
    let Decided { request, context_tokens, options, .. } = decided;
    let (plan, timeout) = (artifact.plan(), timeout_on(device.facts()));
    let weight_bytes = plan.slices.iter().map(|slice| slice.bytes).sum();
    let keeps_page_cache = !options.direct_io && is_plentiful(weight_bytes, available_memory_bytes());
    let source = UploadSource { device, file: artifact.file(), timeout, keeps_page_cache };
    let allocator = Allocator::new(device, plan, *context_tokens, request);
    let extents = artifact.extents();
    let paths = UploadPaths::choose(&source, &extents, &allocator, options.residency)?;
    let slices = Slice::allocate_all(&source, &extents, |tier| paths.of(tier), &allocator)?;
    if slices.iter().any(Slice::is_imported) {
        artifact.watch()?;
    }
    let weights = slices.iter().map(|slice| slice.buffer().clone()).collect();
    let by_model = ByModel {
        mask_words: mask_words(artifact),
        input_bytes: artifact.image().map(ImageSection::input_bytes),
        npu: chosen.npu.as_mut().zip(npu_bytes(&chosen.npu_work)),
    };
    let (buffers, views) = Buffers::allocate(&allocator, weights, plan, *context_tokens, request, by_model)?;
    Ok(Allocated { slices, paths, buffers, views, keeps_page_cache })
}

/// Words of a mask of the tokens that a sampler may sample; 0: samplers take none.
fn mask_words(artifact: &ArtifactFile) -> usize {
    if artifact.takes_masks() { step::mask_words(artifact.meta().model.vocab_size) } else { 0 }
}

/// Weights on the device, or on their way, and compiled pipelines.
struct Filled {
    /// Present where weights are still loaded.
    loading: Option<StreamingLoad>,
    /// Present where all are there.
    report: Option<UploadReport>,
    compiled: Compiled,
    seconds_pipelines: f64,
}

/// Compiles pipelines while the weights are loaded, which goes on behind this function.
fn compile_while_streaming(
    upload: WeightUpload,
    target: &TargetKernels,
    options: &LoadOptions,
    buffers: &Buffers,
    queue: &mut SubmissionQueue,
) -> Result<Filled, LoadError> {
    let device = upload.device.clone();
    buffers.clear(&device, queue)?;
    let loading = StreamingLoad::start(upload, target)?;
    let (compiled, seconds_pipelines) = timed(|| compile(&device, target, options, &AtomicBool::new(false)));
    let compiled = compiled?;
    loading.verify(verify_method(target, options, &compiled));
    Ok(Filled { loading: Some(loading), report: None, compiled, seconds_pipelines })
}

/// Loads the weights, and compiles pipelines meanwhile.
fn fill_and_compile(
    mut upload: WeightUpload,
    target: &TargetKernels,
    options: &LoadOptions,
    buffers: &Buffers,
    queue: &mut SubmissionQueue,
    progress: &mut LoadProgress<'_>,
) -> Result<Filled, LoadError> {
    let device = upload.device.clone();
    let is_cancelled = AtomicBool::new(false);
    let compile = || timed(|| compile(&device, target, options, &is_cancelled));
    // Runs while pipelines are compiled: llvmpipe clears a KV cache of 90 MiB in 0.09 s, on one core.
    let mut fill = || {
        let times = buffers.clear(&device, queue).and_then(|()| fill(&mut upload, progress));
        is_cancelled.store(times.is_err(), Ordering::Relaxed);
        times
    };
    let (times, (compiled, seconds_pipelines)) = if options.load_alone {
        (fill(), compile())
    } else {
        thread::scope(|scope| {
            let compiling = parallel::start(scope, 1, compile).pop();
            let times = fill();
            let compiled = match compiling {
                Some(thread) => thread.join().expect("compiling does not panic"),
                None => compile(),
            };
            (times, compiled)
        })
    };
    let (times, compiled) = (times?, compiled?);
    let report = upload.check(times, verify_method(target, options, &compiled))?;
    Ok(Filled { loading: None, report: Some(report), compiled, seconds_pipelines })
}

fn compile(
    device: &Arc<Device>,
    target: &TargetKernels,
    options: &LoadOptions,
    is_cancelled: &AtomicBool,
) -> Result<Compiled, LoadError> {
    pipeline_cache::compile(device, target, options.cache_folder.as_deref(), is_cancelled)
}

fn verify_method(target: &TargetKernels, options: &LoadOptions, compiled: &Compiled) -> VerifyMethod {
    match target.checksum {
        _ if !options.verify_weights => VerifyMethod::No,
        None => VerifyMethod::InFile,
        Some(kernel) => VerifyMethod::OnDevice(compiled.pipelines[kernel as usize].clone()),
    }
}

/// The NPU with its programs and weights, where steps of the target use one.
fn open_npu(
    artifact: &ArtifactFile,
    target: &str,
    decided: &Decided,
) -> Result<(Option<NpuDevice>, NpuReport), LoadError> {
    let options = &decided.options;
    let steps = artifact.npu_steps(target).filter(|_| !decided.without_npu.load(Ordering::Relaxed));
    let Some((section, _)) = steps else { return Ok((None, NpuReport::default())) };
    let slices = artifact.npu_weights(options.verify_weights)?;
    let opened = options.npu_opener.open();
    match opened.and_then(|driver| NpuDevice::load(driver, section, &slices, COMMAND_LIMIT)) {
        Ok(device) => {
            let driver = Some(device.facts().driver.clone());
            Ok((Some(device), NpuReport { driver, products: section.products.len() as u32, ..NpuReport::default() }))
        }
        Err(error) if options.npu == NpuUse::Optional => {
            Ok((None, NpuReport { note: Some(error.to_string()), ..NpuReport::default() }))
        }
        Err(source) => Err(LoadError::Npu { source }),
    }
}

/// Bytes of the buffers between the device and the NPU; `None`: it has no part in any program.
fn npu_bytes(work: &[Option<NpuWork>]) -> Option<NpuBytes> {
    let commands = || work.iter().flatten().flat_map(|work| &work.transfers);
    let most = |bytes: fn(&NpuTransfer) -> u64| commands().flatten().map(bytes).max();
    Some(NpuBytes {
        runs: commands().map(Vec::len).max()?,
        activations: most(|transfer| transfer.activations.1)?,
        outputs: most(|transfer| transfer.outputs.1)?,
    })
}

/// How long a submission to the device may take.
pub fn timeout_on(facts: &DeviceFacts) -> Duration {
    if facts.kind == DeviceKind::Cpu { SOFTWARE_TIMEOUT } else { GPU_TIMEOUT }
}

/// Loads all weights.
fn fill(upload: &mut WeightUpload, progress: &mut LoadProgress<'_>) -> Result<FillTimes, LoadError> {
    let lengths: Vec<u64> = upload.order.chunks().iter().map(|chunk| chunk.len_bytes).collect();
    let (mut done, total) = (0, lengths.iter().sum());
    if progress(done, total).is_break() {
        return Err(LoadError::Cancelled);
    }
    let times = upload.fill(&mut |position| {
        done += lengths[position];
        progress(done, total)
    })?;
    times.ok_or(LoadError::Cancelled)
}

/// Result of `work`, and the seconds that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let result = work();
    (result, begin.elapsed().as_secs_f64())
}
