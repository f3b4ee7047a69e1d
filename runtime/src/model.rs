//! A loaded model: the artifact followed step by step onto one device.

pub mod options;
pub mod report;
mod resident;

pub use self::options::LoadOptions;
pub use self::report::LoadReport;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use unicorn_artifact::{Kernels, Meta, Plan, TargetKernels, TokenizerSection};

use self::resident::{Decided, Resident, make_resident};
use crate::device::amdgpu::AmdgpuMemory;
use crate::device::choice::{choose_device, choose_target};
use crate::device::facts::DeviceFacts;
use crate::error::{LoadError, RunError};
use crate::load::artifact::ArtifactFile;
use crate::load::streaming::StreamingState;
use crate::memory::budget::AvailableMemory;
use crate::memory::context::choose_context;
use crate::memory::kv_pages::{BlockTable, PagesInUse};
use crate::memory::requirements::{ContextRequest, pool_pages};
use crate::probe::bandwidth;
use crate::program::multistep::MAX_POSITIONS_IN_FLIGHT;
use crate::program::profile::StepProfile;
use crate::session::recovery::{Recovery, Shared};
use crate::session::session::Session;
use crate::step::engine::Engine;
use crate::tune::measure::TuningResources;
use crate::vk::instance::Instance;

/// An artifact, resident on a device and ready to run: a handle that is cheap to clone and can be sent to other threads. Each
/// [`Session`] holds one, and the device's memory is freed with the last of them.
#[derive(Clone)]
pub struct Model {
    loaded: Arc<Loaded>,
}

struct Loaded {
    artifact: Arc<ArtifactFile>,
    begun: Instant,
    decided: Decided,
    facts: DeviceFacts,
    report: LoadReport,
    streaming: Arc<StreamingState>,
    /// RecordedPrograms of its engine keep every buffer alive that they use.
    shared: Mutex<Shared>,
    tuning_resources: Option<TuningResources>,
}

