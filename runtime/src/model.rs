//! A loaded model: the artifact followed step by step onto one device.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use artifacts::header::decode_header;
use artifacts::view::WeightSection;
use artifacts::{ArtifactView, MappedFile, Meta, ParseError, Plan, SlicePlan, TokenizerSection};

use crate::bandwidth;
use crate::buffers::{Allocated, Buffers};
use crate::checksum::Checksum;
use crate::device_plan::{DeviceChoice, DeviceFacts, DeviceKind, choose_device, choose_target};
use crate::engine::Engine;
use crate::error::{LoadError, RunError};
use crate::held::Accounts;
use crate::pages::{BlockTable, PagePool};
use crate::pipeline_cache::{self, Compiled, PipelineReport};
use crate::profile::StepProfile;
use crate::programs;
use crate::reader::Reader;
use crate::residency::{ContextRequest, TierBytes, choose_context, planned_bytes, pool_pages, table_stride};
use crate::session::Session;
use crate::tune::Candidates;
use crate::tuning::{self, Tuning, TuningReport};
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::submit::Lane;
use crate::ways::{Extent, Source, Way, Ways};
use crate::weights;

/// An artifact, resident on a device and ready to run. Sessions share it.
pub struct Model {
    meta: Meta,
    plan: Plan,
    tokenizer: TokenizerSection,
    facts: DeviceFacts,
    request: ContextRequest,
    context_tokens: u32,
    report: LoadReport,
    /// Its programs keep every buffer alive that they use.
    engine: Mutex<Engine>,
    candidates: Mutex<Candidates>,
}

/// What a caller may choose about loading.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub device: DeviceChoice,
    /// Name of a target in the artifact; `None`: the first that fits.
    pub target: Option<String>,
    /// Longest sequence, in tokens; `None`: as many as the model was made for and memory holds.
    pub context_tokens: Option<u32>,
    /// Sequences that can exist at a time.
    pub slots: u32,
    /// How weights reach the device; `None`: the fastest way that exists there.
    pub residency: Option<Way>,
    /// Compares every weight section with its hash, on the device where the artifact has a kernel for it.
    pub verify_weights: bool,
    /// Where starts leave what spares later ones work; `None`: nowhere.
    pub cache_folder: Option<PathBuf>,
    /// Programs are recorded with the device's time after every dispatch: see [`Model::take_profiles`].
    pub profile: bool,
    /// What an earlier `tune` found best.
    pub tuning: Option<Tuning>,
    /// Decode is also recorded with every alternative of its pipelines: see [`Model::time_candidates`].
    pub candidates: bool,
    /// The device checks every access of a kernel against its binding's range.
    pub robust_buffer_access: bool,
}

/// What loading took and where things are.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadReport {
    pub seconds_total: f64,
    pub seconds_weights: f64,
    /// Compiled while weights were loading.
    pub seconds_pipelines: f64,
    pub pipelines: PipelineReport,
    pub tuning: TuningReport,
    pub weight_bytes: u64,
    /// How weights reached the device.
    pub way: String,
    pub verified: Verified,
    pub target: String,
    /// What is resident, by the tier that the driver really gave.
    pub memory: Vec<TierBytes>,
    /// What the driver and the kernel said of it, or why nothing could be compared.
    pub held: String,
}

/// How the weights were compared with their hashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verified {
    No,
    /// In the file: the artifact holds no kernel that hashes.
    InFile,
    /// Where they are resident.
    OnDevice {
        seconds: f64,
    },
}

/// No submission to a healthy GPU takes this long.
const GPU_TIMEOUT: Duration = Duration::from_secs(10);
/// Software devices are slow, not lost.
const SOFTWARE_TIMEOUT: Duration = Duration::from_secs(600);

