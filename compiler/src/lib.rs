//! Compiles a model (a Hugging Face folder or a GGUF file) into one artifact that `unicorn-runtime` makes resident and runs.
//!
//! ```no_run
//! use std::path::Path;
//! use unicorn_compiler::{CompileOptions, Silent, Source, compile};
//!
//! let mut options = CompileOptions::default();
//! options.context_tokens = Some(4096);
//! let report = compile(Source::Model(Path::new("SmolLM2-135M")), Path::new("model.unicorn"), &options, &mut Silent)?;
//! println!("{} bytes, relative error {:.4}", report.artifact_bytes, report.relative_error);
//! # Ok::<(), unicorn_compiler::CompileError>(())
//! ```
//!
//! [`compile`] does everything; [`plan`] stops before any weight is read; [`replan`] gives an artifact a new memory plan;
//! [`retarget`] adds kernels for more devices; [`reproduce`] makes its parts again and compares them; [`export`] writes the
//! weights as the GPU will decode them. All of them block until they are done, use all cores by rayon's global pool, and may be called
//! from several threads at once, for different outputs. No Vulkan call is made and no device is needed.
//!
//! Data goes forward only, and each value is made once:
//!
//! ```text
//! Checkpoint ─ import ─► ModelGraph ─ fuse ─► FusedGraph ─ verify ─► VerifiedGraph ─┬─► PackedWeights
//!                                                                                   │        │
//!                                                                                   └ select ┴─► Selection, all targets and programs
//!                                                                                                   │ place
//!                              Kernels (SPIR-V) ◄─ emit ─ Placement: Plan, programs ◄───────────────┘      NpuPlan, if there is an NPU
//!                                      │                      │
//!                                      └──────── pack ────────┴──► artifact, weights streamed through
//! ```
#![deny(missing_docs)]

mod error;
mod format_policy;
mod options;
mod progress;

mod export;
mod kernel_set;
mod outputs;
mod pipeline_name;
mod prediction;
mod replan;
mod report;
mod reproduce;
mod retarget;

// The stages, in order. Public for the project's own tests, which check their results; they may change with every version.
#[doc(hidden)]
pub mod import;

#[doc(hidden)]
pub mod graph;

#[doc(hidden)]
pub mod fuse;
mod verify;

#[doc(hidden)]
pub mod weights;

#[doc(hidden)]
pub mod select;

#[doc(hidden)]
pub mod alternatives;

#[doc(hidden)]
pub mod place;

mod emit;

mod npu;

mod draft;

#[doc(hidden)]
pub mod quantize;

mod importance;
mod pack;
mod synthesize;

use std::path::{Path, PathBuf};
use std::time::Instant;

use unicorn_artifact::{ArtifactWriter, Meta, ModelMeta, NpuSection, NpuSteps, Program, Provenance};
use unicorn_kernels::npu::tile::LAYOUT;

use draft::PlannedDraft;
use graph::ModelGraph;
use import::{Checkpoint, ModelConfig};
use importance::Importance;
use place::{PlaceRequest, Placement, WeightPlacement};
use select::Selection;
use verify::VerifiedGraph;
use weights::{PackedWeight, PackedWeights};

pub use emit::Form;
pub use error::{CompileError, InputKind, NotAModel, Remedy, Result};
pub use export::export;
pub use format_policy::{FormatPolicy, WeightsOption};
pub use import::{Adapter, TRIAL_THREAD, check_is_artifact, input_kind};
pub use npu::{NpuCheck, NpuMlir, NpuOptions, NpuPlan, NpuTexts, NpuWork, npu_mlir, npu_passthrough, npu_product};
pub use options::CompileOptions;
pub use outputs::{check_export, check_kind, check_replaced, write_bytes, write_text};
pub use prediction::Prediction;
pub use progress::{Progress, Silent, Stage};
pub use replan::{ReplanOptions, replan};
pub use report::{DraftFigures, MachineFit, PlanReport, PredictorFigures, Report, TensorFigures};
pub use reproduce::{Reproduced, reproduce};
pub use retarget::{Additions, Retargeted, retarget};

// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;
pub use unicorn_kernels;
pub use unicorn_npu;
pub use unicorn_spirv;

pub use unicorn_artifact::machine::{Machine, MachineError, MachineTier};
pub use unicorn_artifact::view::is_artifact;
pub use unicorn_artifact::{Account, Budget, Kernels, MachinePlan, Plan, Reader, Tier, TierAccount, TierPlan};
pub use unicorn_kernels::KvFormat;
pub use unicorn_spirv::Target;
pub use unicorn_spirv::target::{by_name as target_by_name, defaults as default_targets, presets as targets};

/// Hash of the sources that decide what this compiler makes of a model (`build.rs`).
pub const SOURCES: &str = env!("UNICORN_COMPILER_SOURCES");

/// Where the weights come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A Hugging Face folder or a GGUF file.
    Model(&'a Path),
    /// Random weights of the shape that this config.json describes: good for timing only.
    Synthetic(&'a Path),
}

/// A model as it will be, with a place for everything: all but SPIR-V and the weights' bytes.
///
/// The results of the stages are public for the project's own tests; they may change with every version.
pub struct Planned {
    /// The model's sizes and tensors; no weight is read yet.
    #[doc(hidden)]
    pub checkpoint: Checkpoint,
    /// Operations before fusion.
    pub(crate) plain: ModelGraph,
    /// Operations after fusion, one kernel each, checked.
    #[doc(hidden)]
    pub verified: VerifiedGraph,
    /// The ranges that weights are packed into: names, sizes in bytes, formats.
    #[doc(hidden)]
    pub weights: PackedWeights,
    /// Kernels and programs of every target, in the order of the targets that were requested.
    #[doc(hidden)]
    pub selection: Selection,
    /// Tiers, slices and offsets, and every program with its operands bound.
    #[doc(hidden)]
    pub placement: Placement,
    /// What an NPU computes; `None` unless one was requested.
    pub npu: Option<NpuPlan>,
    /// Kernels and programs of steps in which the NPU computes products.
    pub(crate) npu_selection: Option<Selection>,
    /// The model that makes drafts; `None`: there is none.
    pub(crate) draft: Option<Box<PlannedDraft>>,
}

/// Compiles the model at `source` into the artifact `output`.
///
/// Blocks until the artifact is on disk; `progress` is called on this thread.
///
/// # Errors
/// See [`CompileError`]. `output` is then unchanged, and nothing half-written is left. An `output` that would replace the
/// model itself is refused before anything is read, and one that does not fit its disk before any weight is read.
pub fn compile(source: Source, output: &Path, options: &CompileOptions, progress: &mut dyn Progress) -> Result<Report> {
    outputs::check_artifact(source, output)?;
    options.draft.iter().try_for_each(|draft| outputs::check_replaced(Source::Model(draft), output))?;
    let mut stages = Stages::new(progress);
    let planned = plan_stages(source, options, &mut stages)?;
    let prediction = Prediction::of(&planned, output);
    prediction.check(output)?;
    progress::check(stages.progress.planned(&prediction))?;
    let parts = stages.parts(source, &planned, options)?;
    let draft = planned.draft.as_deref();
    let draft = draft
        .map(|draft| Ok::<_, CompileError>((draft, stages.parts(draft.source(), &draft.planned, &draft.options)?)))
        .transpose()?;
    let writer = stages.create(output, &planned)?;
    let mut artifact = stages.weights(source, writer, &planned, &parts.importance)?;
    let meta = meta(source, &planned, options, &artifact.errors);
    match draft {
        Some((draft, parts_of_draft)) => {
            let writer = stages.begin_draft(&mut artifact, &meta, &planned, &parts, n_slices(&draft.planned))?;
            artifact.bytes = stages.draft(writer, draft, &parts_of_draft)?;
        }
        None => stages.write(&mut artifact, &meta, &planned, &parts)?,
    }
    for form in &options.emit {
        form.write(output, &planned)?;
    }
    Ok(Report::new(&planned, options.policy, &meta, &artifact, stages.seconds))
}

/// Plans the model at `source`: everything but SPIR-V and weight bytes, of which none is read.
///
/// # Errors
/// See [`CompileError`]; among them, a model that does not fit the machine.
pub fn plan(source: Source, options: &CompileOptions, progress: &mut dyn Progress) -> Result<Planned> {
    plan_stages(source, options, &mut Stages::new(progress))
}

fn plan_stages(source: Source, options: &CompileOptions, stages: &mut Stages) -> Result<Planned> {
    options.check()?;
    stages.begin(Stage::Import, 1)?;
    let mut checkpoint = import::open(source)?;
    if let Some(path) = &options.projector {
        import::add_projector(&mut checkpoint, path)?;
    }
    import::merge(&mut checkpoint, &options.adapters)?;
    if !options.vision {
        checkpoint.leave_out_vision();
    }
    select::limit_image_rows(&mut checkpoint.config, options.image_min_tokens, options.image_max_tokens)?;
    if !options.predictor || options.draft.is_some() || options.npu.is_some() {
        checkpoint.leave_out_predictor();
    }
    stages.end(1)?;

    let draft = options.draft.as_deref();
    let Some(draft) = draft.map(|draft| PlannedDraft::of(draft, &checkpoint, options, stages)).transpose()? else {
        return Ok(design(&checkpoint.config, options, stages)?.of(checkpoint, None));
    };
    let design = design(&checkpoint.config, &draft.options_of_model(options), stages)?;
    let planned = design.of(checkpoint, Some(Box::new(draft)));
    Ok(planned)
}

/// A [`Planned`] without the model's files: what follows from its numbers.
pub(crate) struct Design {
    plain: ModelGraph,
    verified: VerifiedGraph,
    weights: PackedWeights,
    selection: Selection,
    placement: Placement,
    npu: Option<NpuPlan>,
    /// Programs in which the NPU computes products.
    npu_selection: Option<Selection>,
}

impl Design {
    /// With the model's files.
    pub(crate) fn of(self, checkpoint: Checkpoint, draft: Option<Box<PlannedDraft>>) -> Planned {
        let Design { plain, verified, weights, selection, placement, npu, npu_selection } = self;
        Planned { checkpoint, plain, verified, weights, selection, placement, npu, npu_selection, draft }
    }
}

fn design(config: &ModelConfig, options: &CompileOptions, stages: &mut Stages) -> Result<Design> {
    stages.begin(Stage::Plan, 1)?;
    let plain = graph::build(config);
    let fuse = if options.fuse { fuse::fuse } else { fuse::plain };
    let verified = fuse(&plain, config, options.policy).verify(config);
    let weights = PackedWeights::of(verified.graph(), config, options.policy);
    weights.check(options.policy)?;
    let targets = options.targets_in_order();
    let selection = Selection::of(&verified, config, &weights, &targets, options.select());
    let context_tokens = planned_context(options.context_tokens, config.max_positions)?;
    let place = |npu: Option<(&Selection, &NpuSection)>| {
        place::place(&PlaceRequest {
            graph: verified.graph(),
            config,
            weights: &weights,
            policy: options.policy,
            kv: options.kv,
            selection: &selection,
            npu,
            machine: &options.machine,
            context_tokens,
        })
    };
    // The GPU alone: the memory that it leaves is free for the NPU.
    let mut placement = place(None)?;
    let (mut npu, mut npu_selection) = (None, None);
    if let Some(requested) = &options.npu {
        let plan = npu::npu_plan(verified.graph(), config, options.policy, requested, Some(&placement.plan))?;
        let products = plan.products(requested.rows);
        let steps = Selection::of_npu(&verified, config, &weights, &targets, options.select(), &products);
        // Their activations may need a larger arena, and the NPU needs memory of its own.
        placement = place(Some((&steps, &plan.section)))?;
        (npu, npu_selection) = (Some(plan), Some(steps));
    }
    stages.end(1)?;
    Ok(Design { plain, verified, weights, selection, placement, npu, npu_selection })
}

impl Planned {
    /// Budgets, slices and offsets, in bytes, as they will stand in the artifact.
    pub fn plan(&self) -> &Plan {
        &self.placement.plan
    }

    /// SPIR-V of every kernel, and the programs that run them. Blocks for seconds.
    ///
    /// # Errors
    /// When a kernel needs more than a target has, and when `progress` cancels.
    pub fn kernels(&self, progress: &mut dyn Progress) -> Result<Kernels> {
        Stages::new(progress).kernels(&self.selection, &self.placement)
    }
}

/// The stages that follow a plan, timed.
struct Stages<'a> {
    progress: &'a mut dyn Progress,
    current: Option<(Stage, Instant)>,
    /// Duration of each stage that has ended, in order; of the model and of its draft together.
    seconds: Vec<(Stage, f64)>,
}

