//! A loaded model: everything that can be done with one.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use unicorn_artifact::hash::hash;
use unicorn_artifact::step::MAX_IMAGE_ACROSS;
use unicorn_artifact::{
    ImageSection, LicenseSection, LogitsRows, Meta, Pipeline, Plan, TargetKernels, TokenizerSection,
};

use crate::device::amdgpu::AmdgpuMemory;
use crate::device::choice::{choose_device, choose_target};
use crate::device::facts::DeviceFacts;
use crate::error::{LoadError, RunError};
use crate::load::artifact::{ArtifactFile, DraftUse};
use crate::load::streaming::StreamingState;
use crate::memory::budget::AvailableMemory;
use crate::memory::context::{choose_capacity, choose_context, longest_context};
use crate::memory::kv_pages::{BlockTable, PagesInUse};
use crate::memory::requirements::{ContextRequest, pool_pages};
use crate::npu::NpuUse;
use crate::options::LoadOptions;
use crate::probe::bandwidth;
use crate::program::matrix_layout::{Runnable, choose_runnable};
use crate::program::multistep::MAX_POSITIONS_IN_FLIGHT;
use crate::program::profile::StepProfile;
use crate::report::LoadReport;
use crate::resident::{Decided, LoadProgress, Resident, make_resident, timeout_on};
use crate::session::batch::{self, BatchRow, BatchTokens};
use crate::session::kv_store::KvStore;
use crate::session::mixed::{self, PromptPart};
use crate::session::model_drafter::ModelDrafter;
use crate::session::model_state::{Recovery, Shared};
use crate::session::recovery::persist;
use crate::session::scheduler::{Scheduler, TokenReceiver};
use crate::session::session::Session;
use crate::session::speculation::speculator::Speculation;
use crate::step::images::{Image, ImagePatches, ImageShape, Images};
use crate::step::masks::Masks;
use crate::step::sampling::Sampled;
use crate::tune::choices::{Choice, StepShape, shapes};
use crate::tune::exchange::{self, Programs};
use crate::tune::measure::{
    Effort, IdleEngine, IdleWork, TimedPipeline, TuneError, TuneProgress, Tuner, TuningResources,
};
use crate::tune::trace::{TraceSink, TracedStep, Tracer};
use crate::vk::device::Device;
use crate::vk::instance::Instance;

/// An artifact, resident on a device and ready to run: a handle that is cheap to clone and can be sent to other threads. Each
/// [`Session`] holds one, and the device's memory is freed with the last of them.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
    report: Arc<LoadReport>,
    /// Present with [`LoadOptions::candidates`].
    tuning_resources: Option<Arc<TuningResources>>,
}

