//! A loaded model: the artifact followed step by step onto one device.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use artifacts::{Kernels, Meta, Plan, TargetKernels, TokenizerSection};

use crate::bandwidth;
use crate::device_plan::{DeviceChoice, DeviceFacts, choose_device, choose_target};
use crate::engine::Engine;
use crate::error::{LoadError, RunError};
use crate::pages::{BlockTable, HeldPages};
use crate::pipeline_cache::PipelineReport;
use crate::profile::StepProfile;
use crate::recovery::{Recovery, Shared};
use crate::residency::{ContextRequest, TierBytes, choose_context, pool_pages};
use crate::resident::{ArtifactFile, Decided, Resident, make_resident};
use crate::session::Session;
use crate::tune::Workbench;
use crate::tuning::{Tuning, TuningReport};
use crate::vk::instance::Instance;
use crate::ways::Way;

/// An artifact, resident on a device and ready to run. Sessions share it.
pub struct Model {
    artifact: ArtifactFile,
    decided: Decided,
    facts: DeviceFacts,
    report: LoadReport,
    /// Programs of its engine keep every buffer alive that they use.
    shared: Mutex<Shared>,
    workbench: Option<Workbench>,
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
    /// Longest that a submission may take, as far as that can be foreseen; `None`: 100 ms, and on a software device, which
    /// nobody resets, nothing is measured for it.
    pub submission: Option<Duration>,
    /// Where starts leave what spares later ones work; `None`: nowhere.
    pub cache_folder: Option<PathBuf>,
    /// Programs are recorded with the device's time after every dispatch: see [`Model::take_profiles`].
    pub profile: bool,
    /// What an earlier `tune` found best.
    pub tuning: Option<Tuning>,
    /// Buffers stay at hand for programs that are recorded later: see [`Model::time_kernels`].
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
    /// Submissions of a step of each of the target's programs.
    pub submissions: Vec<u32>,
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

/// What a submission may take unless the caller says otherwise: recent kernels reset an amdgpu ring after 2 s, and a desktop
/// that shares the GPU should not stutter.
const SUBMISSION: Duration = Duration::from_millis(100);

impl Model {
    /// Reads the artifact, chooses device, target and context, makes the weights resident and records every program.
    /// `progress` is told weight bytes done and in all.
    ///
    /// # Errors
    /// [`LoadError`] says whether the file, the device or the room on it is to blame.
    pub fn load(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Model, LoadError> {
        let begin = Instant::now();
        let mut artifact = ArtifactFile::open(path)?;
        let instance = Instance::create()?;
        let facts = choose_device(&instance.devices()?, &options.device)?.clone();
        artifact.keep_runnable(&facts.features);
        let targets = &artifact.kernels().targets;
        let target = choose_target(targets, &facts, options.target.as_deref())?;
        let request = ContextRequest {
            asked_tokens: options.context_tokens,
            max_positions: artifact.meta().model.max_positions,
            slots: options.slots.max(1),
            chunk_tokens: target.programs.iter().map(|program| program.rows).max().unwrap_or(1),
        };
        let context_tokens = choose_context(artifact.plan(), &facts, &request)?;
        let target = targets.iter().position(|one| std::ptr::eq(one, target)).expect("one of them was chosen");
        let decided =
            Decided { target, request, context_tokens, held_pages: HeldPages::default(), options: options.clone() };
        let Resident { engine, mut report, workbench } =
            make_resident(&artifact, &decided, instance, &facts, progress)?;
        report.seconds_total = begin.elapsed().as_secs_f64();
        let shared = Mutex::new(Shared::new(engine, request.slots));
        Ok(Model { artifact, decided, facts, report, shared, workbench })
    }

    /// Makes everything resident again on the device that was lost, or rather on the one that now bears its name.
    pub(crate) fn revive(&self) -> Result<Engine, LoadError> {
        let instance = Instance::create()?;
        let devices = instance.devices()?;
        let is_it = |found: &&DeviceFacts| {
            (&found.name, found.vendor_id, found.device_id)
                == (&self.facts.name, self.facts.vendor_id, self.facts.device_id)
        };
        // Of several alike, the one in the same place.
        let mut alike: Vec<&DeviceFacts> = devices.iter().filter(is_it).collect();
        alike.sort_by_key(|found| found.index != self.facts.index);
        let facts = *alike.first().ok_or_else(|| LoadError::NoDevice {
            wanted: format!("{}, which was lost", self.facts.name),
            found: devices.iter().map(DeviceFacts::to_string).collect(),
        })?;
        Ok(make_resident(&self.artifact, &self.decided, instance, facts, &mut |_, _| ())?.engine)
    }

    pub fn meta(&self) -> &Meta {
        self.artifact.meta()
    }

    pub fn plan(&self) -> &Plan {
        self.artifact.plan()
    }

    pub fn tokenizer_section(&self) -> &TokenizerSection {
        self.artifact.tokenizer()
    }

    /// As it was before loading: heaps say what was free then.
    pub fn device(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Longest sequence, in tokens.
    pub fn context_tokens(&self) -> u32 {
        self.decided.context_tokens
    }

    /// Pages of the KV cache that sequences hold now, and pages in all. May be asked while a sequence is generating.
    pub fn kv_pages(&self) -> (u32, u32) {
        let Decided { request, context_tokens, held_pages, .. } = &self.decided;
        let pages = self.plan().kv_groups.iter().map(|group| pool_pages(group, *context_tokens, request) as u32);
        (held_pages.count(), pages.sum())
    }

    /// Most sequences that one step takes.
    pub fn batch_rows(&self) -> u32 {
        let programs = &self.artifact.target(self.decided.target).programs;
        programs.iter().filter(|one| one.batch && one.samples).map(|one| one.rows).max().unwrap_or(0)
    }

    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// The device's memory bandwidth in bytes per second, read and written, measured now by copies between scratch buffers.
    ///
    /// # Errors
    /// When there is no room for the scratch buffers, or the device fails.
    pub fn measure_bandwidth(&self) -> Result<f64, RunError> {
        let mut shared = self.shared();
        let lane = &mut shared.ready(self)?.1.lane;
        let device = lane.device().clone();
        Ok(bandwidth::measure(&device, lane)?)
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
    pub fn session(&self) -> Result<Session<'_>, RunError> {
        let mut shared = self.shared();
        let slot = shared.free_slots.pop().ok_or(RunError::NoFreeSlot { slots: self.slots() })?;
        Ok(Session::new(self, slot, self.empty_tables(), shared.generation()))
    }

    /// Block tables of an empty sequence, one a KV group.
    pub(crate) fn empty_tables(&self) -> Vec<BlockTable> {
        let table = |group| {
            let pages = pool_pages(group, self.context_tokens(), &ContextRequest { slots: 1, ..self.decided.request });
            BlockTable::new(group, pages as u32)
        };
        self.plan().kv_groups.iter().map(table).collect()
    }

    /// The target as the artifact holds it, alternatives included.
    pub(crate) fn untuned(&self) -> &TargetKernels {
        self.artifact.target(self.decided.target)
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        self.artifact.kernels()
    }

    /// Sequences that can exist at a time.
    pub(crate) fn slots(&self) -> u32 {
        self.decided.request.slots
    }

    pub(crate) fn workbench(&self) -> &Workbench {
        self.workbench.as_ref().expect("loaded with candidates")
    }

    /// Sessions take turns. One that panicked left nothing half-done that the next step does not write anew.
    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl LoadOptions {
    /// Longest that a submission may take, as far as that can be foreseen.
    pub(crate) fn submission_seconds(&self) -> f64 {
        self.submission.unwrap_or(SUBMISSION).as_secs_f64()
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
            submission: None,
            cache_folder: None,
            profile: false,
            tuning: None,
            candidates: false,
            robust_buffer_access: true,
        }
    }
}
