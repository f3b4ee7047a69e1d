//! The whole runtime on a toy artifact: four kernels that use every kind of buffer, against the same sums on the CPU.
//!
//! The toy "attends" by adding up the cached values of what a row sees: one KV group keeps everything, the other a window.
//! Runs on llvmpipe unless UNICORN_DEVICE names another device; UNICORN_NO_GPU_TESTS=1 skips it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use artifacts::{
    ActivationPlan, ArtifactWriter, Binding, BufferRef, Dispatch, Kernels, KvGroupPlan, LogitsRows, MachinePlan, Meta,
    ModelMeta, Pipeline, Plan, Program, Provenance, SlicePlan, TargetKernels, TargetMatch, Tier, TokenizerSection,
    WeightPlan, step,
};
use runtime::{BatchRow, DeviceChoice, LoadError, LoadOptions, Model, RunError, Sampling, Way};

const VOCAB: u32 = 97;
const CONTEXT: u32 = 200;
const PAGE_TOKENS: u32 = 4;
const WINDOW: u32 = 10;
/// Two slices, the first longer than one piece of reading.
const FIRST_SLICE_WORDS: usize = (9 << 20) / 4;

#[test]
fn any_chunking_gives_the_twins_logits() {
    let Some(toy) = Toy::load(|_| ()) else { return };
    let tokens = prompt(150);
    let expected = twin(&tokens);
    for chunk in [0, 1, 3, 8, 150] {
        let mut session = toy.model.session().unwrap();
        session.set_chunk_tokens(chunk);
        let mut seen = 0;
        let mut check = |position: u32, logits: &[f32]| {
            assert_eq!(position, seen);
            assert_eq!(logits, expected[position as usize], "position {position}, chunks of {chunk}");
            seen += 1;
        };
        // A part goes in without logits, so that later rows read what other programs wrote.
        session.feed_with_logits(&tokens[..40], &mut check).unwrap();
        session.feed_with_logits(&tokens[40..], &mut check).unwrap();
        assert_eq!((seen, session.len_tokens()), (150, 150));
    }
    assert_no_validation_messages();
}

#[test]
fn drawn_tokens_follow_the_last_row_and_going_back_repeats_them() {
    let Some(toy) = Toy::load(|_| ()) else { return };
    let tokens = prompt(33);
    let mut session = toy.model.session().unwrap();
    let first = session.feed_and_sample(&tokens, &Sampling::default()).unwrap();
    let expected = twin(&tokens);
    assert_eq!(first.token, argmax(&expected[32]));
    assert_eq!(first.logit, expected[32][first.token as usize]);
    let second = session.feed_and_sample(&[first.token], &Sampling::default()).unwrap();
    assert!(session.take_gpu_seconds().is_none_or(|seconds| seconds < 60.0));

    session.truncate(33).unwrap();
    let again = session.feed_and_sample(&[first.token], &Sampling::default()).unwrap();
    assert_eq!(again.token, second.token);
    // The last of these steps begins at position 94 and sees 85 to 94.
    session.feed(&prompt(60)).unwrap();
    session.feed(&[3]).unwrap();
    let error = session.truncate(40).unwrap_err();
    assert!(matches!(error, RunError::Forgotten { len_tokens: 40, kept_from: 84 }), "{error}");
    session.clear();
    assert_eq!(session.feed_and_sample(&tokens, &Sampling::default()).unwrap().token, first.token);
}

#[test]
fn sampling_parameters_and_history_reach_the_kernel() {
    let Some(toy) = Toy::load(|_| ()) else { return };
    let mut session = toy.model.session().unwrap();
    // The toy counts as candidates: draws so far, tokens of history, and 1000 for LongRoPE's second set.
    let plain = session.feed_and_sample(&prompt(20), &Sampling::default()).unwrap();
    assert_eq!(plain.candidates, 0);
    let penalty = Sampling { repeat_penalty: 1.5, repeat_last_n: 7, ..Sampling::default() };
    assert_eq!(session.feed_and_sample(&[1], &penalty).unwrap().candidates, 1 + 7);
    session.feed(&prompt(80)).unwrap();
    assert_eq!(session.feed_and_sample(&[1], &Sampling::default()).unwrap().candidates, 2 + 1000);
    let error = session.feed_and_sample(&[1], &Sampling { top_p: 0.0, ..Sampling::default() }).unwrap_err();
    assert_eq!(error.to_string(), "top-p must be above 0 and at most 1, found 0");
}

