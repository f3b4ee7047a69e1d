//! One kernel on a real device, through an artifact made by hand: its inputs are the weights, its outputs are in the logits
//! buffer, which a first dispatch has filled with poison, and are read back as logits are.

use std::collections::BTreeMap;

use unicorn_artifact::plan::BUFFER_ALIGN;
use unicorn_artifact::{
    ArtifactWriter, Binding, BufferRef, Dispatch, Kernels, KvGroupPlan, LogitsRows, MachinePlan, MatrixSides, Meta,
    ModelMeta, Module, ModuleSet, Order, Pipeline, Plan, Program, Provenance, SlicePlan, TargetKernels, TargetMatch,
    Tier, TokenizerSection,
};
use unicorn_kernels::checksum::ChecksumSpec;
use unicorn_kernels::elementwise::{ElementwiseOp, ElementwiseSpec};
use unicorn_kernels::flash::FlashTile;
use unicorn_kernels::fragment_shape::FragmentShape;
use unicorn_kernels::gemm::GemmTile;
use unicorn_kernels::register_gemm::RegisterTile;
use unicorn_kernels::{KernelSpec, counter_sync};
use unicorn_runtime::{DeviceChoice, DeviceFacts, LoadOptions, Model, Recovery, Sampled, Sampling};
use unicorn_spirv::Target;
use unicorn_spirv::target::{GemmTuning, MatrixTuning, MinRows, RegisterTuning, TimedTile};

/// Value of every output element before the kernel runs; where it remains, the kernel has missed an element.
pub const POISON: f32 = -7.5e33;

/// A binding of a launched kernel.
#[derive(Clone, Debug)]
pub enum Operand {
    Step,
    /// Read-only contents.
    Bytes(Vec<u8>),
    /// Output number `id` of `words` words, or a later kernel's view of it.
    Out {
        id: usize,
        words: usize,
    },
    Keys,
    Values,
    Samples,
    /// Counters that are 0 before and after.
    CompletionCounters,
    /// The counters of the step before and of its own. Steps that follow each other without a barrier count each other.
    SyncCounters,
    SyncCounterSlots,
}

/// Kernels to run in order, over the rows of one feed.
pub struct Launch {
    pub target: Target,
    pub steps: Vec<(KernelSpec, Vec<Operand>)>,
    /// A KV cache of one layer, if a kernel needs one.
    pub kv: Option<KvGroupPlan>,
    /// Rows of the program: tokens are fed in steps of that many.
    pub rows: usize,
    /// Rows that the kernels compute for each of the program's.
    pub rows_per_token: usize,
    /// Tokens of another sequence, fed first, whose slot and pages stay in use.
    pub other: Vec<u32>,
    /// Tokens fed before, and tokens of the step whose outputs are read.
    pub before: Vec<u32>,
    pub tokens: Vec<u32>,
}

/// The device that `UNICORN_DEVICE` names, llvmpipe if it names none.
///
/// # Panics
/// Without a Vulkan loader, or such a device.
pub fn device() -> DeviceFacts {
    let name = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let devices = unicorn_runtime::devices().expect("a Vulkan loader");
    unicorn_runtime::choose_device(&devices, &DeviceChoice::Name(name)).expect("the device that was requested").clone()
}

/// Removes counter synchronisation from a target where the device cannot run it.
pub fn without_what_the_device_lacks(target: &mut Target) {
    let features = device().features;
    target.fused_tail = target.fused_tail.filter(|_| features.int64 && features.int64_atomics);
    target.counter_sync &= features.memory_model_chains;
}

/// Small tiles for that device's cooperative matrices; `None`: it has no square ones.
pub fn device_matrices() -> Option<MatrixTuning> {
    device_fragments().into_iter().find(|fragment| *fragment == FragmentShape::square(fragment.m)).map(small_matrices)
}

/// Sides of that device's cooperative matrices of f16 with sums of f32, the largest first.
pub fn device_fragments() -> Vec<FragmentShape> {
    let sides = [16, 8].into_iter().flat_map(|m| [16, 8].into_iter().flat_map(move |n| [16, 8].map(|k| [m, n, k])));
    let features = device().features;
    let there = sides.filter(|sides| features.multiplies_f16_matrices(*sides));
    there.map(|sides| sides.map(|side| side as usize)).map(|[m, n, k]| FragmentShape { m, n, k }).collect()
}