/// What is made for an artifact before its weights are packed.
struct Parts {
    kernels: Kernels,
    npu: Option<NpuSection>,
    importance: Importance,
}

/// An artifact whose weights are written.
pub(crate) struct Written {
    /// `None` once it has its name.
    writer: Option<ArtifactWriter>,
    errors: pack::Errors,
    bytes: u64,
}

impl<'a> Stages<'a> {
    fn new(progress: &'a mut dyn Progress) -> Stages<'a> {
        Stages { progress, current: None, seconds: Vec::new() }
    }

    fn begin(&mut self, stage: Stage, total: u64) -> Result<()> {
        self.current = Some((stage, Instant::now()));
        progress::check(self.progress.stage(stage, total))
    }

    /// Ends the current stage, after its last `amount`.
    fn end(&mut self, amount: u64) -> Result<()> {
        if let Some((stage, begun)) = self.current.take() {
            let seconds = begun.elapsed().as_secs_f64();
            // A draft goes through the same stages.
            match self.seconds.iter_mut().find(|(ended, _)| *ended == stage) {
                Some((_, sum)) => *sum += seconds,
                None => self.seconds.push((stage, seconds)),
            }
        }
        if amount > 0 { progress::check(self.progress.advance(amount)) } else { Ok(()) }
    }

    fn parts(&mut self, source: Source, planned: &Planned, options: &CompileOptions) -> Result<Parts> {
        Ok(Parts {
            kernels: self.kernels(&planned.selection, &planned.placement)?,
            npu: self.npu_section(planned.npu.as_ref(), planned.npu_selection.as_ref(), &planned.placement)?,
            importance: self.importance(source, planned, options)?,
        })
    }

    fn kernels(&mut self, selection: &Selection, placement: &Placement) -> Result<Kernels> {
        self.begin(Stage::Kernels, selection.targets.len() as u64)?;
        let kernels = kernel_set::build(selection, &placement.programs, self.progress)?;
        self.end(0)?;
        Ok(kernels)
    }

    /// The NPU section with its steps, whose kernels are compiled; `selection` is of these steps.
    fn npu_section(
        &mut self,
        npu: Option<&NpuPlan>,
        selection: Option<&Selection>,
        placement: &Placement,
    ) -> Result<Option<NpuSection>> {
        let (Some(npu), Some(selection)) = (npu, selection) else { return Ok(None) };
        let programs: Vec<Vec<Program>> = placement
            .npu_programs
            .iter()
            .map(|programs| programs.iter().map(|one| one.program.clone()).collect())
            .collect();
        self.begin(Stage::Kernels, selection.targets.len() as u64)?;
        let kernels = kernel_set::build(selection, &programs, self.progress)?;
        self.end(0)?;
        let steps = kernels.targets.into_iter().zip(&placement.npu_programs).map(|(kernels, programs)| NpuSteps {
            kernels,
            commands: programs.iter().map(|one| one.commands.clone()).collect(),
            schedules: programs.iter().map(|one| one.schedule.clone()).collect(),
        });
        let steps = steps.filter(|steps| !steps.commands.is_empty()).collect();
        Ok(Some(NpuSection { steps, ..npu.section.clone() }))
    }

    /// Weights of the errors in INT4's search; empty for other formats and for random weights.
    fn importance(&mut self, source: Source, planned: &Planned, options: &CompileOptions) -> Result<Importance> {
        if options.policy.weights != WeightsOption::Int4 || !matches!(source, Source::Model(_)) {
            return Ok(Importance::default());
        }
        self.begin(Stage::Importance, planned.plain.nodes.len() as u64)?;
        let advance = || progress::check(self.progress.advance(1));
        let importance = Importance::estimate(&planned.plain, &planned.checkpoint, advance)?;
        self.end(0)?;
        Ok(importance)
    }

    fn create(&mut self, output: &Path, planned: &Planned) -> Result<ArtifactWriter> {
        let writer = ArtifactWriter::create(output, n_slices(planned)).map_err(CompileError::io(output))?;
        self.progress.partial(Some(writer.partial_path()));
        Ok(writer.hash_by(hash_on_all_cores))
    }

    fn weights(
        &mut self,
        source: Source,
        mut writer: ArtifactWriter,
        planned: &Planned,
        importance: &Importance,
    ) -> Result<Written> {
        let Planned { checkpoint, verified, weights, placement, npu, .. } = planned;
        let of_npu = || npu.iter().flat_map(|npu| &npu.section.products).map(|product| product.len_bytes);
        let of_gpu = placement.plan.weights.iter().map(|weight| weight.len_bytes);
        let begun = self.begin(Stage::Weights, of_gpu.chain(of_npu()).sum());
        let mut errors = pack::Errors::new();
        let fill = |weight: &PackedWeight, sink: &mut dyn FnMut(&[u8]) -> Result<()>| match source {
            Source::Model(_) => pack::pack(weight, verified.graph(), importance, checkpoint, &mut errors, sink),
            Source::Synthetic(_) => synthesize::synthesize(weight, verified.graph(), &checkpoint.config, sink),
        };
        let mut written =
            begun.and_then(|()| write_weights(&mut writer, weights, &placement.weights, fill, self.progress));
        if let (Ok(()), Some(npu)) = (&written, npu) {
            written = write_npu_weights(&mut writer, npu, planned, source, self.progress);
        }
        if let Err(error) = written {
            drop(writer);
            self.progress.partial(None);
            return Err(error);
        }
        self.end(0)?;
        Ok(Written { writer: Some(writer), errors, bytes: 0 })
    }

    /// Gives the artifact its other sections, and begins its draft.
    fn begin_draft(
        &mut self,
        artifact: &mut Written,
        meta: &Meta,
        planned: &Planned,
        parts: &Parts,
        n_slices: usize,
    ) -> Result<ArtifactWriter> {
        let writer = artifact.writer_with(planned, parts);
        let output = writer.path().to_owned();
        let (plan, tokenizer) = (&planned.placement.plan, &planned.checkpoint.tokenizer);
        let begun = writer.begin_draft(meta, plan, &parts.kernels, tokenizer, n_slices);
        begun.map_err(|error| {
            self.progress.partial(None);
            CompileError::io(&output)(error)
        })
    }

    /// Writes the draft, and gives the artifact its name. Returns the length of the file.
    fn draft(&mut self, writer: ArtifactWriter, draft: &PlannedDraft, parts: &Parts) -> Result<u64> {
        let PlannedDraft { planned, options, .. } = draft;
        let mut written = self.weights(draft.source(), writer, planned, &parts.importance)?;
        let meta = meta(draft.source(), planned, options, &written.errors);
        self.write(&mut written, &meta, planned, parts)?;
        Ok(written.bytes)
    }

    /// Gives the artifact its other sections and its name.
    fn write(&mut self, artifact: &mut Written, meta: &Meta, planned: &Planned, parts: &Parts) -> Result<()> {
        let writer = artifact.writer_with(planned, parts);
        let output = writer.path().to_owned();
        let begun = self.begin(Stage::Write, 1);
        let finished = begun.and_then(|()| {
            let (plan, tokenizer) = (&planned.placement.plan, &planned.checkpoint.tokenizer);
            writer.finish(meta, plan, &parts.kernels, tokenizer).map_err(CompileError::io(&output))
        });
        self.progress.partial(None);
        artifact.bytes = finished?;
        // The artifact is complete: too late to cancel.
        let _ = self.end(1);
        Ok(())
    }
}

impl Written {
    /// The writer, with the sections that only some artifacts have.
    fn writer_with(&mut self, planned: &Planned, parts: &Parts) -> ArtifactWriter {
        let mut writer = self.writer.take().expect("an artifact is finished once");
        parts.npu.iter().for_each(|section| writer.npu(section));
        select::image_section(&planned.checkpoint.config).iter().for_each(|section| writer.image(section));
        planned.checkpoint.license.iter().for_each(|section| writer.license(section));
        writer
    }
}

/// Weight sections, those of NPU weights included.
fn n_slices(planned: &Planned) -> usize {
    let of_npu = planned.npu.as_ref().map_or(0, |npu| npu.section.slices.len());
    planned.placement.plan.slices.len() + of_npu
}

/// The requested context or a usual one, in tokens, of a model made for `model` tokens.
fn planned_context(asked_tokens: Option<u32>, model: usize) -> Result<u32> {
    let model = u32::try_from(model).unwrap_or(u32::MAX);
    match asked_tokens {
        Some(requested) if requested == 0 || requested > model => Err(CompileError::Option {
            option: "context_tokens",
            what: format!("context is {requested} tokens, expected 1 to {model}, as many as the model was made for"),
        }),
        Some(requested) => Ok(requested),
        None => Ok(model.min(PLANNED_CONTEXT_TOKENS)),
    }
}

/// Hashes on rayon's pool.
fn hash_on_all_cores(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update_rayon(bytes);
}

/// Writes every weight to its planned place; `fill` supplies the bytes of one.
fn write_weights(
    writer: &mut ArtifactWriter,
    weights: &PackedWeights,
    placement: &WeightPlacement,
    mut fill: impl FnMut(&PackedWeight, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    progress: &mut dyn Progress,
) -> Result<()> {
    let output = writer.path().to_owned();
    let mut open_slice = None;
    for (planned, &id) in placement.weights.iter().zip(&placement.ids) {
        if open_slice != Some(planned.slice) {
            writer.begin_slice().map_err(CompileError::io(&output))?;
            open_slice = Some(planned.slice);
        }
        writer.pad_slice_to(planned.offset_bytes).map_err(CompileError::io(&output))?;
        let mut sink = |bytes: &[u8]| {
            progress::check(progress.advance(bytes.len() as u64))?;
            writer.weight_bytes(bytes).map_err(CompileError::io(&output))
        };
        fill(weights.get(id), &mut sink)?;
        assert_eq!(
            writer.slice_len_bytes(),
            planned.offset_bytes + planned.len_bytes,
            "{} has its planned size",
            planned.name
        );
    }
    Ok(())
}

/// Writes the weights of every product of the NPU to its planned place.
fn write_npu_weights(
    writer: &mut ArtifactWriter,
    npu: &NpuPlan,
    planned: &Planned,
    source: Source,
    progress: &mut dyn Progress,
) -> Result<()> {
    let output = writer.path().to_owned();
    let mut open_slice = None;
    for (product, matrix) in npu.section.products.iter().zip(&npu.matrices) {
        if open_slice != Some(product.slice) {
            writer.begin_npu_slice().map_err(CompileError::io(&output))?;
            open_slice = Some(product.slice);
        }
        writer.pad_slice_to(product.offset_bytes).map_err(CompileError::io(&output))?;
        npu::pack(matrix, planned.verified.graph(), source, &planned.checkpoint, &mut |bytes| {
            progress::check(progress.advance(bytes.len() as u64))?;
            writer.weight_bytes(bytes).map_err(CompileError::io(&output))
        })?;
        let end = product.offset_bytes + product.len_bytes;
        assert_eq!(writer.slice_len_bytes(), end, "{} has its planned size", product.name);
    }
    Ok(())
}

/// Default context in tokens, unless the model's own is shorter.
const PLANNED_CONTEXT_TOKENS: u32 = 8192;

fn meta(source: Source, planned: &Planned, options: &CompileOptions, errors: &pack::Errors) -> Meta {
    let Planned { checkpoint, verified, weights, placement, .. } = planned;
    let config = &checkpoint.config;
    let long = config.ropes.iter().find_map(|rope| rope.long.as_ref());
    let weights_name = options.policy.weights.name().to_owned();
    let adapters = options.adapters.len();
    let adapters = (adapters > 0).then(|| ("adapters".into(), adapters.to_string()));
    let projector = options.projector.as_deref().map(|path| ("projector".into(), model_name(path)));
    let (Source::Model(path) | Source::Synthetic(path)) = source;
    Meta {
        model: ModelMeta {
            name: model_name(path),
            architecture: config.architecture.clone(),
            vocab_size: config.vocab_size as u32,
            hidden_size: config.hidden_size as u32,
            n_layers: config.n_decoder_layers() as u32,
            max_positions: config.max_positions as u32,
            long_rope_above_tokens: long.map(|long| long.above_tokens as u32),
            parameters: config.parameters(),
            weight_bytes_per_token: weights.bytes_read_per_token(),
            synthetic: matches!(source, Source::Synthetic(_)),
        },
        provenance: Provenance {
            compiler_version: env!("CARGO_PKG_VERSION").into(),
            options: [
                ("weights".into(), weights_name),
                ("group".into(), options.policy.group.to_string()),
                ("targets".into(), target_names(options)),
                ("kv".into(), options.kv.name().into()),
                ("fuse".into(), options.fuse.to_string()),
                ("alternatives".into(), options.alternatives.to_string()),
                ("machine".into(), options.machine.name.clone()),
                ("context".into(), placement.plan.planned_context_tokens.to_string()),
            ]
            .into_iter()
            .chain(adapters)
            .chain(projector)
            .chain(npu_options(planned, options))
            .collect(),
            source_hash: checkpoint.source_hash(),
            config: config.encode(),
        },
        tensors: report::tensor_reports(checkpoint, verified.graph(), options.policy, errors),
    }
}

/// Option in the metadata: version of the layout of NPU weights and activations ([`LAYOUT`]); absent in artifacts of versions before it was recorded.
pub(crate) const NPU_LAYOUT: &str = "npu-layout";

/// The work placed on the NPU, by estimate or by request, and the rows of a step that it is for.
fn npu_options(planned: &Planned, options: &CompileOptions) -> Vec<(String, String)> {
    let (Some(npu), Some(requested)) = (&planned.npu, &options.npu) else { return Vec::new() };
    let on_npu = npu.section.decisions.iter().filter(|decision| decision.on_npu);
    let works: Vec<&str> = on_npu.map(|decision| decision.work.as_str()).collect();
    vec![
        ("npu".into(), npu.section.device.clone()),
        ("npu-for".into(), if works.is_empty() { "none".into() } else { works.join(",") }),
        ("npu-columns".into(), requested.columns.to_string()),
        ("npu-rows".into(), requested.rows.to_string()),
        (NPU_LAYOUT.into(), LAYOUT.to_string()),
    ]
}

fn target_names(options: &CompileOptions) -> String {
    let targets = options.targets_in_order();
    targets.iter().map(|target| target.name).collect::<Vec<_>>().join(",")
}

/// A model's name from its path: the folder's name, or the file's without its extension and its number among several. A snapshot in
/// the Hugging Face Hub's cache, `models--OWNER--NAME/snapshots/COMMIT`, has the repository's name.
pub fn model_name(path: &Path) -> String {
    if let Some(name) = repository_name(path) {
        return name;
    }
    let name = path.file_name().map_or("model".into(), |name| name.to_string_lossy());
    let stem = name.strip_suffix(".gguf").or(name.strip_suffix(".json")).unwrap_or(&name);
    import::part_of(stem).map_or(stem, |(name, _, _)| name).to_owned()
}

fn repository_name(snapshot: &Path) -> Option<String> {
    let snapshots = snapshot.parent().filter(|folder| folder.ends_with("snapshots"))?;
    let repository = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    repository.rsplit("--").next().map(str::to_owned)
}

/// Where a text form of `output` goes: `model.unicorn` → `model.graph.txt`.
pub fn beside(output: &Path, form: &str) -> PathBuf {
    output.with_extension(format!("{form}.txt"))
}