/// Each draw feeds the next step on the device; the text, the penalty's history and the draws are those of single steps.
#[test]
fn generating_ahead_gives_what_single_steps_give() {
    let Some(toy) = Toy::load(|options| options.slots = 2) else { return };
    let sampling = Sampling { repeat_penalty: 1.5, repeat_last_n: 5, ..Sampling::default() };
    let [mut stepped, mut ahead] = [toy.model.session().unwrap(), toy.model.session().unwrap()];
    let first = stepped.feed_and_sample(&prompt(70), &sampling).unwrap();
    assert_eq!(ahead.feed_and_sample(&prompt(70), &sampling).unwrap(), first);
    for most in [1, 2, 7, 40] {
        let mut next = stepped.tokens().last().copied().unwrap() % VOCAB;
        let begun_with = next;
        let expected: Vec<_> = (0..most)
            .map(|_| {
                let sampled = stepped.feed_and_sample(&[next], &sampling).unwrap();
                next = sampled.token;
                sampled
            })
            .collect();
        let mut drawn = Vec::new();
        // One of the runs is broken off with a step under way.
        let limit = if most == 7 { 100 } else { most };
        let mut each = |sampled| {
            drawn.push(sampled);
            if drawn.len() as u32 == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        ahead.generate(begun_with, &sampling, limit, &mut each).unwrap();
        assert_eq!(drawn, expected, "{most} tokens");
        assert_eq!(ahead.tokens(), stepped.tokens());
    }
    // The context ends before anyone breaks off.
    let room = CONTEXT - ahead.len_tokens();
    let mut count = 0;
    let mut each = |_| {
        count += 1;
        ControlFlow::Continue(())
    };
    ahead.generate(1, &sampling, u32::MAX, &mut each).unwrap();
    assert_eq!((count, ahead.len_tokens()), (room, CONTEXT));
    assert_no_validation_messages();
}

#[test]
fn a_batch_gives_each_sequence_what_it_gets_alone() {
    let Some(toy) = Toy::load(|options| options.slots = 6) else { return };
    let sampling = Sampling { repeat_penalty: 1.5, repeat_last_n: 5, ..Sampling::default() };
    // Sequences of different lengths, some beyond the window and LongRoPE's limit.
    let lengths = [5, 30, 120];
    let sessions = || lengths.map(|_| toy.model.session().unwrap());
    let (mut alone, mut together) = (sessions(), sessions());
    for ((one, other), len) in alone.iter_mut().zip(&mut together).zip(lengths) {
        one.feed(&prompt(len)).unwrap();
        other.feed(&prompt(len)).unwrap();
    }
    for step in 0..12 {
        let token = 3 * step % VOCAB;
        let expected = alone.each_mut().map(|session| session.feed_and_sample(&[token], &sampling).unwrap());
        let mut rows = together.each_mut().map(|session| BatchRow { session, token, sampling: &sampling });
        assert_eq!(toy.model.decode_batch(&mut rows).unwrap(), expected, "step {step}");
    }
    assert_eq!(toy.model.batch_rows(), LOGITS_ROWS);
    assert_no_validation_messages();
}

#[test]
fn sessions_share_the_model_but_no_page() {
    let Some(toy) = Toy::load(|options| options.slots = 2) else { return };
    let (one, two) = (prompt(120), prompt(121)[1..].to_vec());
    let mut sessions = [toy.model.session().unwrap(), toy.model.session().unwrap()];
    assert!(matches!(toy.model.session(), Err(RunError::NoFreeSlot { slots: 2 })));
    let twins = [twin(&one), twin(&two)];
    for at in (0..120).step_by(5) {
        for ((session, tokens), twin) in sessions.iter_mut().zip([&one, &two]).zip(&twins) {
            let mut check = |position: u32, logits: &[f32]| assert_eq!(logits, twin[position as usize]);
            session.feed_with_logits(&tokens[at..at + 5], &mut check).unwrap();
        }
    }
    drop(sessions);
    toy.model.session().unwrap().feed(&prompt(CONTEXT)).unwrap();
}

#[test]
fn mistakes_of_callers_are_errors() {
    let Some(toy) = Toy::load(|_| ()) else { return };
    let mut session = toy.model.session().unwrap();
    let unknown = session.feed(&[VOCAB]).unwrap_err();
    assert_eq!(unknown.to_string(), "token id 97 is unknown: the vocabulary has 97 entries");
    let full = session.feed(&prompt(CONTEXT + 1)).unwrap_err();
    assert!(full.to_string().starts_with("context is full: 200 tokens, needs 201;"), "{full}");
    assert!(matches!(session.feed_and_sample(&[], &Sampling::default()), Err(RunError::NoTokens)));
    assert_eq!(session.len_tokens(), 0);
}

#[test]
fn a_changed_weight_is_found_unless_nobody_looks() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|word| word == 5000u32.to_le_bytes()).unwrap();
    bytes[at + 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let Some(options) = options() else { return };
    let error = Model::load(&path, &options, &mut |_, _| ()).err().unwrap();
    assert!(matches!(error, LoadError::Artifact { .. }) && error.to_string().contains("hash"), "{error}");
    let trusting = LoadOptions { verify_weights: false, ..options };
    assert!(Model::load(&path, &trusting, &mut |_, _| ()).is_ok());
}