/// Small tiles of such matrices.
pub fn small_matrices(fragment: FragmentShape) -> MatrixTuning {
    let tile = GemmTile {
        // The lanes of larger subgroups read that many words of weights.
        matrix_rows: 4 * fragment.m,
        step_rows: 32,
        k: 32,
        fragment,
        subgroups_across: 2,
        subgroups_down: 2,
        double_buffered: true,
    };
    MatrixTuning {
        fragment,
        gemm: GemmTuning::Workgroup { large: None, many: tile, few: tile },
        min_rows: MinRows::of_all(9),
        flash: FlashTile { fragment, subgroups: 4 },
    }
}

/// Reports that the device multiplies no f16 matrices; `cargo xtask matrices` runs the checks on one that does.
pub fn skip_matrix_units() {
    crate::skip("matrix units", format_args!("{} multiplies no f16 matrices", device().name));
}

/// The same with weights from registers, which reach the matrices through workgroup memory: that does not depend on the device's
/// layout of matrices.
pub fn device_register_matrices() -> Option<MatrixTuning> {
    let matrices = device_matrices()?;
    let tiles = if matrices.fragment.m == 8 { SMALL_REGISTER_TILES_OF_8 } else { SMALL_REGISTER_TILES_OF_16 };
    let gemm = GemmTuning::Registers(RegisterTuning { tiles, lanes_hold_fragments: false });
    Some(MatrixTuning { gemm, ..matrices })
}

const SMALL_REGISTER_TILES_OF_8: &[TimedTile] = &small_register_tiles(8);
const SMALL_REGISTER_TILES_OF_16: &[TimedTile] = &small_register_tiles(16);

/// Tiles for few rows and for many.
const fn small_register_tiles(fragment: usize) -> [TimedTile; 2] {
    let fragments = 16 / fragment;
    let few = RegisterTile { step_rows: 16, panel: 128, fragment, fragments, subgroups: 4 };
    let many = RegisterTile { step_rows: 32, panel: 64, subgroups: 2, ..few };
    [TimedTile { tile: few, alone_ns: 1000, shared_ns: 400 }, TimedTile { tile: many, alone_ns: 1500, shared_ns: 1000 }]
}

impl Operand {
    pub fn floats(values: &[f32]) -> Operand {
        Operand::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// A vector as the compiler packs it: whole quads.
    pub fn quads(values: &[f32]) -> Operand {
        let mut padded = values.to_vec();
        padded.resize(values.len().next_multiple_of(4), 0.0);
        Operand::floats(&padded)
    }

    pub fn words(words: &[u32]) -> Operand {
        Operand::Bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }
}

impl Launch {
    /// Runs on the device that `UNICORN_DEVICE` names (llvmpipe if it names none); returns each output's words.
    ///
    /// # Panics
    /// If the artifact does not load or the step fails.
    pub fn run(&self) -> BTreeMap<usize, Vec<u32>> {
        let stride = self.stride();
        let (_folder, model) = self.load(LogitsRows::All, stride, false);
        let mut other = model.session().expect("a free slot");
        if !self.other.is_empty() {
            other.feed_with_logits(&self.other, &mut |_, _| {}).expect("another sequence's steps run");
        }
        let mut session = model.session().expect("a second slot");
        if !self.before.is_empty() {
            session.feed_with_logits(&self.before, &mut |_, _| {}).expect("the first steps run");
        }
        let mut words = Vec::new();
        let mut collect = |_, row: &[f32]| words.extend(row.iter().map(|value| value.to_bits()));
        session.feed_with_logits(&self.tokens, &mut collect).expect("the step runs");
        self.outputs().into_iter().map(|(id, (first, len))| (id, words[first..first + len].to_vec())).collect()
    }

    /// Runs a sampler over `vocab` logits in output 0 and returns what it sampled; `mask`: among the tokens whose bits are set in it.
    pub fn sample(&self, vocab: usize, sampling: &Sampling, mask: Option<&[u32]>) -> Sampled {
        let (_folder, model) = self.load(LogitsRows::One, vocab, false);
        let mut session = model.session().expect("a free slot");
        let sampled = match mask {
            Some(mask) => {
                session.feed_and_sample_masked(&self.tokens, sampling, |allowed| allowed.copy_from_slice(mask))
            }
            None => session.feed_and_sample(&self.tokens, sampling),
        };
        sampled.expect("the step runs")
    }

    /// Samples the largest of `vocab` logits in output 0, and reports recoveries on the way; `barriers`: also
    /// where steps would count each other.
    pub fn sample_and_recover(&self, vocab: usize, barriers: bool) -> (Sampled, Vec<Recovery>) {
        let (_folder, model) = self.load(LogitsRows::One, vocab, barriers);
        let mut session = model.session().expect("a free slot");
        let sampled = session.feed_and_sample(&self.tokens, &Sampling::default()).expect("the step runs");
        (sampled, model.take_recoveries())
    }