impl Model {
    /// Reads the artifact, chooses device, target and context, makes the weights resident and records every program.
    /// `progress` is told weight bytes done and in all.
    ///
    /// # Errors
    /// [`LoadError`] says whether the file, the device or the room on it is to blame.
    pub fn load(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Model, LoadError> {
        let begun = Instant::now();
        let mut artifact = ArtifactFile::open(path)?;
        let instance = Instance::create()?;
        let facts = choose_device(&instance.devices()?, &options.device)?.clone();
        artifact.keep_runnable(&facts.features);
        let targets = &artifact.kernels().targets;
        let target = choose_target(targets, &facts, options.target.as_deref())?;
        let rows = target.programs.iter().map(|program| program.rows);
        let request = ContextRequest {
            requested_tokens: options.context_tokens,
            max_positions: artifact.meta().model.max_positions,
            slots: options.slots.max(1),
            chunk_tokens: rows.max().unwrap_or(1).max(MAX_POSITIONS_IN_FLIGHT),
        };
        let memory = AvailableMemory {
            artifact: path,
            facts: &facts,
            amdgpu: AmdgpuMemory::read(&facts),
            budget: &options.budget,
        };
        let context_tokens = choose_context(artifact.plan(), &memory, &request)?;
        let target = targets.iter().position(|one| std::ptr::eq(one, target)).expect("one of them was chosen");
        let (pages_in_use, barriers) = (PagesInUse::default(), AtomicBool::new(options.barriers));
        let decided = Decided { target, request, context_tokens, pages_in_use, options: options.clone(), barriers };
        let lazy = options.lazy && !options.profile && !options.candidates;
        let artifact = Arc::new(artifact);
        let Resident { engine, report, tuning_resources } =
            make_resident(&artifact, &decided, instance, &facts, begun, lazy, progress)?;
        let streaming = match (&report.upload, &engine.loading) {
            (Some(upload), _) => Arc::new(StreamingState::complete(upload.clone())),
            (None, loading) => loading.as_ref().expect("weights are resident or being loaded").state.clone(),
        };
        let shared = Mutex::new(Shared::new(engine, request.slots));
        let loaded = Loaded { artifact, begun, decided, facts, report, streaming, shared, tuning_resources };
        Ok(Model { loaded: Arc::new(loaded) })
    }

    /// From the next time on that the device is had back, dispatches have barriers.
    pub(crate) fn do_without_chains(&self) {
        self.loaded.decided.barriers.store(true, Ordering::Relaxed);
    }

    /// Makes everything resident again on the device that was lost, or rather on the one that now bears its name.
    pub(crate) fn revive(&self) -> Result<Engine, LoadError> {
        let instance = Instance::create()?;
        let devices = instance.devices()?;
        let is_it = |found: &&DeviceFacts| {
            (&found.name, found.vendor_id, found.device_id)
                == (&self.loaded.facts.name, self.loaded.facts.vendor_id, self.loaded.facts.device_id)
        };
        // Of several alike, the one in the same place.
        let mut alike: Vec<&DeviceFacts> = devices.iter().filter(is_it).collect();
        alike.sort_by_key(|found| found.index != self.loaded.facts.index);
        let facts = *alike.first().ok_or_else(|| LoadError::NoDevice {
            wanted: format!("{}, which was lost", self.loaded.facts.name),
            found: devices.iter().map(DeviceFacts::to_string).collect(),
        })?;
        let Resident { engine, report, .. } = make_resident(
            &self.loaded.artifact,
            &self.loaded.decided,
            instance,
            facts,
            self.loaded.begun,
            false,
            &mut |_, _| (),
        )?;
        self.loaded.streaming.replace(report.upload.expect("this load was not lazy"));
        Ok(engine)
    }

    pub fn meta(&self) -> &Meta {
        self.loaded.artifact.meta()
    }

    pub fn plan(&self) -> &Plan {
        self.loaded.artifact.plan()
    }

    pub fn tokenizer_section(&self) -> &TokenizerSection {
        self.loaded.artifact.tokenizer()
    }

    /// As it was before loading: heaps say what was free then.
    pub fn device(&self) -> &DeviceFacts {
        &self.loaded.facts
    }

    /// Longest sequence, in tokens.
    pub fn context_tokens(&self) -> u32 {
        self.loaded.decided.context_tokens
    }

    /// Pages of the KV cache that sequences hold now, and pages in all. May be asked while a sequence is generating.
    pub fn kv_pages(&self) -> (u32, u32) {
        let Decided { request, context_tokens, pages_in_use, .. } = &self.loaded.decided;
        let pages = self.plan().kv_groups.iter().map(|group| pool_pages(group, *context_tokens, request) as u32);
        (pages_in_use.count(), pages.sum())
    }

    /// Most sequences that one step takes.
    pub fn batch_rows(&self) -> u32 {
        let programs = &self.loaded.artifact.target(self.loaded.decided.target).programs;
        programs.iter().filter(|one| one.batch && one.samples).map(|one| one.rows).max().unwrap_or(0)
    }

    /// As far as it is known: a lazy load may still be under way.
    pub fn report(&self) -> LoadReport {
        LoadReport { upload: self.loaded.streaming.outcome().and_then(Result::ok), ..self.loaded.report.clone() }
    }

    /// Waits until all weights are resident and were checked.
    ///
    /// # Errors
    /// Why a lazy load did not end well.
    pub fn wait_for_weights(&self) -> Result<(), RunError> {
        match self.loaded.streaming.wait() {
            Some(Err(source)) => Err(RunError::Loading { source }),
            // Broken off with a device that was lost, and not needed since.
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Whether a lazy load has failed, so that no step can run.
    pub fn is_broken(&self) -> bool {
        matches!(self.loaded.streaming.outcome(), Some(Err(_)))
    }

    /// Since its loading began.
    pub fn age(&self) -> Duration {
        self.loaded.begun.elapsed()
    }

    /// Bytes per second at which the device reads its memory, measured now; `None`: the artifact holds no kernel for that,
    /// there is no room for what is read, or the device fails.
    pub fn measure_read_bandwidth(&self) -> Option<f64> {
        let mut shared = self.shared();
        let engine = shared.ready(self).ok()?.1;
        let device = engine.lane.device().clone();
        bandwidth::measure(&device, &mut engine.lane, engine.reads.as_ref()?).ok()
    }

    /// The steps of all sessions since this was last called, if the model was loaded to be profiled.
    pub fn take_profiles(&self) -> Vec<StepProfile> {
        let mut shared = self.shared();
        let generation = shared.generation();
        shared.engine_of(generation).map(|engine| std::mem::take(&mut engine.profiles)).unwrap_or_default()
    }

    /// The times since this was last called that the device was lost and had back.
    pub fn take_recoveries(&self) -> Vec<Recovery> {
        self.shared().take_recoveries()
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// [`RunError::NoFreeSlot`] while as many sessions exist as the model was loaded for.
    pub fn session(&self) -> Result<Session, RunError> {
        let mut shared = self.shared();
        let slot = shared.free_slots.pop().ok_or(RunError::NoFreeSlot { slots: self.slots() })?;
        Ok(Session::new(self.clone(), slot, self.empty_tables(), shared.generation()))
    }

    /// Block tables of an empty sequence, one a KV group.
    pub(crate) fn empty_tables(&self) -> Vec<BlockTable> {
        let table = |group| {
            let pages =
                pool_pages(group, self.context_tokens(), &ContextRequest { slots: 1, ..self.loaded.decided.request });
            BlockTable::new(group, pages as u32)
        };
        self.plan().kv_groups.iter().map(table).collect()
    }

    /// The target as the artifact holds it, alternatives included.
    pub(crate) fn untuned(&self) -> &TargetKernels {
        self.loaded.artifact.target(self.loaded.decided.target)
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        self.loaded.artifact.kernels()
    }

    /// Whether both are handles of one loaded model.
    pub(crate) fn is(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.loaded, &other.loaded)
    }

    /// Sequences that can exist at a time.
    pub(crate) fn slots(&self) -> u32 {
        self.loaded.decided.request.slots
    }

    /// Longest that several steps of decode may take in one submission.
    pub(crate) fn multistep_seconds(&self) -> f64 {
        self.loaded.decided.options.multistep.as_secs_f64()
    }

    /// Whether dispatches have barriers also where they could wait for each other by themselves.
    pub(crate) fn has_barriers(&self) -> bool {
        self.loaded.decided.barriers.load(Ordering::Relaxed)
    }

    pub(crate) fn tuning_resources(&self) -> &TuningResources {
        self.loaded.tuning_resources.as_ref().expect("loaded with candidates")
    }

    /// Sessions take turns. One that panicked left nothing half-done that the next step does not write anew.
    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.loaded.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