#[test]
fn loading_reports_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let Some(options) = options() else { return };
    let mut last = (0, 0);
    let model = Model::load(&path, &options, &mut |done, total| last = (done, total)).unwrap();
    let weight_bytes = 4 * FIRST_SLICE_WORDS as u64 + 4 * u64::from(VOCAB);
    assert_eq!(last, (weight_bytes, weight_bytes));
    let report = model.report();
    assert_eq!((report.weight_bytes, report.target.as_str()), (weight_bytes, "toy"));
    assert!(report.memory.iter().map(|tier| tier.weights).sum::<u64>() >= weight_bytes);
    assert_eq!(model.context_tokens(), CONTEXT);

    let long = LoadOptions { context_tokens: Some(CONTEXT + 1), ..options.clone() };
    let error = Model::load(&path, &long, &mut |_, _| ()).err().unwrap().to_string();
    assert!(error.starts_with("context must be 1 to 200 tokens"), "{error}");
    let other = LoadOptions { target: Some("other".into()), ..options };
    let error = Model::load(&path, &other, &mut |_, _| ()).err().unwrap().to_string();
    assert!(error.ends_with("target toy: not other, which was asked for"), "{error}");
}

#[test]
fn every_way_of_loading_gives_the_same_model() {
    let tokens = prompt(20);
    let expected = twin(&tokens);
    for way in [None, Some(Way::Import), Some(Way::Map), Some(Way::Host), Some(Way::Staging)] {
        let Some(options) = options() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = write_toy(folder.path());
        let mut parts = Vec::new();
        let loaded = Model::load(&path, &LoadOptions { residency: way, ..options }, &mut |done, _| parts.push(done));
        let model = match loaded {
            // A device need not have them all; llvmpipe does.
            Err(LoadError::Residency { refusals, .. }) if !is_llvmpipe() => {
                eprintln!("skipped: {}", refusals.join("; "));
                continue;
            }
            other => other.unwrap_or_else(|error| panic!("{way:?}: {error}")),
        };
        assert!(parts.is_sorted() && parts.len() >= 3, "{way:?}: {parts:?}");
        let words = match way {
            Some(Way::Import) => "import of the mapped file",
            Some(Way::Host) => "imported memory",
            Some(Way::Staging) => "staging copies",
            _ => "",
        };
        assert!(model.report().way.contains(words), "{way:?}: {}", model.report().way);
        let mut session = model.session().unwrap();
        let mut check = |position: u32, logits: &[f32]| assert_eq!(logits, expected[position as usize], "{way:?}");
        session.feed_with_logits(&tokens, &mut check).unwrap();
    }
    assert_no_validation_messages();
}

