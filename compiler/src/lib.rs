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

pub mod place;

pub mod kernel_set;

pub mod importance;
pub mod pack;
pub mod quantize;
pub mod synthesize;

pub mod emit;
pub mod export;
pub mod report;

use std::path::{Path, PathBuf};
use std::time::Instant;

use artifacts::{ArtifactWriter, BufferPlan, Meta, ModelMeta, Plan, Provenance, Tier};
use shaders_gen::Target;

pub use error::{CompileError, Result};
use graph::ModelGraph;
use import::{Checkpoint, ModelConfig};
use importance::Importance;
use kernel_set::KernelSet;
use place::WeightPlacement;
use report::Report;
use verify::VerifiedGraph;
use weights::{FormatPolicy, PackedWeight, PackedWeights, WeightsOption};

/// What a compile is asked for.
pub struct CompileOptions {
    pub policy: FormatPolicy,
    /// In any order; the artifact keeps the presets' order.
    pub targets: Vec<Target>,
    /// Off: one kernel for each plain operation, as an oracle.
    pub fuse: bool,
    /// Text forms to write beside the artifact.
    pub emit: Vec<emit::Form>,
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

/// Compiles the model at `source` into the artifact `output`.
///
/// # Errors
/// See [`CompileError`]; nothing is left under `output`'s name that was not there before.
pub fn compile(source: Source, output: &Path, options: &CompileOptions, progress: &mut dyn Progress) -> Result<Report> {
    let mut clock = StageClock::start();

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
    let Layout { verified, weights, placement } = Layout::of(&plain, config, options);
    progress.advance(1);
    clock.lap("plan");

    progress.stage("kernels", options.targets.len() as u64);
    let kernels = kernel_set::build(&verified, config, &weights, &placement, &options.targets, options.fuse, progress)?;
    let plan = plan(config, &placement, &kernels);
    clock.lap("kernels");

    let mut importance = Importance::default();
    if options.policy.weights == WeightsOption::Int4 && matches!(source, Source::Model(_)) {
        progress.stage("importance", plain.nodes.len() as u64);
        importance = Importance::estimate(&plain, &checkpoint, || progress.advance(1));
        clock.lap("importance");
    }

    progress.stage("weights", placement.weights.iter().map(|weight| weight.len_bytes).sum());
    let mut writer = ArtifactWriter::create(output, placement.slices.len()).map_err(CompileError::io(output))?;
    progress.partial(Some(writer.partial_path()));
    let mut errors = pack::Errors::new();
    let fill = |weight: &PackedWeight, sink: &mut dyn FnMut(&[u8]) -> Result<()>| match source {
        Source::Model(_) => pack::pack(weight, verified.graph(), &importance, &checkpoint, &mut errors, sink),
        Source::Synthetic(_) => synthesize::synthesize(weight, config, sink),
    };
    write_weights(&mut writer, &weights, &placement, fill, progress)?;
    clock.lap("weights");

    progress.stage("write", 1);
    let meta = meta(source, &checkpoint, &verified, &weights, options, &errors);
    let artifact_bytes =
        writer.finish(&meta, &plan, &kernels.kernels, &checkpoint.tokenizer).map_err(CompileError::io(output))?;
    progress.partial(None);
    progress.advance(1);
    clock.lap("write");

    for form in &options.emit {
        form.write(output, &plain, verified.graph(), &plan, &kernels)?;
    }
    Ok(Report::new(&checkpoint, &meta, &plan, &errors, artifact_bytes, clock.laps))
}

/// The kernels and programs of a model of the shape that `config` (a config.json) describes. No weight is read or made.
///
/// # Errors
/// See [`CompileError`].
pub fn kernels_of_shape(config: &Path, options: &CompileOptions, progress: &mut dyn Progress) -> Result<KernelSet> {
    let checkpoint = Checkpoint::of_config(config)?;
    let config = &checkpoint.config;
    let Layout { verified, weights, placement } = Layout::of(&graph::build(config), config, options);
    kernel_set::build(&verified, config, &weights, &placement, &options.targets, options.fuse, progress)
}

/// What is known of a model before its kernels are: the fused graph, its packed weights and where they lie.
struct Layout {
    verified: VerifiedGraph,
    weights: PackedWeights,
    placement: WeightPlacement,
}

impl Layout {
    fn of(plain: &ModelGraph, config: &ModelConfig, options: &CompileOptions) -> Layout {
        let fused =
            if options.fuse { fuse::fuse(plain, config.n_kv_heads) } else { fuse::plain(plain, config.n_kv_heads) };
        let verified = fused.verify(config);
        let weights = PackedWeights::of(verified.graph(), config, options.policy);
        let placement = place::place_weights(&weights);
        Layout { verified, weights, placement }
    }
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

fn plan(config: &ModelConfig, placement: &WeightPlacement, kernels: &KernelSet) -> Plan {
    let groups = select::kv_groups(config);
    let context = config.max_positions.min(PLANNED_CONTEXT_TOKENS);
    let logits_rows = kernels.logits_rows();
    let logits_stride = select::stride(config.vocab_size);
    let buffer = |name: &str, bytes: u64, tier, reason: &str| BufferPlan {
        name: name.into(),
        bytes,
        tier,
        reason: reason.into(),
    };
    let logits_bytes = 4 * (logits_rows * logits_stride) as u64;
    Plan {
        slices: placement.slices.clone(),
        weights: placement.weights.clone(),
        kv_groups: place::place_kv(&groups, config),
        arena_bytes: kernels.arena_bytes,
        activations: kernels.activations.clone(),
        arena_tier: Tier::Vram,
        logits_rows: logits_rows as u32,
        logits_stride: logits_stride as u32,
        buffers: vec![
            buffer("logits", logits_bytes, Tier::Vram, "written by the output head, read by the sampler"),
            buffer("logits read-back", logits_bytes, Tier::Host, "only when a tool asks for logits"),
            buffer(
                "step",
                place::step_buffer_bytes(groups.len(), context),
                Tier::Gtt,
                "what the host writes each step: rows, block tables, sampling",
            ),
            buffer("staging", 2 * STAGING_BYTES, Tier::Host, "while loading, where memory cannot be written in place"),
        ],
        planned_context_tokens: context as u32,
    }
}

/// Context that the plan's sizes are shown for, unless the model's own is shorter.
const PLANNED_CONTEXT_TOKENS: usize = 8192;
/// One of two staging buffers.
const STAGING_BYTES: u64 = 64 << 20;

fn meta(
    source: Source,
    checkpoint: &Checkpoint,
    graph: &VerifiedGraph,
    weights: &PackedWeights,
    options: &CompileOptions,
    errors: &pack::Errors,
) -> Meta {
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
            parameters: config.tensor_shapes().values().map(|shape| shape.iter().product::<usize>() as u64).sum(),
            weight_bytes_per_token: weights.bytes_read_per_token(),
            synthetic: matches!(source, Source::Synthetic(_)),
        },
        provenance: Provenance {
            compiler_version: env!("CARGO_PKG_VERSION").into(),
            options: vec![
                ("weights".into(), weights_name),
                ("group".into(), options.policy.group.to_string()),
                ("targets".into(), targets.join(",")),
                ("fuse".into(), options.fuse.to_string()),
            ],
            source_hash: checkpoint.source_hash,
        },
        tensors: report::tensor_reports(checkpoint, graph.graph(), options.policy, errors),
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