impl Model {
    /// Reads the artifact, chooses device, target and context, makes the weights resident and records every program.
    /// Blocks until steps can run.
    ///
    /// # Errors
    /// [`LoadError`] names what is wrong: an option, the file, the device or its memory.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Model, LoadError> {
        Model::load_with_progress(path, options, &mut |_, _| ControlFlow::Continue(()))
    }

    /// As [`Model::load`]; `progress` is called on this thread with the number of weight bytes loaded and their total. Returning
    /// `Break` cancels the load: what it had allocated is freed, and its threads have ended, when this returns. A lazy load
    /// never calls it.
    ///
    /// # Errors
    /// As [`Model::load`], and [`LoadError::Cancelled`] after a `Break`.
    pub fn load_with_progress(
        path: &Path,
        options: &LoadOptions,
        progress: &mut LoadProgress<'_>,
    ) -> Result<Model, LoadError> {
        options.check()?;
        let begun = Instant::now();
        let mut artifact = ArtifactFile::open(path, options.draft)?;
        let instance = Instance::create()?;
        let facts = choose_device(&instance.devices()?, &options.device)?.clone();
        artifact.keep_runnable(&facts.features);
        let targets = &artifact.kernels().targets;
        let device = Device::open(instance, &facts, options.robust_buffer_access)?;
        let timeout = timeout_on(&facts);
        let Runnable { target, left_out } = choose_runnable(&device, targets, options.target.as_deref(), timeout)?;
        let of_tokens = target.programs.iter().filter(|program| program.logits != LogitsRows::Image);
        let rows = of_tokens.map(|program| program.rows);
        let request = ContextRequest {
            requested_tokens: options.context_tokens,
            min_tokens: options.min_context_tokens,
            max_positions: artifact.meta().model.max_positions,
            slots: options.slots,
            kv_capacity: options.kv_capacity,
            chunk_tokens: rows.max().unwrap_or(1).max(MAX_POSITIONS_IN_FLIGHT),
            state_copies: options.state_copies,
        };
        let memory = AvailableMemory {
            artifact: path,
            facts: &facts,
            amdgpu: AmdgpuMemory::read(&facts),
            budget: &options.budget,
            beside: artifact.draft().filter(|_| options.draft == DraftUse::Beside),
        };
        let context_tokens = choose_context(artifact.plan(), &memory, &request)?;
        let max_context_tokens = longest_context(artifact.plan(), &memory, &request);
        let kv_capacity = choose_capacity(artifact.plan(), &memory, &request, context_tokens);
        let request = ContextRequest { kv_capacity, ..request };
        let target = targets.iter().position(|one| std::ptr::eq(one, target)).expect("one of them was chosen");
        let (pages_in_use, barriers) = (PagesInUse::default(), AtomicBool::new(options.barriers));
        let options_of_load = options.clone();
        let decided = Decided {
            target,
            request,
            context_tokens,
            max_context_tokens,
            pages_in_use,
            options: options_of_load,
            barriers,
            without_npu: AtomicBool::new(options.npu == NpuUse::Off),
            images: Arc::new(Images::new(artifact.image())),
            left_out,
        };
        let uses_npu =
            options.npu != NpuUse::Off && artifact.npu_steps(&artifact.target(decided.target).name).is_some();
        let lazy = options.lazy && !options.profile && !options.candidates && !uses_npu;
        let artifact = Arc::new(artifact);
        let Resident { engine, report, tuning_resources } =
            make_resident(&artifact, &decided, device, begun, lazy, progress)?;
        let streaming = match (&report.upload, &engine.loading) {
            (Some(upload), _) => {
                artifact.end_reading();
                Arc::new(StreamingState::complete(upload.clone()))
            }
            (None, loading) => loading.as_ref().expect("weights are resident or being loaded").state.clone(),
        };
        let shared = Shared::new(artifact, decided, facts, streaming, begun, engine);
        let tuning_resources = tuning_resources.map(Arc::new);
        Ok(Model { shared: Arc::new(shared), report: Arc::new(report), tuning_resources })
    }

    /// A new, empty sequence. Waits for no step.
    ///
    /// # Errors
    /// [`RunError::NoFreeSlot`] while as many sessions exist as the model was loaded for.
    pub fn session(&self) -> Result<Session, RunError> {
        Session::new(self.shared.clone())
    }

    /// Appends one token to each sequence and samples the one that follows, which is not appended yet. Results are in the
    /// order of `rows`. Blocks for one step.
    ///
    /// # Errors
    /// As [`Session::feed_and_sample`], and when there are more rows than [`Model::batch_rows`]. Nothing is appended then.
    ///
    /// # Panics
    /// If a session is of another model.
    pub fn decode_batch<'s>(&self, rows: impl IntoIterator<Item = BatchRow<'s>>) -> Result<Vec<Sampled>, RunError> {
        batch::decode(&self.shared, rows.into_iter().collect())
    }

    /// Appends one token to each sequence and, in the same step, parts of prompts to others, at most [`Model::prompts_beside`]; samples the tokens
    /// that follow the rows, in their order, and behind these those that follow the prompts, if their parts end them. Blocks for one step.
    ///
    /// # Errors
    /// As [`Session::feed_and_sample`], and [`RunError::NoProgram`] where the artifact has no program for so many rows or prompts. Nothing is
    /// appended then.
    ///
    /// # Panics
    /// If a session is of another model, or a part has no tokens or more than there are.
    pub fn decode_beside_prompts<'s>(
        &self,
        rows: impl IntoIterator<Item = BatchRow<'s>>,
        prompts: impl IntoIterator<Item = PromptPart<'s>>,
    ) -> Result<Vec<Sampled>, RunError> {
        let (mut logits, mut masks) = (Vec::new(), Masks::none());
        let (rows, prompts) = (rows.into_iter().collect(), prompts.into_iter().collect());
        mixed::decode_beside_prompts(&self.shared, rows, prompts, (&[], &mut logits), &mut masks)
    }

    /// Most prompts of which [`Model::decode_beside_prompts`] takes parts: 0 where the artifact has no programs for that.
    pub fn prompts_beside(&self) -> usize {
        self.shared.prompts_beside()
    }

    /// Appends each row's token to its sequence and then each token that is sampled for it, one step for all of them, at most
    /// `max_steps` of them, as the iterator is advanced. It ends when the context of one of them is full. The tokens that it
    /// gave last are not appended.
    ///
    /// # Errors
    /// Each item: as [`Model::decode_batch`]. What was sampled before stays.
    ///
    /// # Panics
    /// If a session is of another model.
    pub fn generate_batch<'s>(&self, rows: impl IntoIterator<Item = BatchRow<'s>>, max_steps: u32) -> BatchTokens<'s> {
        BatchTokens::new(&self.shared, rows.into_iter().collect(), max_steps)
    }

    /// Continuous batching on all sessions that the model was loaded for: [`Model::slots`].
    ///
    /// # Errors
    /// [`RunError::NoProgram`] when no step of the artifact takes a token of each, and [`RunError::NoFreeSlot`] when the model
    /// has other sessions.
    pub fn scheduler<R: TokenReceiver>(&self) -> Result<Scheduler<R>, RunError> {
        Scheduler::new(&self.shared)
    }

    /// The store of this model's sequences in `folder`, which is made if it is not there, for [`Scheduler::set_kv_store`]: files of at most
    /// `max_bytes` together, with those of other models.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub fn kv_store(&self, folder: &Path, max_bytes: u64) -> io::Result<KvStore> {
        let artifact = &self.shared.artifact;
        let target = &artifact.target(self.shared.decided.target).name;
        KvStore::open(folder, max_bytes, *artifact.content_hash(), target, &artifact.plan().kv_groups)
    }

    /// Speculation with the greedy continuations of this model as drafts, for a larger one with the same vocabulary. Each sequence that
    /// speculates takes a session of this model. One with recurrent state is to be loaded with as many [`LoadOptions::state_copies`] as sequences
    /// speculate: where another one has replaced a sequence's copy, each of its drafts begins with the first token of the text.
    ///
    /// # Errors
    /// [`RunError::OtherVocabulary`] where the tokenizers differ.
    pub fn speculation_for(&self, larger: &Model) -> Result<Speculation, RunError> {
        let is_alike = self.meta().model.vocab_size == larger.meta().model.vocab_size
            && self.tokenizer_section().tokenizer_json == larger.tokenizer_section().tokenizer_json;
        if !is_alike {
            let names = [self, larger].map(|model| model.meta().model.name.clone());
            return Err(RunError::OtherVocabulary { names });
        }
        let shared = self.shared.clone();
        Ok(Speculation::by(move || Box::new(ModelDrafter::new(shared.clone()))))
    }

    /// Speculation with drafts of the model's own head that predicts the token behind the next one; `None`: it has none.
    pub fn own_speculation(&self) -> Option<Speculation> {
        let programs = &self.shared.artifact.target(self.shared.decided.target).programs;
        programs.iter().any(|program| program.logits == LogitsRows::Predicted).then(Speculation::by_predictor)
    }

    /// Longest sequence, in tokens, that the draft that is packed into the artifact was made for, see [`DraftUse::Alone`]; `None`: there is
    /// none.
    pub fn packed_draft_tokens(&self) -> Option<u32> {
        self.shared.artifact.draft().map(|draft| draft.max_positions)
    }

    /// How pixels become the patches of [`Model::encode_image`], and which tokens are around an image; `None`: the model takes no images.
    pub fn image(&self) -> Option<&ImageSection> {
        self.shared.artifact.image()
    }

    /// Makes rows of the model's stream of an image. One that is the same as one of the last ones is not computed again. Blocks for one step.
    ///
    /// # Errors
    /// As [`Session::feed`], and [`RunError::NoProgram`] for a model that takes no images.
    ///
    /// # Panics
    /// If `patches` are not those of one image.
    pub fn encode_image(&self, patches: &ImagePatches) -> Result<Image, RunError> {
        let section = self.image().ok_or(RunError::NoProgram { wanted: "rows of an image" })?;
        let ImagePatches { values, rows_across: across } = patches;
        let (width, stride) = (section.patch_width() as usize, section.patch_stride as usize);
        let n_rows = match section.grid {
            None => section.rows,
            Some(_) => (values.len() / (width * section.patches_per_row() as usize)) as u32,
        };
        let n_patches = if n_rows == section.rows { section.patches() } else { n_rows * section.patches_per_row() };
        assert_eq!(values.len(), n_patches as usize * width, "patches of one image");
        assert!((1..=section.rows).contains(&n_rows), "{n_rows} rows of an image, expected at most {}", section.rows);
        let is_rectangle = (1..=MAX_IMAGE_ACROSS).contains(across) && n_rows.is_multiple_of(*across);
        assert!(is_rectangle, "{n_rows} rows, {across} from left to right");
        let images = &self.shared.decided.images;
        let words = values.iter().map(|element| element.to_le_bytes()).chain([across.to_le_bytes()]);
        let content = hash(words.collect::<Vec<[u8; 4]>>().as_flattened());
        if let Some(known) = images.find(&content) {
            return Ok(known);
        }
        let mut padded = vec![0.0; values.len() / width * stride];
        for (padded, patch) in padded.chunks_exact_mut(stride).zip(values.chunks_exact(width)) {
            padded[..width].copy_from_slice(patch);
        }
        let width = section.row_width(self.meta().model.hidden_size);
        let rows = persist(&self.shared, &mut [], None, |engine, _| engine.run_image(&padded, n_rows, *across, width))?;
        let across = if section.grid.is_some() { *across } else { 0 };
        Ok(images.add(content, ImageShape { width: width as usize, across }, rows))
    }

    /// What the artifact records about the model and its compilation.
    pub fn meta(&self) -> &Meta {
        self.shared.artifact.meta()
    }

    /// BLAKE3 of everything in the artifact.
    pub fn content_hash(&self) -> &[u8; 32] {
        self.shared.artifact.content_hash()
    }

    /// Where the compiler placed every byte.
    pub fn plan(&self) -> &Plan {
        self.shared.artifact.plan()
    }

    /// Tokenizer and chat template, as they came with the model.
    pub fn tokenizer_section(&self) -> &TokenizerSection {
        self.shared.artifact.tokenizer()
    }

    /// The license that the model names; `None`: it names none, or an earlier version compiled it.
    pub fn license(&self) -> Option<&LicenseSection> {
        self.shared.artifact.license()
    }

    /// As it was before loading: heaps have what was free then.
    pub fn device(&self) -> &DeviceFacts {
        &self.shared.facts
    }

    /// Longest sequence, in tokens.
    pub fn context_tokens(&self) -> u32 {
        self.shared.context_tokens()
    }

    /// Longest sequence that a load could have chosen, in tokens: of the model's, what fits the memory that was free before.
    pub fn max_context_tokens(&self) -> u32 {
        self.shared.decided.max_context_tokens
    }

    /// Sequences that can exist at a time.
    pub fn slots(&self) -> u32 {
        self.shared.slots()
    }

    /// Most sequences that one step takes.
    pub fn batch_rows(&self) -> u32 {
        self.shared.batch_rows()
    }

    /// Whether the device can be told which tokens it may sample, see [`crate::Session::feed_and_sample_masked`]: the samplers of earlier artifacts
    /// cannot.
    pub fn takes_masks(&self) -> bool {
        self.shared.takes_masks
    }

    /// Whether hidden rows can be read, see [`crate::Session::feed_with_hidden_rows`]: artifacts from before format 8.3 have no programs
    /// for it.
    pub fn gives_hidden_rows(&self) -> bool {
        let programs = &self.shared.artifact.target(self.shared.decided.target).programs;
        programs.iter().any(|program| program.logits == LogitsRows::Hidden)
    }

    /// Tokens of all sequences together that the KV cache holds.
    pub fn kv_tokens(&self) -> u64 {
        self.shared.decided.request.kv_tokens(self.context_tokens())
    }

    /// Tokens that the KV cache holds of each sequence, where all are as long.
    pub fn tokens_each(&self) -> u32 {
        self.shared.decided.request.tokens_each(self.context_tokens())
    }

    /// Pages of the KV cache that sequences hold now, and pages in all. Waits for no step.
    pub fn kv_pages(&self) -> (u32, u32) {
        let Decided { request, context_tokens, pages_in_use, .. } = &self.shared.decided;
        let pages = self.plan().kv_groups.iter().map(|group| pool_pages(group, *context_tokens, request) as u32);
        (pages_in_use.count(), pages.sum())
    }

    /// The report so far: a lazy load may still be running. Waits for no step.
    pub fn report(&self) -> LoadReport {
        let upload = self.shared.streaming.outcome().and_then(Result::ok);
        LoadReport { upload, ..LoadReport::clone(&self.report) }
    }

    /// Waits until all weights are resident and were checked.
    ///
    /// # Errors
    /// Why a lazy load failed.
    pub fn wait_for_weights(&self) -> Result<(), RunError> {
        match self.shared.streaming.wait() {
            Some(Err(source)) => Err(RunError::Loading { source }),
            // The load ended with the loss of its device, and no step has needed weights since.
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Whether a lazy load has failed, so that no step can run.
    pub fn is_broken(&self) -> bool {
        matches!(self.shared.streaming.outcome(), Some(Err(_)))
    }

    /// The times since the last call that the device was lost and made ready again. Waits for no step.
    pub fn take_recoveries(&self) -> Vec<Recovery> {
        self.shared.take_recoveries()
    }

    /// The steps of all sessions since the last call, if the model was loaded to be profiled: those of feeds and of
    /// [`Model::decode_batch`]. Waits for the step that runs.
    pub fn take_profiles(&self) -> Vec<StepProfile> {
        let mut slot = self.shared.lock_engine();
        slot.engine().map(|engine| std::mem::take(&mut engine.profiles)).unwrap_or_default()
    }

    /// Bytes per second at which the device reads its memory, measured now, between two steps; `None`: the artifact holds no
    /// kernel for that, there is no memory for what is read, or the device fails.
    pub fn measure_read_bandwidth(&self) -> Option<f64> {
        let mut slot = self.shared.lock_engine();
        let engine = self.shared.ready(&mut slot).ok()?.1;
        engine.settle(None).ok()?;
        let device = engine.queue.device().clone();
        bandwidth::measure(&device, &mut engine.queue, engine.bandwidth_probe.as_ref()?).ok()
    }

    /// Shapes of steps that [`Model::time_kernels`] can measure at this depth, with the number of versions of their program: those
    /// for which the model was loaded with enough sequences and context.
    pub fn tunable(&self, depth_tokens: u32) -> Vec<(StepShape, u32)> {
        self.tuner().shapes(depth_tokens)
    }

    /// Times the candidates of all pipelines that `is_tuned` accepts, in one version of a shape's program. See [`TuneProgress`] for
    /// `progress`. Blocks all steps of other sessions meanwhile.
    ///
    /// # Errors
    /// When a kernel does not compile, the device has no timestamps or fails, or too few sequences are free.
    ///
    /// # Panics
    /// Unless the model was loaded with [`LoadOptions::candidates`] and has such a version.
    pub fn time_kernels(
        &self,
        shape: StepShape,
        version: u32,
        effort: Effort,
        is_tuned: impl Fn(&Pipeline) -> bool,
        progress: &mut TuneProgress<'_>,
    ) -> Result<Vec<TimedPipeline>, TuneError> {
        let on_engine = &mut |sequences: u32, work: &mut IdleWork<'_>| self.on_idle_engine(sequences, work);
        self.tuner().time_kernels(self.tuning_resources(), on_engine, (shape, version), effort, is_tuned, progress)
    }

    /// Medians of the seconds of whole steps, one a choice. `progress` and blocking as in [`Model::time_kernels`].
    ///
    /// # Errors
    /// As [`Model::time_kernels`].
    ///
    /// # Panics
    /// As [`Model::time_kernels`], and if a choice does not exist in the artifact.
    pub fn time_steps(
        &self,
        shape: StepShape,
        choices: &[Choice],
        effort: Effort,
        progress: &mut TuneProgress<'_>,
    ) -> Result<Vec<f64>, TuneError> {
        let on_engine = &mut |sequences: u32, work: &mut IdleWork<'_>| self.on_idle_engine(sequences, work);
        self.tuner().time_steps(self.tuning_resources(), on_engine, shape, choices, effort, progress)
    }

    /// The artifact's targets, without alternatives that the device cannot run.
    pub fn targets(&self) -> &[TargetKernels] {
        &self.shared.artifact.kernels().targets
    }

    /// Shapes of the steps of the target named `target`, small ones first; none if the artifact does not hold it.
    pub fn shapes_of(&self, target: &str) -> Vec<StepShape> {
        self.targets().iter().find(|one| one.name == target).map(shapes).unwrap_or_default()
    }

    /// Programs of the artifact's target of this name, to run in place of the model's own: all as the compiler chose them, or with
    /// `choice` those of one shape, with its alternatives.
    ///
    /// # Errors
    /// When the artifact or the target does not hold them, the target requires what the device lacks, a kernel does not compile, or
    /// the device fails.
    ///
    /// # Panics
    /// Unless the model was loaded with [`LoadOptions::candidates`].
    pub fn record_programs(&self, target: &str, choice: Option<(StepShape, &Choice)>) -> Result<Programs, TuneError> {
        let (target, barriers) = (self.target_named(target)?, self.shared.has_barriers());
        let (resources, context_tokens) = (self.tuning_resources(), self.shared.context_tokens());
        Ok(exchange::record(resources, self.plan(), target, choice, context_tokens, barriers)?)
    }

    /// Exchanges the model's programs with `programs`; with a shape, only those of that shape. Sessions continue with what is there
    /// then, on the same cache. Waits for the step that runs.
    ///
    /// # Errors
    /// [`RunError::DeviceLost`] if the device was lost since loading: recorded programs went with it.
    pub fn exchange_programs(&self, programs: &mut Programs, shape: Option<StepShape>) -> Result<(), RunError> {
        self.on_idle_engine(0, &mut |idle| {
            programs.exchange(&mut idle.engine.programs, shape);
            Ok(())
        })
    }

    /// Runs a step of the target named `target` dispatch by dispatch, and passes what each writes to `sink`. The model's own
    /// programs feed the tokens before it.
    ///
    /// # Errors
    /// As [`Model::record_programs`], and when too few sequences are free.
    ///
    /// # Panics
    /// As [`Model::record_programs`], and if the target has no program of that shape and choice.
    pub fn trace_step(&self, target: &str, step: &TracedStep<'_>, sink: &mut TraceSink<'_>) -> Result<(), TuneError> {
        let tracer = Tracer {
            target: self.target_named(target)?,
            plan: self.plan(),
            model: self.shared.model(),
            context_tokens: self.shared.context_tokens(),
        };
        let on_engine = &mut |sequences: u32, work: &mut IdleWork<'_>| self.on_idle_engine(sequences, work);
        tracer.trace(self.tuning_resources(), on_engine, step, sink)
    }

    fn target_named(&self, name: &str) -> Result<&TargetKernels, LoadError> {
        choose_target(self.targets(), self.device(), Some(name))
    }

    fn tuner(&self) -> Tuner<'_> {
        let (artifact, decided) = (&self.shared.artifact, &self.shared.decided);
        Tuner {
            target: artifact.target(decided.target),
            plan: artifact.plan(),
            model: self.shared.model(),
            context_tokens: decided.context_tokens,
            slots: self.shared.slots(),
            barriers: self.shared.has_barriers(),
        }
    }

    /// Runs `work` on the engine of the first load, with `sequences` empty sequences of its own; frees their pages.
    fn on_idle_engine(&self, sequences: u32, work: &mut IdleWork<'_>) -> Result<(), RunError> {
        let shared = &self.shared;
        let mut taken = TakenSlots { shared, slots: Vec::new() };
        for _ in 0..sequences {
            taken.slots.push(shared.take_slot()?);
        }
        let mut slot = shared.lock_engine();
        // The tuning resources are buffers of the first engine.
        let engine = slot.engine().filter(|_| shared.generation() == 0);
        let engine = engine.ok_or(RunError::DeviceLost { detail: "it was lost since loading".into() })?;
        engine.settle(None)?;
        let mut tables: Vec<Vec<BlockTable>> = taken.slots.iter().map(|_| shared.empty_tables()).collect();
        let ran = work(IdleEngine { engine, slots: &taken.slots, tables: &mut tables });
        for tables in &mut tables {
            let mut pools = engine.pools.lock();
            tables.iter_mut().zip(pools.iter_mut()).for_each(|(table, pool)| table.truncate(pool, 0));
        }
        Ok(ran?)
    }

    fn tuning_resources(&self) -> &TuningResources {
        self.tuning_resources.as_ref().expect("loaded with candidates")
    }
}

/// Slots that no session can take meanwhile.
struct TakenSlots<'m> {
    shared: &'m Shared,
    slots: Vec<u32>,
}

impl Drop for TakenSlots<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|&slot| self.shared.give_back_slot(slot));
    }
}