#[test]
fn a_cache_of_pipelines_is_never_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let Some(options) = options() else { return };
    let load = |cache_folder: &std::path::Path| {
        let options = LoadOptions { cache_folder: Some(cache_folder.to_owned()), ..options.clone() };
        let model = Model::load(&path, &options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
        model.session().unwrap().feed(&prompt(20)).unwrap();
        model.report().pipelines.clone()
    };
    let caches = folder.path().join("caches");
    let first = load(&caches);
    let second = load(&caches);
    assert_eq!((first.pipelines, &first.note, &second.note), (second.pipelines, &None, &None));
    // Where the driver keeps anything at all, the second start finds everything.
    assert!(second.from_cache.is_none_or(|found| found == second.pipelines), "{second:?}");
    // A file where the folder should be: a word about it, and nothing else.
    let note = load(&path).note.expect("a note");
    assert!(note.contains("toy.unicorn"), "{note}");
}

fn is_llvmpipe() -> bool {
    std::env::var("UNICORN_DEVICE").is_ok_and(|name| name == "llvmpipe")
}

/// A loaded toy and the folder that it lies in.
struct Toy {
    model: Model,
    _folder: tempfile::TempDir,
}

impl Toy {
    fn load(change: impl FnOnce(&mut LoadOptions)) -> Option<Toy> {
        let mut options = options()?;
        change(&mut options);
        let folder = tempfile::tempdir().unwrap();
        let path = write_toy(folder.path());
        let model = Model::load(&path, &options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
        Some(Toy { model, _folder: folder })
    }
}

/// `None` skips: a machine without a device is a failure unless it says that it has none.
fn options() -> Option<LoadOptions> {
    if std::env::var_os("UNICORN_NO_GPU_TESTS").is_some() {
        eprintln!("skipped: UNICORN_NO_GPU_TESTS is set");
        return None;
    }
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let device: DeviceChoice = device.parse().unwrap();
    Some(LoadOptions { device, ..LoadOptions::default() })
}

fn assert_no_validation_messages() {
    assert_eq!(runtime::validation_messages(), 0, "the validation layer complained");
}

/// Tokens without a short period.
fn prompt(n_tokens: u32) -> Vec<u32> {
    (0..n_tokens).map(|i| (i * i + 3 * i + 1) % VOCAB).collect()
}

/// What the kernels below compute, one row a token.
fn twin(tokens: &[u32]) -> Vec<Vec<f32>> {
    let cached: Vec<u32> = tokens.iter().zip(1..).map(|(token, position)| (token + 1) * position).collect();
    let row = |end: usize| {
        let all: u32 = cached[..end].iter().sum();
        let window: u32 = cached[end.saturating_sub(WINDOW as usize)..end].iter().map(|value| value + 1).sum();
        (0..VOCAB).map(|v| ((all + 2 * window + weight(v) * 7) % VOCAB) as f32).collect()
    };
    (1..=tokens.len()).map(row).collect()
}

fn weight(index: u32) -> u32 {
    index * 13 + 5000
}

/// The last of the largest, as the kernel has it.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit >= logits[best] {
            best = index;
        }
    }
    best as u32
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
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) group: vec3u) {
    let s = group.x;
    if s >= step.header.n_samplers { return; }
    var best = 0u;
    for (var v = 1u; v < VOCAB; v++) {
        best = select(best, v, logits[s * STRIDE + v] >= logits[s * STRIDE + best]);
    }
    let sampler = step.samplers[s];
    let candidates = sampler.draw + sampler.n_history + 1000u * step.rows[s].rope_variant;
    output[(sampler.draw & 1u) * MAX_SAMPLERS + s] = Output(best, logits[s * STRIDE + best], candidates, 0u);
    if sampler.feeds == 1u {
        let position = step.rows[s].position + 1u;
        let long = select(0u, 1u, position + 1u > step.header.long_rope_above);
        step.rows[s] = Row(best, position, step.rows[s].sequence, long);
        step.samplers[s].draw += 1u;
        step.samplers[s].n_history = min(sampler.n_history + 1u, sampler.history_capacity);
    }
}";