    fn load(&self, logits: LogitsRows, stride: usize, barriers: bool) -> (tempfile::TempDir, Model) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("kernel.unicorn");
        self.write(&path, logits, stride);
        let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
        let options = LoadOptions::default().with(|options| {
            options.device = DeviceChoice::Name(device);
            // A target that is requested by name also runs where another is faster.
            options.target = Some(self.target.name.into());
            options.context_tokens = Some(CONTEXT);
            options.slots = 2;
            options.barriers = barriers;
        });
        let model = Model::load(&path, &options).expect("the artifact loads");
        (folder, model)
    }

    /// First word and length of each output in the logits buffer.
    fn outputs(&self) -> BTreeMap<usize, (usize, usize)> {
        let operands = self.steps.iter().flat_map(|(_, operands)| operands);
        let sizes: BTreeMap<usize, usize> = operands
            .filter_map(|operand| if let Operand::Out { id, words } = operand { Some((*id, *words)) } else { None })
            .collect();
        let mut first = 0;
        let mut placed = BTreeMap::new();
        for (id, words) in sizes {
            placed.insert(id, (first, words));
            first = (first + words).next_multiple_of(BUFFER_ALIGN as usize / 4);
        }
        placed
    }

    /// Words of one row of the logits buffer, so that the rows of the step hold all outputs.
    fn stride(&self) -> usize {
        let end = self.outputs().values().map(|(first, words)| first + words).max().unwrap_or(1);
        end.div_ceil(self.tokens.len()).max(CONTEXT as usize)
    }

