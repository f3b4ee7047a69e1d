//! An artifact made by hand: four kernels that use every kind of buffer, and the same sums on the CPU.
//!
//! It "attends" by adding up the cached values at the positions of a row's window: one KV group keeps everything, the other a window.

use std::path::{Path, PathBuf};
use std::time::Duration;

use naga::back::spv;
use unicorn_artifact::{
    ActivationPlan, ArtifactWriter, Binding, BufferRef, Dispatch, Kernels, KvGroupPlan, LogitsRows, MachinePlan, Meta,
    ModelMeta, Module, ModuleNeeds, ModuleSet, Order, Pipeline, Plan, Program, Provenance, SlicePlan, TargetKernels,
    TargetMatch, Tier, TokenizerSection, WeightPlan, step,
};
use unicorn_runtime::{DeviceChoice, LoadOptions, Sampling};

pub const VOCAB: u32 = 97;
pub const CONTEXT: u32 = 200;
const PAGE_TOKENS: u32 = 4;
/// Window in tokens, chosen so that the next owner of a page that is released too early soon overwrites what is still visible.
const WINDOW: u32 = 11;
/// Two slices, the first longer than one piece of reading.
pub const FIRST_SLICE_WORDS: usize = (9 << 20) / 4;

/// Options for the device that `UNICORN_DEVICE` names.
pub fn options() -> LoadOptions {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let device: DeviceChoice = device.parse().unwrap();
    LoadOptions::default().with(|options| options.device = device)
}

/// The same so that decode has several steps in a submission, however slow the device: they are foreseen to fit, and as quick as
/// is requested.
pub fn multistep(options: LoadOptions) -> LoadOptions {
    options.with(|options| {
        options.submission = Some(Duration::from_secs(3600));
        options.multistep = Duration::MAX;
    })
}

/// Sampling with a repeat penalty, so that samples depend on earlier tokens.
pub fn repeat_penalty() -> Sampling {
    Sampling::default().with(|sampling| (sampling.repeat_penalty, sampling.repeat_last_n) = (1.5, 5))
}

/// Tokens without a short period.
pub fn prompt(n_tokens: u32) -> Vec<u32> {
    (0..n_tokens).map(|i| (i * i + 3 * i + 1) % VOCAB).collect()
}

/// What the kernels below compute, one row a token.
pub fn twin(tokens: &[u32]) -> Vec<Vec<f32>> {
    (1..=tokens.len()).map(|end| last_row(&tokens[..end])).collect()
}

/// The last row of [`twin`]. No two of its logits are equal.
pub fn last_row(tokens: &[u32]) -> Vec<f32> {
    let cached: Vec<u32> = tokens.iter().zip(1..).map(|(token, position)| (token + 1) * position).collect();
    let all: u32 = cached.iter().sum();
    let window: u32 = cached[tokens.len().saturating_sub(WINDOW as usize)..].iter().map(|value| value + 1).sum();
    (0..VOCAB).map(|v| ((all + 2 * window + weight(v) * 7) % VOCAB) as f32).collect()
}

/// The token that the toy samples behind `tokens`.
pub fn next_token(tokens: &[u32]) -> u32 {
    let row = last_row(tokens);
    (0..VOCAB).max_by(|&a, &b| row[a as usize].total_cmp(&row[b as usize])).expect("a vocabulary")
}

fn weight(index: u32) -> u32 {
    index * 13 + 5000
}

const APPEND: &str = "
@group(0) @binding(0) var<storage, read> step: Step;
@group(0) @binding(1) var<storage, read_write> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= step.header.n_rows { return; }
    let row = step.rows[id.x];
    let table = (GROUP * step.header.table_slots + row.sequence) * step.header.table_stride;
    let page = step.tables[table + row.position / PAGE_TOKENS];
    let at = page * PAGE_TOKENS + row.position % PAGE_TOKENS;
    keys[at] = (row.token + 1u) * (row.position + 1u);
    values[at] = keys[at] + 1u;
}";