const ARENA_PART_BYTES: u64 = 4 * step::MAX_ROWS as u64;
const LOGITS_ROWS: u32 = 8;
const STRIDE: u32 = 128;

fn spirv(source: &str, constants: &[(&str, u32)]) -> Vec<u32> {
    let constants: String = constants.iter().map(|(name, value)| format!("const {name} = {value}u;\n")).collect();
    let text = format!(
        "{}const PAGE_TOKENS = {PAGE_TOKENS}u;\nconst VOCAB = {VOCAB}u;\nconst STRIDE = {STRIDE}u;\n{constants}{source}",
        step::wgsl()
    );
    let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
    let info = naga::valid::Validator::new(Default::default(), Default::default()).validate(&module).unwrap();
    naga::back::spv::write_vec(&module, &info, &Default::default(), None).unwrap()
}

fn kernels() -> Kernels {
    let names = ["append 0", "append 1", "attend 0", "attend 1", "logits one", "logits all", "sample"];
    let modules = vec![
        spirv(APPEND, &[("GROUP", 0)]),
        spirv(APPEND, &[("GROUP", 1)]),
        spirv(ATTEND, &[("GROUP", 0), ("WINDOW", 1 << 20)]),
        spirv(ATTEND, &[("GROUP", 1), ("WINDOW", WINDOW)]),
        spirv(LOGITS, &[("ROWS", 1)]),
        spirv(LOGITS, &[("ROWS", LOGITS_ROWS)]),
        spirv(SAMPLE, &[]),
    ];
    let bindings = [3, 3, 3, 3, 5, 5, 3];
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
    ];
    let programs = shapes.map(|(rows, logits, batch)| program(rows, logits, batch)).to_vec();
    let matches = TargetMatch::default();
    Kernels {
        modules,
        targets: vec![TargetKernels { name: "toy".into(), matches, pipelines, programs, checksum: None }],
    }
}

fn program(rows: u32, logits: LogitsRows, batch: bool) -> Program {
    let samples = batch || logits == LogitsRows::One;
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
        barrier_before,
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
        let bindings = vec![state, whole(BufferRef::Logits, false), whole(BufferRef::Output, true)];
        let samplers = if logits == LogitsRows::One { 1 } else { rows };
        dispatches.push(dispatch(6, samplers, true, bindings));
    }
    Program { rows, logits, samples, batch, dispatches }
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
        provenance: Provenance { compiler_version: "toy".into(), options: vec![], source_hash: [0; 32] },
        tensors: vec![],
    }
}

fn write_toy(folder: &Path) -> PathBuf {
    let path = folder.join("toy.unicorn");
    let mut writer = ArtifactWriter::create(&path, 2).unwrap();
    writer.begin_slice().unwrap();
    writer.weight_bytes(&vec![7; 4 * FIRST_SLICE_WORDS]).unwrap();
    writer.begin_slice().unwrap();
    let weights: Vec<u8> = (0..VOCAB).flat_map(|index| weight(index).to_le_bytes()).collect();
    writer.weight_bytes(&weights).unwrap();
    let kernels = kernels();
    writer.finish(&meta(), &plan(), &kernels, &TokenizerSection::default()).unwrap();
    path
}