    fn write(&self, path: &std::path::Path, logits: LogitsRows, stride: usize) {
        let rows = self.rows;
        let mut slice: Vec<u8> = Vec::new();
        let mut put = |bytes: &[u8]| {
            slice.resize(slice.len().next_multiple_of(BUFFER_ALIGN as usize), 0);
            let offset_bytes = slice.len() as u64;
            slice.extend_from_slice(bytes);
            let buffer = BufferRef::Weights { slice: 0 };
            Binding { buffer, offset_bytes, len_bytes: bytes.len() as u64, writes: false }
        };
        let mut modules: Vec<Module> = Vec::new();
        let mut pipelines = Vec::new();
        let mut dispatches = Vec::new();
        let mut is_counted = false;
        let mut add = |spec: &KernelSpec, operands: &[Operand], bindings: Vec<Binding>| {
            let binary = unicorn_spirv::emit(spec, &self.target).expect("the kernel compiles");
            modules.push(Module { words: binary.words, needs: binary.needs });
            let number = pipelines.len() as u32;
            let alternatives = Vec::new();
            pipelines.push(Pipeline {
                name: spec.name().into(),
                module: number,
                bindings: binary.bindings,
                alternatives,
            });
            let follows = is_counted;
            is_counted = operands.iter().any(|operand| matches!(operand, Operand::SyncCounters));
            dispatches.push(Dispatch {
                pipeline: number,
                workgroups: spec.workgroups(rows * self.rows_per_token).map(|count| count as u32),
                alternatives: Vec::new(),
                bindings,
                order: match number {
                    0 => Order::Free,
                    _ if is_counted && follows => Order::CounterSync,
                    _ => Order::Barrier,
                },
                label: spec.name().into(),
                weight_bytes: 0,
            });
        };
        let whole = |buffer, writes| Binding { buffer, offset_bytes: 0, len_bytes: 0, writes };
        let poison_half =
            put(&vec![POISON / 2.0; stride].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
        let poison = ElementwiseSpec {
            op: ElementwiseOp::Add,
            width: stride,
            input_stride: 0,
            output_stride: stride,
            rows_per_token: 1,
        };
        add(
            &KernelSpec::Elementwise(poison),
            &[],
            vec![whole(BufferRef::Step, false), poison_half, whole(BufferRef::Logits, true), poison_half],
        );
        let outputs = self.outputs();
        for (slot, (spec, operands)) in (0..).zip(&self.steps) {
            let bind = |(operand, binding): (&Operand, unicorn_kernels::BindingSpec)| match operand {
                Operand::Step => whole(BufferRef::Step, binding.writes),
                Operand::Bytes(bytes) => put(bytes),
                Operand::Out { id, .. } => {
                    let (first, words) = outputs[id];
                    let (offset_bytes, len_bytes) = (4 * first as u64, 4 * words as u64);
                    Binding { buffer: BufferRef::Logits, offset_bytes, len_bytes, writes: binding.writes }
                }
                Operand::Keys => whole(BufferRef::Keys { group: 0, layer: 0 }, binding.writes),
                Operand::Values => whole(BufferRef::Values { group: 0, layer: 0 }, binding.writes),
                Operand::Samples => whole(BufferRef::Output, true),
                Operand::CompletionCounters => Binding { len_bytes: COUNTERS_BYTES, ..whole(BufferRef::Arena, true) },
                Operand::SyncCounters => {
                    let offset_bytes = COUNTERS_BYTES + SLOT_BYTES * slot;
                    Binding { offset_bytes, len_bytes: 2 * SLOT_BYTES, ..whole(BufferRef::Arena, true) }
                }
                Operand::SyncCounterSlots => {
                    let (offset_bytes, len_bytes) = (COUNTERS_BYTES, SLOT_BYTES * counter_sync::SLOTS as u64);
                    Binding { offset_bytes, len_bytes, ..whole(BufferRef::Arena, false) }
                }
            };
            let bindings = operands.iter().zip(spec.bindings()).map(bind).collect();
            add(spec, operands, bindings);
        }
        let checksum = unicorn_spirv::emit(&KernelSpec::Checksum(ChecksumSpec {}), &self.target).expect("it compiles");
        let (module, number) = (modules.len() as u32, pipelines.len() as u32);
        modules.push(Module { words: checksum.words, needs: checksum.needs });
        pipelines.push(Pipeline {
            name: "checksum".into(),
            module,
            bindings: checksum.bindings,
            alternatives: Vec::new(),
        });
        let samples = logits == LogitsRows::One;
        let programs = vec![Program {
            rows: rows as u32,
            logits,
            samples,
            batch: false,
            images: false,
            from_tokens: 0,
            dispatches,
        }];
        let target = TargetKernels {
            name: self.target.name.into(),
            modules: ModuleSet::pack([&modules[..]]).expect("memory for zstd"),
            matches: matches_of(&self.target, &modules),
            pipelines,
            programs,
            checksum: Some(number),
            bandwidth_probe: None,
            fragments: None,
        };
        let kernels = Kernels { targets: vec![target] };
        let plan = Plan {
            machine: MachinePlan::default(),
            slices: vec![SlicePlan { bytes: slice.len() as u64, tier: Tier::Vram }],
            weights: Vec::new(),
            kv_groups: self.kv.iter().cloned().collect(),
            activations: Vec::new(),
            arena_bytes: COUNTERS_BYTES + SLOT_BYTES * counter_sync::SLOTS as u64,
            arena_tier: Tier::Vram,
            logits_rows: rows as u32,
            logits_stride: stride as u32,
            buffers: Vec::new(),
            planned_context_tokens: CONTEXT,
            planned_chunk_tokens: rows as u32,
        };
        let mut writer = ArtifactWriter::create(path, 1).expect("a temporary file");
        writer.begin_slice().expect("room");
        writer.weight_bytes(&slice).expect("room");
        let tokenizer = TokenizerSection::default();
        writer.finish(&meta(stride), &plan, &kernels, &tokenizer).expect("the artifact is sound");
    }
}

/// Bytes of the completion counters of attention's splits, which precede the slots of counter synchronisation.
const COUNTERS_BYTES: u64 = 16 << 10;
const SLOT_BYTES: u64 = 4 * counter_sync::SLOT_WORDS as u64;

/// Longest sequence of a launch, in tokens.
pub const CONTEXT: u32 = 1024;

fn meta(vocab_size: usize) -> Meta {
    Meta {
        model: ModelMeta {
            name: "kernel".into(),
            architecture: "none".into(),
            vocab_size: vocab_size as u32,
            hidden_size: 1,
            n_layers: 1,
            max_positions: CONTEXT,
            long_rope_above_tokens: None,
            parameters: 0,
            weight_bytes_per_token: 0,
            synthetic: true,
        },
        provenance: Provenance {
            compiler_version: String::new(),
            options: Vec::new(),
            source_hash: [0; 32],
            config: Vec::new(),
        },
        tensors: Vec::new(),
    }
}

/// What these modules need, so that they run on any device that has it.
fn matches_of(target: &Target, modules: &[Module]) -> TargetMatch {
    let needs = || modules.iter().map(|module| &module.needs);
    TargetMatch {
        classes: Vec::new(),
        shared_memory_bytes: target.shared_memory_bytes.min(device().shared_memory_bytes as usize) as u32,
        integer_dot_product: needs().any(|needs| needs.integer_dot_product),
        int64_atomics: needs().any(|needs| needs.int64_atomics),
        memory_model_chains: needs().any(|needs| needs.memory_model && needs.matrices.is_empty()),
        matrix_sides: match needs().any(|needs| !needs.matrices.is_empty()) {
            true => target.matches().matrix_sides,
            false => MatrixSides::NONE,
        },
        ..target.matches()
    }
}
