//! Plans with some parts changed, in artifacts whose hashes are right, loaded and run on a device.

mod parts;

use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use unicorn_artifact::header::{SectionKind, VERSION_MAJOR};
use unicorn_artifact::{
    ArtifactView, Kernels, LogitsRows, Meta, Module, ModuleSet, Pipeline, Plan, Program, TargetKernels, codec,
};
use unicorn_runtime::npu::NpuUse;
use unicorn_runtime::{BatchRow, DeviceChoice, LoadError, LoadOptions, Model, RunError, Sampling};

use crate::compiled::{Compiled, options};
use crate::generators::assemble;
use crate::tiny_model::{Family, TinyModel};
use parts::{MUTATION_BYTES, mutate};

/// Why a mutated artifact was refused.
#[derive(Debug)]
pub enum Refused {
    Load(LoadError),
    Step(RunError),
}

/// How far artifacts came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Their sections break a rule.
    pub refused_by_reader: u64,
    /// The device, its driver or memory, or the options.
    pub refused_by_load: u64,
    /// Loaded, and a step ended with an error.
    pub refused_by_step: u64,
    /// Loaded, and all steps ended.
    pub ran: u64,
}

/// Bytes of a mutated plan: which model, and up to four changes. A few are more likely to get past the checks than many.
const INPUT_BYTES: usize = 1 + 4 * MUTATION_BYTES;

/// The plan that `bytes` describe: the first names a model, and each [`MUTATION_BYTES`] behind it change a part of its plan. It is loaded on
/// llvmpipe, or the device that `UNICORN_DEVICE` names, and runs prefill and decode steps.
///
/// # Errors
/// When the runtime refuses it. There must be no panic, no endless step and no message of the validation layer.
pub fn load_and_run(bytes: &[u8]) -> Result<(), Refused> {
    let (&model, mutations) = bytes.split_first().unwrap_or((&0, &[]));
    let (mutations, _) = mutations[..mutations.len().min(INPUT_BYTES - 1)].as_chunks::<MUTATION_BYTES>();
    let change = |meta: &mut Meta, plan: &mut Plan, kernels: &mut Kernels| {
        mutations.iter().for_each(|mutation| mutate(meta, plan, kernels, *mutation));
    };
    load_and_run_artifact(&SOUND[usize::from(model) % SOUND.len()].changed(change))
}

/// The mutation of this number: every second has one change, every sixteenth four.
pub fn mutation(number: u64) -> Vec<u8> {
    let mut bytes = [0; INPUT_BYTES];
    StdRng::seed_from_u64(number).fill(&mut bytes[..]);
    let changes = 1 + number.trailing_ones().min(3) as usize;
    bytes[..1 + changes * MUTATION_BYTES].to_vec()
}

impl Reached {
    /// Counts a result of [`load_and_run`].
    pub fn add(&mut self, result: &Result<(), Refused>) {
        *match result {
            Ok(()) => &mut self.ran,
            Err(Refused::Load(LoadError::Artifact { .. })) => &mut self.refused_by_reader,
            Err(Refused::Load(_)) => &mut self.refused_by_load,
            Err(Refused::Step(_)) => &mut self.refused_by_step,
        } += 1;
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reached { refused_by_reader, refused_by_load, refused_by_step, ran } = self;
        write!(
            f,
            "{refused_by_reader} refused by the reader, {refused_by_load} by the load, {refused_by_step} by a step; {ran} ran"
        )
    }
}

/// Loads an artifact and runs steps: prefill and decode of one sequence, of two together, and with the logits or hidden rows of all tokens.
///
/// # Errors
/// When the runtime refuses it.
pub fn load_and_run_artifact(artifact: &[u8]) -> Result<(), Refused> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("mutated.unicorn");
    std::fs::write(&path, artifact).expect("a temporary file");
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device);
        options.context_tokens = Some(16);
        options.slots = 2;
        options.npu = NpuUse::Off;
    });
    let model = Model::load(&path, &options).map_err(Refused::Load)?;
    run_steps(&model).map_err(Refused::Step)
}

fn run_steps(model: &Model) -> Result<(), RunError> {
    let sampling = Sampling::default();
    let mut session = model.session()?;
    let first = session.feed_and_sample(&[1, 2, 3], &sampling)?;
    session.generate(first.token, &sampling, 3).try_for_each(|one| one.map(drop))?;
    if model.batch_rows() >= 2 {
        let mut other = model.session()?;
        other.feed(&[4, 5])?;
        let rows = [&mut session, &mut other].map(|session| BatchRow { session, token: 6, sampling: &sampling });
        model.generate_batch(rows, 2).try_for_each(|one| one.map(drop))?;
    }
    session.clear();
    let programs = model.targets().iter().flat_map(|target| &target.programs);
    if programs.clone().any(|program| program.logits == LogitsRows::All) {
        session.feed_with_logits(&[1, 2, 3, 4], &mut |_, _| ())?;
    }
    if model.gives_hidden_rows() {
        session.feed_with_hidden_rows(&[1, 2, 3], 3, &mut |_, _| ())?;
    }
    Ok(())
}

/// The smallest artifact after `change`, with hashes that are right.
pub fn changed(change: impl FnOnce(&mut Meta, &mut Plan, &mut Kernels)) -> Vec<u8> {
    SOUND[0].changed(change)
}

/// An artifact after `change` of its kernels, with hashes that are right.
///
/// # Panics
/// If `artifact` is not sound.
pub fn with_kernels_changed(artifact: &[u8], change: impl FnOnce(&mut Kernels)) -> Vec<u8> {
    with_parts_changed(artifact, |_, kernels| change(kernels))
}