const ATTEND: &str = "
@group(0) @binding(0) var<storage, read> step: Step;
@group(0) @binding(1) var<storage, read> cached: array<u32>;
@group(0) @binding(2) var<storage, read_write> sums: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= step.header.n_rows { return; }
    let row = step.rows[id.x];
    let table = (GROUP * step.header.table_slots + row.sequence) * step.header.table_stride;
    var sum = 0u;
    for (var at = select(row.position + 1u - WINDOW, 0u, row.position < WINDOW); at <= row.position; at++) {
        sum += cached[step.tables[table + at / PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS];
    }
    sums[id.x] = sum;
}";

const LOGITS: &str = "
@group(0) @binding(0) var<storage, read> step: Step;
@group(0) @binding(1) var<storage, read> all: array<u32>;
@group(0) @binding(2) var<storage, read> window: array<u32>;
@group(0) @binding(3) var<storage, read> weights: array<u32>;
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= VOCAB { return; }
    for (var out = 0u; out < ROWS; out++) {
        let row = select(out, step.header.logits_row, ROWS == 1u);
        let logit = (all[row] + 2u * window[row] + weights[id.x] * 7u) % VOCAB;
        logits[out * STRIDE + id.x] = f32(logit);
    }
}";

const SAMPLE: &str = "
@group(0) @binding(0) var<storage, read_write> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> output: array<Output>;
@group(0) @binding(3) var<storage, read> masks: array<u32>;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) group: vec3u) {
    let s = group.x;
    if s >= step.header.n_samplers { return; }
    let sampler = step.samplers[s];
    let mask_at = sampler.feeds_and_mask >> 1u;
    var best = VOCAB;
    for (var v = 0u; v < VOCAB; v++) {
        let is_allowed = mask_at == 0u || ((masks[mask_at + v / 32u] >> (v % 32u)) & 1u) == 1u;
        let is_better = best == VOCAB || logits[s * STRIDE + v] >= logits[s * STRIDE + best];
        best = select(best, v, is_allowed && is_better);
    }
    best = min(best, VOCAB - 1u);
    let candidates = sampler.sample + sampler.n_history + 1000u * step.rows[s].rope_variant;
    output[(sampler.sample % KEPT_SAMPLES) * MAX_SAMPLERS + s] = Output(best, logits[s * STRIDE + best], candidates, 0u);
    if (sampler.feeds_and_mask & 1u) == 1u {
        let position = step.rows[s].position + 1u;
        let long = select(0u, 1u, position + 1u > step.header.long_rope_above);
        step.rows[s] = Row(best, position, step.rows[s].sequence, long);
        step.samplers[s].sample += 1u;
        step.samplers[s].n_history = min(sampler.n_history + 1u, sampler.history_capacity);
    }
}";

const ONE_ELSEWHERE: &str = "
@group(0) @binding(0) var<storage, read_write> elsewhere: array<u32>;
@compute @workgroup_size(1) fn main() {
    elsewhere[0] = 1u;
}";

const ARENA_PART_BYTES: u64 = 4 * step::MAX_ROWS as u64;
pub const LOGITS_ROWS: u32 = 8;
const STRIDE: u32 = 128;

fn spirv(source: &str, constants: &[(&str, u32)]) -> Vec<u32> {
    let constants: String = constants.iter().map(|(name, value)| format!("const {name} = {value}u;\n")).collect();
    let text = format!(
        "{}const PAGE_TOKENS = {PAGE_TOKENS}u;\nconst VOCAB = {VOCAB}u;\nconst STRIDE = {STRIDE}u;\n{constants}{source}",
        step::wgsl()
    );
    let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
    let info = naga::valid::Validator::new(Default::default(), Default::default()).validate(&module).unwrap();
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        force_loop_bounding: false,
        ..spv::Options::default()
    };
    spv::write_vec(&module, &info, &options, None).unwrap()
}

/// The toy's modules, and behind them those of other sources, which have workgroups of one.
fn modules(others: &[&str]) -> Vec<Module> {
    let toys = [
        spirv(APPEND, &[("GROUP", 0)]),
        spirv(APPEND, &[("GROUP", 1)]),
        spirv(ATTEND, &[("GROUP", 0), ("WINDOW", 1 << 20)]),
        spirv(ATTEND, &[("GROUP", 1), ("WINDOW", WINDOW)]),
        spirv(LOGITS, &[("ROWS", 1)]),
        spirv(LOGITS, &[("ROWS", LOGITS_ROWS)]),
        spirv(SAMPLE, &[("KEPT_SAMPLES", step::KEPT_SAMPLES as u32)]),
    ];
    let needs =
        |number| ModuleNeeds { workgroup_invocations: if number >= 6 { 1 } else { 64 }, ..ModuleNeeds::default() };
    let all = toys.into_iter().chain(others.iter().map(|source| spirv(source, &[])));
    all.zip(0..).map(|(words, number)| Module { words, needs: needs(number) }).collect()
}

