//! Plans with some numbers changed, in artifacts whose hashes are right, loaded and run on a device.

use std::path::Path;
use std::sync::OnceLock;

use unicorn_artifact::header::{SectionKind, VERSION_MAJOR};
use unicorn_artifact::{ArtifactView, BufferRef, Kernels, Meta, Plan, codec};
use unicorn_runtime::npu::NpuUse;
use unicorn_runtime::{DeviceChoice, LoadError, LoadOptions, Model, RunError, Sampling};

use crate::generators::assemble;

/// Why a mutated artifact was refused.
#[derive(Debug)]
pub enum Refused {
    Load(LoadError),
    Step(RunError),
}

/// A number of a plan.
enum Field<'p> {
    U32(&'p mut u32),
    U64(&'p mut u64),
}

/// Bytes of a mutation: which number, its new value.
const MUTATION_BYTES: usize = 3;

/// The smallest artifact of this version, changed by each [`MUTATION_BYTES`] of `bytes`, is loaded on llvmpipe, or the device that
/// `UNICORN_DEVICE` names, and runs a prefill and a decode step.
///
/// # Errors
/// Whatever the runtime refuses. What must not happen is a panic, an endless step, or a message of the validation layer.
pub fn load_and_run(bytes: &[u8]) -> Result<(), Refused> {
    let mutate = |meta: &mut Meta, plan: &mut Plan, kernels: &mut Kernels| {
        for mutation in bytes.chunks_exact(MUTATION_BYTES) {
            let mut fields = fields(meta, plan, kernels);
            let index = usize::from(u16::from_le_bytes([mutation[0], mutation[1]])) % fields.len();
            fields[index].mutate(mutation[2]);
        }
    };
    load_and_run_artifact(&changed(mutate))
}

/// Loads an artifact and runs a prefill and a decode step.
///
/// # Errors
/// Whatever the runtime refuses.
pub fn load_and_run_artifact(artifact: &[u8]) -> Result<(), Refused> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("mutated.unicorn");
    std::fs::write(&path, artifact).expect("a temporary file");
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device);
        options.context_tokens = Some(16);
        options.npu = NpuUse::Off;
    });
    let model = Model::load(&path, &options).map_err(Refused::Load)?;
    let mut session = model.session().map_err(Refused::Step)?;
    let first = session.feed_and_sample(&[1, 2, 3], &Sampling::default()).map_err(Refused::Step)?;
    session.generate(first.token, &Sampling::default(), 2).try_for_each(|one| one.map(drop)).map_err(Refused::Step)
}

/// A mutation of every `step`th number.
pub fn examples(step: usize) -> impl Iterator<Item = [u8; MUTATION_BYTES]> {
    let (mut meta, mut plan, mut kernels) = sound().structured.clone();
    let count = fields(&mut meta, &mut plan, &mut kernels).len();
    (0..count).step_by(step).map(move |field| {
        let [low, high, ..] = field.to_le_bytes();
        [low, high, (field / step) as u8]
    })
}

/// The smallest artifact after `change`, with hashes that are right.
pub fn changed(change: impl FnOnce(&mut Meta, &mut Plan, &mut Kernels)) -> Vec<u8> {
    let Sound { structured: (meta, plan, kernels), tokenizer, weights } = sound();
    let (mut meta, mut plan, mut kernels) = (meta.clone(), plan.clone(), kernels.clone());
    change(&mut meta, &mut plan, &mut kernels);
    assembled(&meta, &plan, &kernels, tokenizer, &[weights])
}

/// An artifact after `change` of its kernels, with hashes that are right.
///
/// # Panics
/// If it was no sound artifact.
pub fn with_kernels_changed(artifact: &[u8], change: impl FnOnce(&mut Kernels)) -> Vec<u8> {
    with_parts_changed(artifact, |_, kernels| change(kernels))
}

/// The same for its metadata, too.
///
/// # Panics
/// If it was no sound artifact.
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
    let Sound { structured: (meta, plan, kernels), tokenizer, weights } = sound();
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

struct Sound {
    structured: (Meta, Plan, Kernels),
    tokenizer: Vec<u8>,
    weights: Vec<u8>,
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let golden = format!("../artifacts/golden/v{VERSION_MAJOR}-tiny.unicorn");
        let artifact = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(golden)).expect("the golden artifact");
        let view = ArtifactView::parse(&artifact).expect("the golden artifact is sound");
        let weights = view.weights()[0].bytes.to_vec();
        let tokenizer = codec::encode(&view.tokenizer);
        Sound { structured: (view.meta, view.plan, view.kernels), tokenizer, weights }
    })
}

impl Field<'_> {
    /// Changes the number a little, by a power of two, or to an extreme.
    fn mutate(&mut self, how: u8) {
        let old = match self {
            Field::U32(value) => u64::from(**value),
            Field::U64(value) => **value,
        };
        let new = match how % 12 {
            0 => old.wrapping_add(1),
            1 => old.wrapping_sub(1),
            2 => old.wrapping_mul(2),
            3 => old / 2,
            4 => 0,
            5 => old.wrapping_add(256),
            6 => old.wrapping_sub(256),
            7 => u64::MAX,
            8 => 65_535,
            9 => old.wrapping_add(4),
            10 => old.wrapping_mul(1000),
            _ => 1,
        };
        match self {
            Field::U32(value) => **value = new as u32,
            Field::U64(value) => **value = new,
        }
    }
}

/// Every number that the runtime follows.
fn fields<'p>(meta: &'p mut Meta, plan: &'p mut Plan, kernels: &'p mut Kernels) -> Vec<Field<'p>> {
    let mut fields = vec![
        Field::U32(&mut meta.model.vocab_size),
        Field::U32(&mut meta.model.max_positions),
        Field::U64(&mut plan.arena_bytes),
        Field::U32(&mut plan.logits_rows),
        Field::U32(&mut plan.logits_stride),
        Field::U32(&mut plan.planned_context_tokens),
        Field::U32(&mut plan.planned_chunk_tokens),
    ];
    fields.extend(plan.slices.iter_mut().map(|slice| Field::U64(&mut slice.bytes)));
    for group in &mut plan.kv_groups {
        fields.extend([&mut group.n_layers, &mut group.page_tokens].map(Field::U32));
        fields.push(Field::U64(&mut group.page_bytes));
        fields.extend(group.window_tokens.as_mut().map(Field::U32));
    }
    for target in &mut kernels.targets {
        for pipeline in &mut target.pipelines {
            fields.extend([&mut pipeline.module, &mut pipeline.bindings].map(Field::U32));
        }
        for program in &mut target.programs {
            fields.extend([&mut program.rows, &mut program.from_tokens].map(Field::U32));
            for dispatch in &mut program.dispatches {
                fields.push(Field::U32(&mut dispatch.pipeline));
                fields.push(Field::U64(&mut dispatch.weight_bytes));
                fields.extend(dispatch.workgroups.iter_mut().map(Field::U32));
                for binding in &mut dispatch.bindings {
                    fields.extend([&mut binding.offset_bytes, &mut binding.len_bytes].map(Field::U64));
                    match &mut binding.buffer {
                        BufferRef::Weights { slice } => fields.push(Field::U32(slice)),
                        BufferRef::Keys { group, layer } | BufferRef::Values { group, layer } => {
                            fields.extend([group, layer].map(Field::U32));
                        }
                        BufferRef::Arena | BufferRef::Step | BufferRef::Logits | BufferRef::Output => {}
                    }
                }
            }
        }
    }
    fields
}
