//! `unicorn-compile`: one model in, one artifact out. Data takes one way, forward only; this file reads as that list.
//!
//! ```text
//! Checkpoint ─ import ─► ModelGraph ─ fuse ─► FusedGraph ─ verify ─► VerifiedGraph
//!                                                 │                       │ select, per target and program
//!                                                 ▼                       ▼
//!                                          PackedWeights            Vec<Step> of KernelSpec ─ shaders-gen ─► SPIR-V
//!                                                 │ place                 │ place
//!                                                 ▼                       ▼
//!                                  pack: rows → bytes, streamed      programs of dispatches ──► artifact
//! ```
//!
//! This crate knows models, weights, kernels and the file; it makes no Vulkan call and needs no device.

pub mod error;
pub mod import;

pub mod graph;

pub mod fuse;
pub mod verify;

pub mod weights;

pub mod select;

pub mod machine;
pub mod place;
pub mod replan;

pub mod alternatives;
pub mod kernel_set;

pub mod importance;
pub mod pack;
pub mod quantize;
pub mod synthesize;

pub mod emit;
pub mod export;
pub mod outputs;
pub mod report;

use std::path::{Path, PathBuf};
use std::time::Instant;

use unicorn_artifact::{ArtifactWriter, Kernels, MachinePlan, Meta, ModelMeta, Provenance};
use unicorn_kernels::KvFormat;
use unicorn_spirv::Target;

pub use error::{CompileError, Result};
use graph::ModelGraph;
use import::Checkpoint;
use importance::Importance;
use place::{PlaceRequest, Placement, WeightPlacement};
use report::Report;
use select::{SelectOptions, Selection};
use verify::VerifiedGraph;
use weights::{FormatPolicy, PackedWeight, PackedWeights, WeightsOption};

/// What a compile is asked for.
pub struct CompileOptions {
    pub policy: FormatPolicy,
    /// In any order; the artifact keeps the presets' order.
    pub targets: Vec<Target>,
    /// Off: one kernel for each plain operation, as an oracle.
    pub fuse: bool,
    /// Number format of the KV cache.
    pub kv: KvFormat,
    /// Hold other ways to run the same kernels, for `unicorn-run tune`.
    pub alternatives: bool,
    /// Text forms to write beside the artifact.
    pub emit: Vec<emit::Form>,
    /// Whose memory the plan is made for.
    pub machine: MachinePlan,
    /// Sequence that there must be room for; `None`: 8192 tokens, or as many as the model was made for.
    pub context_tokens: Option<u32>,
}

impl CompileOptions {
    fn select(&self) -> SelectOptions {
        SelectOptions { fold: self.fuse, kv: self.kv, alternatives: self.alternatives }
    }
}