/// An artifact after `change` of its metadata and kernels, with hashes that are right.
///
/// # Panics
/// If `artifact` is not sound.
pub fn with_parts_changed(artifact: &[u8], change: impl FnOnce(&mut Meta, &mut Kernels)) -> Vec<u8> {
    let mut view = ArtifactView::parse(artifact).expect("a sound artifact");
    change(&mut view.meta, &mut view.kernels);
    let weights: Vec<&[u8]> = view.weights().iter().map(|section| section.bytes).collect();
    assembled(&view.meta, &view.plan, &view.kernels, &codec::encode(&view.tokenizer), &weights)
}

fn assembled(meta: &Meta, plan: &Plan, kernels: &Kernels, tokenizer: &[u8], weights: &[&[u8]]) -> Vec<u8> {
    let [meta, plan, kernels] = &[codec::encode(meta), codec::encode(plan), codec::encode(kernels)];
    let kinds = [SectionKind::Metadata, SectionKind::Plan, SectionKind::Kernels, SectionKind::Tokenizer];
    let parts = kinds.into_iter().zip([meta, plan, kernels, tokenizer]);
    let weights = weights.iter().map(|&slice| (SectionKind::Weights, slice));
    assemble(&parts.chain(weights).collect::<Vec<(SectionKind, &[u8])>>())
}

/// The smallest artifact with these bytes as its NPU section and no NPU weights, with hashes that are right.
pub fn with_npu(npu: &[u8]) -> Vec<u8> {
    let Sound { structured: (meta, plan, kernels), tokenizer, weights } = &SOUND[0];
    let parts = [codec::encode(meta), codec::encode(plan), codec::encode(kernels)];
    let [meta, plan, kernels] = &parts;
    assemble(&[
        (SectionKind::Metadata, meta),
        (SectionKind::Plan, plan),
        (SectionKind::Kernels, kernels),
        (SectionKind::Tokenizer, tokenizer),
        (SectionKind::Weights, weights),
        (SectionKind::Npu, npu),
    ])
}

/// An artifact in its parts.
struct Sound {
    structured: (Meta, Plan, Kernels),
    tokenizer: Vec<u8>,
    /// Of its only section.
    weights: Vec<u8>,
}

/// The smallest artifact of this version; one with a sliding window in half of its layers and with experts; and one with recurrent state.
static SOUND: LazyLock<[Sound; 3]> = LazyLock::new(|| {
    let golden = format!("../artifacts/golden/v{VERSION_MAJOR}-tiny.unicorn");
    let golden = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(golden)).expect("the golden artifact");
    let window = TinyModel { family: Family::Qwen2Moe, sliding_window: Some(8), ..TinyModel::default() };
    let state = TinyModel { family: Family::Qwen3Next, layers: 4, ..TinyModel::default() };
    [Sound::of(&golden), Sound::compiled(&window), Sound::compiled(&state)]
});

/// Programs of so many rows are kept: larger ones have the same kernels in other sizes.
const SOUND_ROWS: u32 = 8;

impl Sound {
    fn of(artifact: &[u8]) -> Sound {
        let view = ArtifactView::parse(artifact).expect("a sound artifact");
        let weights = view.weights()[0].bytes.to_vec();
        let tokenizer = codec::encode(&view.tokenizer);
        Sound { structured: (view.meta, view.plan, view.kernels), tokenizer, weights }
    }

    fn compiled(model: &TinyModel) -> Sound {
        let generic = unicorn_spirv::target::by_name("generic").expect("a target of this name");
        let mut sound = Sound::of(&Compiled::of(model, &options(vec![generic], Vec::new())).artifact());
        let targets = &mut sound.structured.2.targets;
        *targets = targets.iter().map(|target| with_programs(target, |one| one.rows <= SOUND_ROWS)).collect();
        sound
    }

    fn changed(&self, change: impl FnOnce(&mut Meta, &mut Plan, &mut Kernels)) -> Vec<u8> {
        let Sound { structured: (meta, plan, kernels), tokenizer, weights } = self;
        let (mut meta, mut plan, mut kernels) = (meta.clone(), plan.clone(), kernels.clone());
        change(&mut meta, &mut plan, &mut kernels);
        assembled(&meta, &plan, &kernels, tokenizer, &[weights])
    }
}

/// A target of the compiler's with some of its programs, the pipelines and modules that these need, and no alternatives.
pub fn with_programs(target: &TargetKernels, is_kept: impl Fn(&Program) -> bool) -> TargetKernels {
    let mut target = target.clone();
    let words = target.modules.unpack_all().expect("the compiler wrote them");
    let mut modules = Vec::new();
    target.programs.retain(is_kept);
    (target.checksum, target.bandwidth_probe, target.fragments) = (None, None, None);
    let all = std::mem::take(&mut target.pipelines);
    let mut kept: Vec<u32> = Vec::new();
    for dispatch in target.programs.iter_mut().flat_map(|program| &mut program.dispatches) {
        let pipeline = dispatch.pipeline;
        let index = kept.iter().position(|&one| one == pipeline).unwrap_or_else(|| {
            kept.push(pipeline);
            kept.len() - 1
        });
        dispatch.pipeline = index as u32;
        dispatch.alternatives.clear();
    }
    for pipeline in kept {
        let Pipeline { name, module, bindings, .. } = all[pipeline as usize].clone();
        let needs = target.modules.records[module as usize].needs.clone();
        modules.push(Module { words: words[module as usize].clone(), needs });
        let module = modules.len() as u32 - 1;
        target.pipelines.push(Pipeline { name, module, bindings, alternatives: Vec::new() });
    }
    target.modules = ModuleSet::pack([&modules[..]]).expect("memory for zstd");
    target
}