fn kernels() -> Kernels {
    let names = ["append 0", "append 1", "attend 0", "attend 1", "logits one", "logits all", "sample"];
    let bindings = [3, 3, 3, 3, 5, 5, 4];
    let pipelines = names
        .iter()
        .zip(0..)
        .map(|(name, module)| {
            let bindings = bindings[module as usize];
            Pipeline { name: name.to_string(), module, bindings, alternatives: Vec::new() }
        })
        .collect();
    let shapes = [
        (64, LogitsRows::None, false),
        (8, LogitsRows::None, false),
        (8, LogitsRows::One, false),
        (1, LogitsRows::One, true),
        (LOGITS_ROWS, LogitsRows::All, false),
        (LOGITS_ROWS, LogitsRows::All, true),
        (LOGITS_ROWS, LogitsRows::SamplersBesideTwo, false),
    ];
    let programs = shapes.map(|(rows, logits, batch)| program(rows, logits, batch)).to_vec();
    let matches = TargetMatch { workgroup_invocations: 64, ..TargetMatch::default() };
    Kernels {
        targets: vec![TargetKernels {
            name: "toy".into(),
            matches,
            modules: ModuleSet::pack([&modules(&[])[..]]).expect("memory for zstd"),
            pipelines,
            programs,
            checksum: None,
            bandwidth_probe: None,
            fragments: None,
        }],
    }
}

fn program(rows: u32, logits: LogitsRows, batch: bool) -> Program {
    let samples = batch || logits == LogitsRows::One || logits.prompts_beside() > 0;
    let whole = |buffer, writes| Binding { buffer, offset_bytes: 0, len_bytes: 0, writes };
    let step = whole(BufferRef::Step, false);
    let keys = |group| BufferRef::Keys { group, layer: 1 };
    let values = |group| BufferRef::Values { group, layer: 1 };
    let sums = |part, writes| Binding {
        buffer: BufferRef::Arena,
        offset_bytes: part * ARENA_PART_BYTES,
        len_bytes: ARENA_PART_BYTES,
        writes,
    };
    let weights = Binding {
        buffer: BufferRef::Weights { slice: 1 },
        offset_bytes: 0,
        len_bytes: 4 * u64::from(VOCAB),
        writes: false,
    };
    let dispatch = |pipeline, workgroups, barrier_before, bindings| Dispatch {
        pipeline,
        workgroups: [workgroups, 1, 1],
        alternatives: Vec::new(),
        bindings,
        order: if barrier_before { Order::Barrier } else { Order::Free },
        label: String::new(),
        // So much that programs of 64 rows are cut into several submissions.
        weight_bytes: 1 << 30,
    };
    let row_groups = rows.div_ceil(64);
    let mut dispatches = vec![
        dispatch(0, row_groups, false, vec![step, whole(keys(0), true), whole(values(0), true)]),
        dispatch(1, row_groups, false, vec![step, whole(keys(1), true), whole(values(1), true)]),
        dispatch(2, row_groups, true, vec![step, whole(keys(0), false), sums(0, true)]),
        dispatch(3, row_groups, false, vec![step, whole(values(1), false), sums(1, true)]),
    ];
    if logits != LogitsRows::None {
        let pipeline = if logits == LogitsRows::One { 4 } else { 5 };
        let out = whole(BufferRef::Logits, true);
        dispatches.push(dispatch(pipeline, 2, true, vec![step, sums(0, false), sums(1, false), weights, out]));
    }
    if samples {
        let state = whole(BufferRef::Step, true);
        let bindings = vec![state, whole(BufferRef::Logits, false), whole(BufferRef::Output, true), step];
        let samplers = if logits == LogitsRows::One { 1 } else { rows };
        dispatches.push(dispatch(6, samplers, true, bindings));
    }
    Program { rows, logits, samples, batch, images: false, from_tokens: 0, dispatches }
}