/// Who is told how far a compile is.
pub trait Progress {
    /// A stage begins; `total` is what its `advance` calls add up to.
    fn stage(&mut self, name: &'static str, total: u64);
    fn advance(&mut self, amount: u64);
    /// The half-written artifact, for whoever cleans up after an interrupt; `None` when it is in place or gone.
    fn partial(&mut self, path: Option<&Path>);
}

/// Where the weights come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A Hugging Face folder or a GGUF file.
    Model(&'a Path),
    /// Random weights of the shape that this config.json describes.
    Synthetic(&'a Path),
}

/// A model as it will be: graphs, packed weights without their bytes, and a place for everything.
pub struct Planned {
    pub checkpoint: Checkpoint,
    pub plain: ModelGraph,
    pub verified: VerifiedGraph,
    pub weights: PackedWeights,
    pub selection: Selection,
    pub placement: Placement,
}

/// Plans the model at `source`: everything but kernels and weight bytes, of which none is read.
///
/// # Errors
/// See [`CompileError`]; a model that the machine has no room for is one.
pub fn plan(source: Source, options: &CompileOptions, progress: &mut dyn Progress) -> Result<Planned> {
    plan_timed(source, options, progress, &mut StageClock::start())
}

fn plan_timed(
    source: Source,
    options: &CompileOptions,
    progress: &mut dyn Progress,
    clock: &mut StageClock,
) -> Result<Planned> {
    progress.stage("import", 1);
    let checkpoint = match source {
        Source::Model(path) => Checkpoint::open(path)?,
        Source::Synthetic(config) => Checkpoint::of_config(config)?,
    };
    let config = &checkpoint.config;
    progress.advance(1);
    clock.lap("import");

    progress.stage("plan", 1);
    let plain = graph::build(config);
    let fused = if options.fuse { fuse::fuse(&plain) } else { fuse::plain(&plain) };
    let verified = fused.verify(config);
    let weights = PackedWeights::of(verified.graph(), config, options.policy);
    let selection = Selection::of(&verified, config, &weights, &options.targets, options.select());
    let placement = place::place(&PlaceRequest {
        graph: verified.graph(),
        config,
        weights: &weights,
        policy: options.policy,
        kv: options.kv,
        selection: &selection,
        machine: &options.machine,
        context_tokens: planned_context(
            options.context_tokens,
            u32::try_from(config.max_positions).unwrap_or(u32::MAX),
        )?,
    })?;
    progress.advance(1);
    clock.lap("plan");
    Ok(Planned { checkpoint, plain, verified, weights, selection, placement })
}

impl Planned {
    /// SPIR-V of every kernel, and the programs that run them.
    ///
    /// # Errors
    /// When a kernel is more than a target can do.
    pub fn kernels(&self, progress: &mut dyn Progress) -> Result<Kernels> {
        progress.stage("kernels", self.selection.targets.len() as u64);
        kernel_set::build(&self.selection, &self.placement.programs, progress)
    }
}

/// The context that was asked for, or a usual one, of a model made for `model` tokens.
fn planned_context(asked_tokens: Option<u32>, model: u32) -> Result<u32> {
    match asked_tokens {
        Some(asked) if asked == 0 || asked > model => Err(CompileError::Plan(format!(
            "context is {asked} tokens, expected 1 to {model}, as many as the model was made for"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(model.min(PLANNED_CONTEXT_TOKENS)),
    }
}

/// Compiles the model at `source` into the artifact `output`.
///
/// # Errors
/// See [`CompileError`]; nothing is left under `output`'s name that was not there before.
pub fn compile(source: Source, output: &Path, options: &CompileOptions, progress: &mut dyn Progress) -> Result<Report> {
    let mut clock = StageClock::start();
    let planned = plan_timed(source, options, progress, &mut clock)?;
    let Planned { checkpoint, plain, verified, weights, placement, .. } = &planned;

    let kernels = planned.kernels(progress)?;
    clock.lap("kernels");

    let mut importance = Importance::default();
    if options.policy.weights == WeightsOption::Int4 && matches!(source, Source::Model(_)) {
        progress.stage("importance", plain.nodes.len() as u64);
        importance = Importance::estimate(plain, checkpoint, || progress.advance(1));
        clock.lap("importance");
    }

    let plan = &placement.plan;
    progress.stage("weights", plan.weights.iter().map(|weight| weight.len_bytes).sum());
    let mut writer = ArtifactWriter::create(output, plan.slices.len()).map_err(CompileError::io(output))?;
    progress.partial(Some(writer.partial_path()));
    let mut errors = pack::Errors::new();
    let fill = |weight: &PackedWeight, sink: &mut dyn FnMut(&[u8]) -> Result<()>| match source {
        Source::Model(_) => pack::pack(weight, verified.graph(), &importance, checkpoint, &mut errors, sink),
        Source::Synthetic(_) => synthesize::synthesize(weight, &checkpoint.config, sink),
    };
    write_weights(&mut writer, weights, &placement.weights, fill, progress)?;
    clock.lap("weights");

    progress.stage("write", 1);
    let meta = meta(source, &planned, options, &errors);
    let artifact_bytes =
        writer.finish(&meta, plan, &kernels, &checkpoint.tokenizer).map_err(CompileError::io(output))?;
    progress.partial(None);
    progress.advance(1);
    clock.lap("write");

    for form in &options.emit {
        form.write(output, &planned)?;
    }
    Ok(Report::new(checkpoint, &meta, plan, &errors, artifact_bytes, clock.laps))
}

/// Writes every weight to its planned place; `fill` hands over the bytes of one.
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
            progress.advance(bytes.len() as u64);
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

/// Context that is planned for unless one is asked for or the model's own is shorter.
const PLANNED_CONTEXT_TOKENS: u32 = 8192;

fn meta(source: Source, planned: &Planned, options: &CompileOptions, errors: &pack::Errors) -> Meta {
    let Planned { checkpoint, verified, weights, placement, .. } = planned;
    let config = &checkpoint.config;
    let long = config.ropes.iter().find_map(|rope| rope.long.as_ref());
    let targets: Vec<&str> = options.targets.iter().map(|target| target.name).collect();
    let weights_name = format!("{:?}", options.policy.weights).to_lowercase();
    Meta {
        model: ModelMeta {
            name: model_name(source),
            architecture: config.architecture.clone(),
            vocab_size: config.vocab_size as u32,
            hidden_size: config.hidden_size as u32,
            n_layers: config.layers.len() as u32,
            max_positions: config.max_positions as u32,
            long_rope_above_tokens: long.map(|long| long.above_tokens as u32),
            parameters: config.parameters(),
            weight_bytes_per_token: weights.bytes_read_per_token(),
            synthetic: matches!(source, Source::Synthetic(_)),
        },
        provenance: Provenance {
            compiler_version: env!("CARGO_PKG_VERSION").into(),
            options: vec![
                ("weights".into(), weights_name),
                ("group".into(), options.policy.group.to_string()),
                ("targets".into(), targets.join(",")),
                ("kv".into(), options.kv.name().into()),
                ("fuse".into(), options.fuse.to_string()),
                ("alternatives".into(), options.alternatives.to_string()),
                ("machine".into(), options.machine.name.clone()),
                ("context".into(), placement.plan.planned_context_tokens.to_string()),
            ],
            source_hash: checkpoint.source_hash(),
        },
        tensors: report::tensor_reports(checkpoint, verified.graph(), options.policy, errors),
    }
}

/// The folder's name, or the file's without its ending.
fn model_name(source: Source) -> String {
    let (Source::Model(path) | Source::Synthetic(path)) = source;
    let name = path.file_name().map_or("model".into(), |name| name.to_string_lossy());
    let stem = name.strip_suffix(".gguf").or(name.strip_suffix(".json"));
    stem.unwrap_or(&name).to_owned()
}

/// Seconds each stage took, in order.
struct StageClock {
    started: Instant,
    laps: Vec<(&'static str, f64)>,
}

impl StageClock {
    fn start() -> StageClock {
        StageClock { started: Instant::now(), laps: Vec::new() }
    }

    /// Ends the stage `name`.
    fn lap(&mut self, name: &'static str) {
        self.laps.push((name, self.started.elapsed().as_secs_f64()));
        self.started = Instant::now();
    }
}

/// Where a text form of `output` goes: `model.unicorn` → `model.graph.txt`.
pub fn beside(output: &Path, form: &str) -> PathBuf {
    output.with_extension(format!("{form}.txt"))
}