impl Model {
    /// Maps the artifact, chooses device, target and context, makes the weights resident and records every program.
    /// `progress` is told weight bytes done and in all.
    ///
    /// # Errors
    /// [`LoadError`] says whether the file, the device or the room on it is to blame.
    pub fn load(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Model, LoadError> {
        let begin = Instant::now();
        let file = MappedFile::open(path).map_err(|source| LoadError::File { path: path.to_owned(), source })?;
        let file = Arc::new(file);
        let damaged = |source: ParseError| LoadError::Artifact { path: path.to_owned(), source };
        let view = ArtifactView::parse(file.bytes()).map_err(damaged)?;

        let instance = Instance::create()?;
        let facts = choose_device(&instance.devices()?, &options.device)?.clone();
        let target = choose_target(&view.kernels.targets, &facts, options.target.as_deref())?;
        let request = ContextRequest {
            asked_tokens: options.context_tokens,
            max_positions: view.meta.model.max_positions,
            slots: options.slots.max(1),
            chunk_tokens: target.programs.iter().map(|program| program.rows).max().unwrap_or(1),
        };
        let context_tokens = choose_context(&view.plan, &facts, &request)?;

        let device = Device::open(instance, &facts, options.robust_buffer_access)?;
        let sections = decode_header(file.bytes()).map_err(damaged)?;
        let key = tuning::key(&device.identity()?, &sections, target);
        let untuned = target;
        let (target, tuning) = tuning::tuned(untuned, key, options.tuning.as_ref());
        let timeout = if facts.kind == DeviceKind::Cpu { SOFTWARE_TIMEOUT } else { GPU_TIMEOUT };
        let before = Accounts::now(&facts, &device.heaps()?);
        let mut lane = Lane::create(&device, timeout)?;
        let source = Source { device: &device, file: &file, timeout };
        let extents = extents(&view);
        let planned = planned_bytes(&view.plan, context_tokens, &request);
        let ways = Ways::choose(&source, &extents, &planned, options.residency)?;
        let Allocated { buffers, views, slices } =
            Buffers::allocate(&source, &extents, &ways, &view.plan, context_tokens, &request)?;
        buffers.clear(&device, &mut lane)?;

        let (filled, compiled) = thread::scope(|scope| {
            let on_host = options.verify_weights && target.checksum.is_none();
            let verified = on_host.then(|| scope.spawn(|| verify(view.weights())));
            let compiled = scope.spawn(|| {
                timed(|| pipeline_cache::compile(&device, &view.kernels, &target, options.cache_folder.as_deref()))
            });
            let filled = timed(|| weights::fill(&source, slices, progress));
            if let Some(verified) = verified {
                verified.join().expect("hashing does not panic").map_err(damaged)?;
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
                let pipeline = &pipelines[checksum as usize];
                let begin = Instant::now();
                let mut checksum = Checksum::create(&device, pipeline)?;
                for (slice, (section, buffer)) in view.weights().iter().zip(&buffers.weights).enumerate() {
                    checksum.verify(&mut lane, &file, slice, section, buffer)?;
                }
                Verified::OnDevice { seconds: begin.elapsed().as_secs_f64() }
            }
        };
        let programs = programs::record(&device, &view.plan, &target, &pipelines, &buffers, options.profile)?;
        let candidates = match options.candidates {
            true => Candidates::record(&device, &view.plan, &view.kernels, untuned, &buffers)?,
            false => Candidates::default(),
        };

        let held = Accounts::now(&facts, &device.heaps()?);
        let held = before.compare(&held, &buffers.bytes_by_heap(facts.heaps.len()), &facts, &view.plan)?;

        let report = LoadReport {
            seconds_total: begin.elapsed().as_secs_f64(),
            seconds_weights,
            seconds_pipelines,
            pipelines: pipeline_report,
            tuning,
            weight_bytes: view.plan.slices.iter().map(|slice| slice.bytes).sum(),
            way: ways.describe(|tier| buffers.is_device_local(&view.plan, tier), Reader::direct(&file).is_direct()),
            verified,
            target: target.name.clone(),
            memory: buffers.resident_bytes(),
            held,
        };
        let engine = Engine {
            lane,
            profiles: Vec::new(),
            views,
            programs,
            pools: pools(&view.plan, context_tokens, &request),
            free_slots: (0..request.slots).rev().collect(),
            slots: request.slots,
            table_stride: table_stride(&view.plan, context_tokens),
            long_rope_above: view.meta.model.long_rope_above_tokens.unwrap_or(u32::MAX),
            logits_stride: view.plan.logits_stride,
        };
        let ArtifactView { meta, plan, tokenizer, .. } = view;
        Ok(Model {
            meta,
            plan,
            tokenizer,
            facts,
            request,
            context_tokens,
            report,
            engine: Mutex::new(engine),
            candidates: Mutex::new(candidates),
        })
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn tokenizer_section(&self) -> &TokenizerSection {
        &self.tokenizer
    }

    /// As it was before loading: heaps say what was free then.
    pub fn device(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Longest sequence, in tokens.
    pub fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// The device's memory bandwidth in bytes per second, read and written, measured now by copies between scratch buffers.
    ///
    /// # Errors
    /// When there is no room for the scratch buffers, or the device fails.
    pub fn measure_bandwidth(&self) -> Result<f64, RunError> {
        let lane = &mut self.engine().lane;
        let device = lane.device().clone();
        Ok(bandwidth::measure(&device, lane)?)
    }

    /// The steps of all sessions since this was last called, if the model was loaded to be profiled.
    pub fn take_profiles(&self) -> Vec<StepProfile> {
        std::mem::take(&mut self.engine().profiles)
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// [`RunError::NoFreeSlot`] while as many sessions exist as the model was loaded for.
    pub fn session(&self) -> Result<Session<'_>, RunError> {
        let slots = self.request.slots;
        let slot = self.engine().free_slots.pop().ok_or(RunError::NoFreeSlot { slots })?;
        let table = |group| {
            let pages = pool_pages(group, self.context_tokens, &ContextRequest { slots: 1, ..self.request });
            BlockTable::new(group, pages as u32)
        };
        Ok(Session::new(self, slot, self.plan.kv_groups.iter().map(table).collect()))
    }

    /// Sessions take turns. One that panicked left nothing half-done that the next step does not write anew.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn candidates(&self) -> MutexGuard<'_, Candidates> {
        self.candidates.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            device: DeviceChoice::Auto,
            target: None,
            context_tokens: None,
            slots: 1,
            residency: None,
            verify_weights: true,
            cache_folder: None,
            profile: false,
            tuning: None,
            candidates: false,
            robust_buffer_access: true,
        }
    }
}

fn extents(view: &ArtifactView<'_>) -> Vec<Extent> {
    let both = view.weights().iter().zip(&view.plan.slices);
    let extent = |(section, slice): (&WeightSection<'_>, &SlicePlan)| Extent {
        file_offset_bytes: section.offset_bytes,
        len_bytes: section.bytes.len() as u64,
        tier: slice.tier,
    };
    both.map(extent).collect()
}

fn verify(sections: &[WeightSection<'_>]) -> Result<(), ParseError> {
    sections.iter().try_for_each(WeightSection::verify)
}

fn pools(plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Vec<PagePool> {
    let pool = |group| PagePool::new(pool_pages(group, context_tokens, request) as u32);
    plan.kv_groups.iter().map(pool).collect()
}

/// Runs `work` and says how many seconds it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let done = work();
    (done, begin.elapsed().as_secs_f64())
}