fn plan() -> Plan {
    let group = |window_tokens| KvGroupPlan {
        window_tokens,
        n_layers: 2,
        page_tokens: PAGE_TOKENS,
        page_bytes: 4 * u64::from(PAGE_TOKENS),
        tier: Tier::Vram,
        reason: "toy".into(),
    };
    let sums = |name: &str, part: u64| ActivationPlan {
        name: name.into(),
        offset_bytes: part * ARENA_PART_BYTES,
        len_bytes: ARENA_PART_BYTES,
        first_use: 2,
        last_use: 4,
        reason: "toy".into(),
    };
    Plan {
        machine: MachinePlan::default(),
        slices: vec![
            SlicePlan { bytes: 4 * FIRST_SLICE_WORDS as u64, tier: Tier::Vram },
            SlicePlan { bytes: 4 * u64::from(VOCAB), tier: Tier::Gtt },
        ],
        weights: vec![WeightPlan {
            name: "toy".into(),
            slice: 1,
            offset_bytes: 0,
            len_bytes: 4 * u64::from(VOCAB),
            layer: None,
            bytes_read_per_token: 4 * u64::from(VOCAB),
            reason: "toy".into(),
        }],
        kv_groups: vec![group(None), group(Some(WINDOW))],
        activations: vec![sums("all", 0), sums("window", 1)],
        arena_bytes: 2 * ARENA_PART_BYTES,
        arena_tier: Tier::Vram,
        logits_rows: LOGITS_ROWS,
        logits_stride: STRIDE,
        buffers: vec![],
        planned_context_tokens: CONTEXT,
        planned_chunk_tokens: 8,
    }
}

fn meta() -> Meta {
    Meta {
        model: ModelMeta {
            name: "toy".into(),
            architecture: "toy".into(),
            vocab_size: VOCAB,
            hidden_size: 1,
            n_layers: 2,
            max_positions: CONTEXT,
            long_rope_above_tokens: Some(100),
            parameters: u64::from(VOCAB),
            weight_bytes_per_token: 4 * u64::from(VOCAB),
            synthetic: true,
        },
        provenance: Provenance {
            compiler_version: "toy".into(),
            options: vec![],
            source_hash: [0; 32],
            config: vec![],
        },
        tensors: vec![],
    }
}

pub fn write_toy(folder: &Path) -> PathBuf {
    write_toy_of(folder, &kernels())
}

/// The same with samplers that take no masks, as earlier artifacts have them.
pub fn write_toy_without_masks(folder: &Path) -> PathBuf {
    let mut kernels = kernels();
    for program in kernels.targets.iter_mut().flat_map(|target| &mut target.programs).filter(|program| program.samples)
    {
        let masks = program.dispatches.last_mut().and_then(|sampler| sampler.bindings.last_mut()).unwrap();
        // It is then not a buffer that is only read.
        masks.writes = true;
    }
    write_toy_of(folder, &kernels)
}

/// The same behind another target, first in the file, whose kernels expect an element of a matrix elsewhere than any device has it.
pub fn write_toy_behind_another_layout(folder: &Path) -> PathBuf {
    let mut kernels = kernels();
    let mut other = kernels.targets[0].clone();
    let pipeline = Pipeline { name: "fragments".into(), module: 7, bindings: 1, alternatives: Vec::new() };
    other.name = "other layout".into();
    other.fragments = Some(other.pipelines.len() as u32);
    other.pipelines.push(pipeline);
    other.modules = ModuleSet::pack([&modules(&[ONE_ELSEWHERE])[..]]).expect("memory for zstd");
    kernels.targets.insert(0, other);
    write_toy_of(folder, &kernels)
}

fn write_toy_of(folder: &Path, kernels: &Kernels) -> PathBuf {
    let path = folder.join("toy.unicorn");
    let mut writer = ArtifactWriter::create(&path, 2).unwrap();
    writer.begin_slice().unwrap();
    writer.weight_bytes(&vec![7; 4 * FIRST_SLICE_WORDS]).unwrap();
    writer.begin_slice().unwrap();
    let weights: Vec<u8> = (0..VOCAB).flat_map(|index| weight(index).to_le_bytes()).collect();
    writer.weight_bytes(&weights).unwrap();
    writer.finish(&meta(), &plan(), kernels, &TokenizerSection::default()).unwrap();
    path
}
