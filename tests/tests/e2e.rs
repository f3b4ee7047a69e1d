//! Whole models on a device: against `transformers`' logits, against the reference on exported weights, and against themselves
//! computed in other ways (in chunks, unfused, for other targets). llvmpipe unless `UNICORN_DEVICE` names another device.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use unicorn_artifact::{ArtifactView, MappedFile, Program};
use unicorn_compiler::export;
use unicorn_compiler::{CompileOptions, Source, compile};
use unicorn_compiler::{FormatPolicy, WeightsOption};
use unicorn_kernels::KvFormat;

use tests::compiled::{Silent, options, with};
use tests::launch::{
    device, device_matrices, device_register_matrices, skip_matrix_units, without_what_the_device_lacks,
};
use tests::models::{everything, models, number, one_of, tiny_models};
use tests::reference::{Reference, mean_kl_divergence, read_golden, relative_error};
use tests::tiny_model::{Family, TinyModel};
use unicorn_runtime::{BatchRow, DeviceChoice, LoadError, LoadOptions, Model, Sampling, Session};
use unicorn_spirv::target::{self, GemmTuning, MatrixTuning, RegisterTuning, Target};

/// f16 weights and KV cache, everything else f32: three decimal digits of each factor, over a few layers.
const F16_TOLERANCE: f64 = 5e-3;
/// INT8 in groups of 32 on random weights, which forgive less than trained ones.
const INT8_TOLERANCE: f64 = 3e-2;
/// The same weights in f32 by the reference: what is left is the f16 KV cache.
const EXPORTED_TOLERANCE: f64 = 5e-3;
/// The same with int8 activations: half a step of 1/127 of each group's largest, over a few layers of random weights.
const INTEGER_TOLERANCE: f64 = 3e-2;
/// K and V as int8 codes: half a step of 1/127 of each head's largest, over a few layers of random weights.
const INT8_KV_TOLERANCE: f64 = 3e-2;
/// Two computations of the same int8 cache: a sum that differs in the last bit moves a code now and then to its neighbour.
const INT8_KV_SAME_TOLERANCE: f64 = 5e-3;
/// Only the order of sums differs.
const SAME_TOLERANCE: f64 = 1e-3;

/// How near two computations with the same weights must come. With int8 activations a sum that differs in the last bit moves a
/// code now and then to its neighbour, and after a few layers the two are as far apart as either is from f32.
fn same_tolerance(case: &Case) -> f64 {
    if case.target == INTEGER.target { INTEGER_TOLERANCE } else { SAME_TOLERANCE }
}

#[derive(Clone, Copy)]
struct Case {
    weights: WeightsOption,
    group: u32,
    fuse: bool,
    kv: KvFormat,
    target: &'static str,
    /// Where the device has matrices.
    gemms: Gemms,
    /// Cached tokens from which on the long-context program decodes, instead of the target's number.
    long_context_from: Option<usize>,
}

/// How operands reach the matrix units.
#[derive(Clone, Copy)]
enum Gemms {
    /// Through workgroup memory.
    Halves,
    /// Weights from registers, through workgroup memory.
    Registers,
    /// Directly from registers, on devices whose lanes hold fragments in that layout.
    Lanes,
}

const F16: Case = Case {
    weights: WeightsOption::F16,
    group: 32,
    fuse: true,
    kv: KvFormat::F16,
    target: "llvmpipe",
    gemms: Gemms::Halves,
    long_context_from: None,
};
const INT4: Case = Case { weights: WeightsOption::Int4, ..F16 };
/// A GPU's kernels, made for the subgroups of the device at hand.
const INTEGER: Case = Case { target: "rdna3", ..INT4 };

/// The same without workgroup memory.
fn directly_from_registers(matrices: MatrixTuning) -> MatrixTuning {
    let GemmTuning::Registers(tuning) = matrices.gemm else { unreachable!("from registers") };
    let gemm = GemmTuning::Registers(RegisterTuning { lanes_hold_fragments: true, ..tuning });
    MatrixTuning { gemm, ..matrices }
}

/// A compiled model folder; deleted when dropped.
struct Built {
    folder: tempfile::TempDir,
    source: PathBuf,
    case: Case,
}

impl Built {
    fn of(source: &Path, case: Case) -> Built {
        let built = Built { folder: tempfile::tempdir().expect("a folder"), source: source.to_owned(), case };
        compile(Source::Model(source), &built.artifact(), &built.options(), &mut Silent)
            .unwrap_or_else(|error| panic!("{} does not compile: {error}", source.display()));
        built
    }

    fn artifact(&self) -> PathBuf {
        self.folder.path().join("model.unicorn")
    }

    fn options(&self) -> CompileOptions {
        let policy = FormatPolicy { weights: self.case.weights, group: self.case.group };
        let mut requested = target::by_name(self.case.target).expect("a preset");
        if requested.integer_dot {
            requested = requested.for_any_device(device().subgroup_size);
            without_what_the_device_lacks(&mut requested);
            requested.shared_memory_bytes = requested.shared_memory_bytes.min(device().shared_memory_bytes as usize);
            requested.matrix = requested.matrix.and_then(|_| match self.case.gemms {
                Gemms::Halves => device_matrices(),
                Gemms::Registers => device_register_matrices(),
                Gemms::Lanes => device_register_matrices().map(directly_from_registers),
            });
        }
        if let (Some(tuning), Some(from_tokens)) = (&mut requested.decode_attention, self.case.long_context_from) {
            tuning.long_context.from_tokens = from_tokens;
        }
        // Generic as well, for devices that the requested target does not fit. It fits the software device.
        let is_needed = |generic: &Target| generic.name != requested.name && !device().name.contains("llvmpipe");
        let generic = target::by_name("generic").filter(is_needed);
        let targets = [requested].into_iter().chain(generic).collect();
        with(options(targets, Vec::new()), |options| {
            options.policy = policy;
            options.fuse = self.case.fuse;
            options.kv = self.case.kv;
        })
    }

    fn load(&self) -> Model {
        self.load_with_slots(1)
    }

    fn load_with_slots(&self, slots: u32) -> Model {
        let model = self
            .try_load(slots, false)
            .unwrap_or_else(|error| panic!("{} does not load: {error}", self.source.display()));
        // Compiled for any device with these subgroups, so it must have been chosen.
        let is_for_any = target::by_name(self.case.target).is_some_and(|target| target.integer_dot);
        assert!(!is_for_any || model.report().target == self.case.target, "it runs on {}", model.report().target);
        model
    }

    fn try_load(&self, slots: u32, barriers: bool) -> Result<Model, LoadError> {
        let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
        // However slow the device, decode has several steps in a submission.
        let multistep = Duration::MAX;
        let device = DeviceChoice::Name(device);
        // By name, it runs also where packed dot products take several instructions.
        let is_for_any = target::by_name(self.case.target).is_some_and(|target| target.integer_dot);
        let options = LoadOptions::default().with(|options| {
            options.device = device;
            options.target = is_for_any.then(|| self.case.target.into());
            options.slots = slots;
            options.multistep = multistep;
            options.barriers = barriers;
        });
        Model::load(&self.artifact(), &options)
    }

    /// Logits of the exported weights by the reference.
    fn exported_logits(&self, tokens: &[i32]) -> Vec<f32> {
        let folder = self.folder.path().join("exported");
        export(&self.source, &self.artifact(), &self.options(), &folder, &mut Silent).expect("it exports");
        Reference::open(&folder).logits(tokens)
    }
}

fn logits(model: &Model, tokens: &[i32], chunk_tokens: u32) -> Vec<f32> {
    let tokens: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
    let mut session = model.session().expect("a free slot");
    session.set_chunk_tokens(chunk_tokens);
    let mut all = Vec::new();
    session.feed_with_logits(&tokens, &mut |_, row| all.extend_from_slice(row)).expect("the steps run");
    all
}

fn greedy(model: &Model, prompt: &[i32], count: usize) -> Vec<u32> {
    let sampling = Sampling::default();
    let mut session = model.session().expect("a free slot");
    let mut next: Vec<u32> = prompt.iter().map(|&token| token as u32).collect();
    let mut samples = Vec::new();
    for _ in 0..count {
        let sampled = session.feed_and_sample(&next, &sampling).expect("the step runs");
        samples.push(sampled.token);
        next = vec![sampled.token];
    }
    samples
}

/// One format for a model, or all.
fn cases_of(folder: &Path) -> impl Iterator<Item = Case> {
    let cases = [F16, INT4, INTEGER];
    let only = cases[number(folder) % cases.len()];
    if everything() { cases.to_vec() } else { vec![only] }.into_iter()
}

/// A group size that the model keeps when other models are added.
fn group_of(folder: &Path) -> u32 {
    [32, 64, 128][number(folder) % 3]
}

fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f64) {
    let error = relative_error(expected, found);
    assert!(error <= tolerance, "{what}: relative error {error}, at most {tolerance}");
}

#[test]
fn f16_logits_and_greedy_text_are_those_of_transformers() {
    for folder in tiny_models() {
        let golden = read_golden(&folder);
        let model = Built::of(&folder, F16).load();
        let found = logits(&model, &golden.tokens, 0);
        assert_close(&format!("{} f16", folder.display()), &found, &golden.logits, F16_TOLERANCE);
        let vocab = golden.logits.len() / golden.tokens.len();
        assert_greedy(&folder, &model, &golden.tokens, &golden.greedy, vocab);
    }
}

/// The sampled tokens are the golden ones up to the first whose margin is within the error; after it texts may differ.
fn assert_greedy(folder: &Path, model: &Model, prompt: &[i32], expected: &[i32], vocab: usize) {
    let found = greedy(model, prompt, expected.len());
    let Some(differs) = found.iter().zip(expected).position(|(found, golden)| *found != *golden as u32) else { return };
    let so_far: Vec<i32> = prompt.iter().chain(&expected[..differs]).copied().collect();
    let reference = Reference::open(folder).logits(&so_far);
    let row = &reference[reference.len() - vocab..];
    let ours = logits(model, &so_far, 0);
    let worst = ours[ours.len() - vocab..].iter().zip(row).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let margin = row[expected[differs] as usize] - row[found[differs] as usize];
    assert!(margin <= 2.0 * worst, "{}: token {differs} differs, margin {margin}, error {worst}", folder.display());
}

/// llama.cpp's names, and its order of rows: experts are stacked there.
#[test]
fn a_gguf_file_has_the_logits_of_its_folder() {
    for file in std::fs::read_dir(models().join("gguf")).expect("tests/models/gguf") {
        let file = file.expect("an entry").path();
        let name = file.file_stem().expect("a name").to_str().expect("UTF-8");
        let golden = read_golden(models().join("tiny").join(name));
        let found = logits(&Built::of(&file, F16).load(), &golden.tokens, 0);
        assert_close(&format!("{name}.gguf"), &found, &golden.logits, F16_TOLERANCE);
    }
}

#[test]
fn int8_logits_are_close_to_transformers() {
    // What differs from f16 is the format, not the family.
    for folder in one_of(4) {
        let golden = read_golden(&folder);
        let model = Built::of(&folder, Case { weights: WeightsOption::Int8, ..F16 }).load();
        let found = logits(&model, &golden.tokens, 0);
        let (found, expected) = comparable_rows(&folder, found, golden.logits, golden.tokens.len());
        assert_close(&format!("{} int8", folder.display()), &found, &expected, INT8_TOLERANCE);
    }
}

#[test]
fn int4_logits_are_those_of_the_exported_weights() {
    for folder in one_of(3) {
        let golden = read_golden(&folder);
        let built = Built::of(&folder, Case { group: group_of(&folder), ..INT4 });
        let expected = built.exported_logits(&golden.tokens);
        let found = logits(&built.load(), &golden.tokens, 0);
        let (found, expected) = comparable_rows(&folder, found, expected, golden.tokens.len());
        assert_close(&format!("{} int4", folder.display()), &found, &expected, EXPORTED_TOLERANCE);
    }
}

#[test]
fn integer_activations_stay_close_to_the_exported_weights() {
    assert_close_to_exported("integer activations", INTEGER, 6);
}

#[test]
fn packed_dot_products_stay_close_to_the_exported_weights() {
    assert_close_to_exported("dot GEMMs", Case { target: "generic-dot", ..INTEGER }, 12);
}

#[test]
fn register_gemms_stay_close_to_the_exported_weights() {
    if device_matrices().is_none() {
        return skip_matrix_units();
    }
    assert_close_to_exported("register GEMMs", Case { gemms: Gemms::Registers, ..INTEGER }, 12);
}

/// llvmpipe's lanes hold other elements of a matrix than NVIDIA's, for which the kernels are.
#[test]
fn register_gemms_without_workgroup_memory_need_the_layout_of_fragments() {
    if device_matrices().is_none() {
        return skip_matrix_units();
    }
    let case = Case { gemms: Gemms::Lanes, ..INTEGER };
    if device().name.contains("NVIDIA") {
        return assert_close_to_exported("register GEMMs without workgroup memory", case, 6);
    }
    let built = Built::of(&tiny_models()[0], case);
    let error = built.try_load(1, false).err().expect("a device with other lanes").to_string();
    assert!(error.contains("otherwise than the kernels of target rdna3"), "{error}");
}

/// Tests one of `every` models.
fn assert_close_to_exported(what: &str, case: Case, every: usize) {
    for folder in one_of(every) {
        let golden = read_golden(&folder);
        let built = Built::of(&folder, Case { group: group_of(&folder), ..case });
        let expected = built.exported_logits(&golden.tokens);
        let what = format!("{} with {what}", folder.display());
        let found = logits(&built.load(), &golden.tokens, 0);
        let (found, expected) = comparable_rows(&folder, found, expected, golden.tokens.len());
        assert_close(&what, &found, &expected, INTEGER_TOLERANCE);
    }
}

/// All rows; of a model with experts, the [`closest_rows`].
fn comparable_rows(folder: &Path, found: Vec<f32>, expected: Vec<f32>, rows: usize) -> (Vec<f32>, Vec<f32>) {
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let has_experts = config.contains("\"num_experts");
    if has_experts { closest_rows(&found, &expected, rows) } else { (found, expected) }
}

/// Nine tenths of the rows, those that differ least. Where two experts are nearly as likely, an error within the tolerance chooses the other
/// one, and that token's logits and some of its successors' are those of another model.
fn closest_rows(found: &[f32], expected: &[f32], rows: usize) -> (Vec<f32>, Vec<f32>) {
    let vocab = found.len() / rows;
    let mut pairs: Vec<_> = found.chunks(vocab).zip(expected.chunks(vocab)).collect();
    pairs.sort_by(|a, b| relative_error(a.1, a.0).total_cmp(&relative_error(b.1, b.0)));
    pairs.truncate(rows * 9 / 10);
    let (found, expected): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    (found.concat(), expected.concat())
}

/// Whatever the cache's format, it does not matter in how many steps it was filled, nor which kernel filled it.
#[test]
fn an_int8_cache_stays_close_to_transformers() {
    for name in ["gemma2-softcap", "mistral-window", "llama-odd-sizes"] {
        let folder = models().join("tiny").join(name);
        let golden = read_golden(&folder);
        let case = Case { kv: KvFormat::Int8, ..F16 };
        let model = Built::of(&folder, case).load();
        let whole = logits(&model, &golden.tokens, 0);
        assert_close(&format!("{name} with an int8 cache"), &whole, &golden.logits, INT8_KV_TOLERANCE);
        assert_close(
            &format!("{name} in single steps"),
            &logits(&model, &golden.tokens, 1),
            &whole,
            INT8_KV_SAME_TOLERANCE,
        );
        let plain = Built::of(&folder, Case { fuse: false, ..case }).load();
        assert_close(&format!("{name} unfused"), &logits(&plain, &golden.tokens, 0), &whole, INT8_KV_SAME_TOLERANCE);
    }
}

/// Widths that are multiples of no tile, one head or many, windows shorter than the text, tied or not.
#[test]
fn random_shapes_of_every_family_agree_with_the_reference() {
    let mut rng = StdRng::seed_from_u64(11);
    for (seed, family) in Family::all().enumerate() {
        let kv_heads = rng.random_range(1..4usize);
        let windowed = matches!(
            family,
            Family::Mistral | Family::Gemma2 | Family::Gemma3 | Family::Olmo3 | Family::Ministral | Family::Ministral3
        );
        let shape = TinyModel {
            family,
            seed: seed as u64,
            vocab_size: rng.random_range(260..700),
            hidden: rng.random_range(20..150),
            intermediate: rng.random_range(20..200),
            layers: rng.random_range(1..4),
            heads: kv_heads * rng.random_range(1..10),
            kv_heads,
            head_dim: 2 * rng.random_range(4..40),
            tied: rng.random_range(0..2) == 1,
            sliding_window: (windowed || family == Family::GptOss).then(|| rng.random_range(3..40)),
            ..TinyModel::default()
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        shape.write(folder.path());
        let tokens: Vec<i32> = (0..75).map(|_| rng.random_range(0..shape.vocab_size as i32)).collect();
        let check = |format: &str, found: Vec<f32>, expected: Vec<f32>, tolerance: f64| {
            let (found, expected) = match family.facts().experts {
                Some(_) => closest_rows(&found, &expected, tokens.len()),
                None => (found, expected),
            };
            assert_close(&format!("{shape:?} {format}"), &found, &expected, tolerance);
        };
        // In f16, golden models are of every family.
        if seed % 3 == 0 || everything() {
            let expected = Reference::open(folder.path()).logits(&tokens);
            check("f16", logits(&Built::of(folder.path(), F16).load(), &tokens, 0), expected, F16_TOLERANCE);
        }
        if seed % 3 != 0 || everything() {
            let built = Built::of(folder.path(), INT4);
            check("int4", logits(&built.load(), &tokens, 0), built.exported_logits(&tokens), EXPORTED_TOLERANCE);
        }
    }
}

#[test]
fn any_chunking_gives_the_same_logits() {
    let names = ["gemma3-text", "mistral-window", "qwen3-qknorm", "phi3-longrope-long", "llama-odd-sizes", "qwen3-moe"];
    for name in
        names.into_iter().chain(["glm", "glm4", "ministral3", "qwen35-delta", "gemma4-moe", "gemma4-layer-inputs"])
    {
        let folder = models().join("tiny").join(name);
        let tokens = read_golden(&folder).tokens;
        for case in cases_of(&folder) {
            let model = Built::of(&folder, case).load();
            let whole = logits(&model, &tokens, 0);
            for chunk_tokens in [1, 3, 8, 17] {
                let what = format!("{name} in chunks of {chunk_tokens}");
                assert_close(&what, &logits(&model, &tokens, chunk_tokens), &whole, same_tolerance(&case));
            }
        }
    }
}

/// LongRoPE depends on the length of a whole prompt, also while a part of it is fed: what was fed as a short text is not its prefix.
#[test]
fn a_prompt_that_is_fed_in_parts_is_one_prompt() {
    let folder = models().join("tiny/phi3-longrope-long");
    let golden = read_golden(&folder);
    let tokens: Vec<u32> = golden.tokens.iter().map(|&token| token as u32).collect();
    let model = Built::of(&folder, F16).load();
    let above = model.meta().model.long_rope_above_tokens.expect("it is a LongRoPE") as usize;
    let first = above / 2;
    let vocab_size = model.meta().model.vocab_size as usize;
    let mut session = model.session().expect("a free slot");
    session.feed(&tokens[..first]).expect("the steps run");
    assert_eq!((session.common_start(&tokens), session.common_start(&tokens[..above])), (0, first as u32));
    assert_eq!(session.keep_common_start(&tokens), 0);
    session.feed_part(&tokens, first).expect("the steps run");
    assert_eq!((session.common_start(&tokens), session.common_start(&tokens[..above])), (first as u32, 0));
    let mut rest = Vec::new();
    session.feed_with_logits(&tokens[first..], &mut |_, row| rest.extend_from_slice(row)).expect("the steps run");
    assert_close("the rest of a prompt", &rest, &golden.logits[first * vocab_size..], F16_TOLERANCE);
}

/// What is merged differs by family, how it is multiplied by format.
#[test]
fn the_unfused_graph_gives_the_same_logits() {
    for folder in one_of(2) {
        let tokens = read_golden(&folder).tokens;
        for case in cases_of(&folder) {
            let fused = logits(&Built::of(&folder, case).load(), &tokens, 0);
            let plain = logits(&Built::of(&folder, Case { fuse: false, ..case }).load(), &tokens, 0);
            assert_close(&format!("{} unfused", folder.display()), &plain, &fused, same_tolerance(&case));
        }
    }
}

#[test]
fn the_generic_target_gives_the_same_logits() {
    for name in
        ["gemma2-softcap", "llama3-rope", "phi3-partial-rope", "llama-odd-sizes", "qwen25-heads-7-to-1", "mixtral"]
    {
        let folder = models().join("tiny").join(name);
        let tokens = read_golden(&folder).tokens;
        let own = logits(&Built::of(&folder, INT4).load(), &tokens, 0);
        let generic = logits(&Built::of(&folder, Case { target: "generic", ..INT4 }).load(), &tokens, 0);
        assert_close(&format!("{name} generic"), &generic, &own, SAME_TOLERANCE);
    }
}

/// Far beyond every window: pages of old tokens have been freed and used again.
#[test]
fn sliding_windows_agree_with_the_reference_beyond_their_length() {
    for name in ["gemma3-text", "mistral-window"] {
        let folder = models().join("tiny").join(name);
        let golden = read_golden(&folder);
        let vocab = (golden.logits.len() / golden.tokens.len()) as i32;
        let tokens: Vec<i32> = (0..300).map(|index| (index * 7919 + 13) % vocab).collect();
        let expected = Reference::open(&folder).logits(&tokens);
        let model = Built::of(&folder, F16).load();
        for chunk_tokens in [0, 1, 50] {
            assert_close(name, &logits(&model, &tokens, chunk_tokens), &expected, F16_TOLERANCE);
        }
    }
}

/// A trained model: INT4 text statistics stay near those of the exact weights.
#[test]
fn int4_of_a_trained_model_diverges_little() {
    let folder = models().join("gemma3-2m-draft");
    let golden = read_golden(&folder);
    let vocab = golden.logits.len() / golden.tokens.len();
    for case in [INT4, INTEGER] {
        let built = Built::of(&folder, case);
        let found = logits(&built.load(), &golden.tokens, 0);
        let exported = built.exported_logits(&golden.tokens);
        let own = mean_kl_divergence(&exported, &found, vocab);
        assert!(own <= 2e-3, "divergence from the exported weights is {own}");
        let quantised = mean_kl_divergence(&golden.logits, &found, vocab);
        // Measured 0.05 and less; a hidden size of 128 leaves a quantiser little to average over.
        assert!(quantised <= 0.1, "divergence from the exact weights is {quantised}");
    }
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let model = Built::of(&models().join("tiny/llama-tied"), INT4).load();
    let text = |seed: u64| -> Vec<u32> {
        let sampling = Sampling::default().with(|sampling| {
            sampling.temperature = 1.0;
            sampling.seed = seed;
        });
        let mut session = model.session().expect("a free slot");
        let mut next = vec![1u32, 5, 9];
        (0..16)
            .map(|_| {
                let token = session.feed_and_sample(&next, &sampling).expect("the step runs").token;
                next = vec![token];
                token
            })
            .collect()
    };
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8), "16 samples of a flat distribution");
}

/// Sequences of different lengths in one step, and samples that feed the next step on the device, against one token at a time.
#[test]
fn batches_and_generation_ahead_sample_what_single_steps_sample() {
    let sampling = Sampling::default().with(|sampling| {
        sampling.temperature = 0.7;
        sampling.top_k = 20;
        sampling.repeat_penalty = 1.2;
        sampling.seed = 3;
    });
    // The generic target splits attention, in batches too.
    let split = Case { target: "generic", ..INT4 };
    for (name, case) in [
        ("gemma3-text", INT4),
        ("mistral-window", split),
        ("phi3-longrope-short", INT4),
        ("llama-tied", INT4),
        ("gemma2-softcap", split),
        ("qwen3-moe", INT4),
        ("gemma4-moe", INT4),
        ("gemma4-layer-inputs", split),
        ("olmo2", INT4),
        ("ministral3", split),
        ("qwen35-delta", INT4),
    ] {
        let prompts: Vec<Vec<u32>> = [3usize, 40, 17, 64, 9]
            .map(|len| (0..len as u32).map(|index| (index * 37 + len as u32) % 250).collect())
            .to_vec();
        let model = Built::of(&models().join("tiny").join(name), case).load_with_slots(2 * prompts.len() as u32);
        let single = |session: &mut Session, prompt: &[u32]| -> Vec<u32> {
            let mut next = prompt.to_vec();
            let mut samples = Vec::new();
            for _ in 0..20 {
                let token = session.feed_and_sample(&next, &sampling).expect("the step runs").token;
                samples.push(token);
                next = vec![token];
            }
            samples
        };
        let expected: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| single(&mut model.session().expect("a free slot"), prompt)).collect();

        for (prompt, expected) in prompts.iter().zip(&expected) {
            let mut session = model.session().expect("a free slot");
            let mut samples = vec![session.feed_and_sample(prompt, &sampling).expect("the step runs").token];
            samples.extend(
                session.generate(expected[0], &sampling, 19).map(|sampled| sampled.expect("the step runs").token),
            );
            assert_eq!(samples, *expected, "{name} ahead");
        }

        let mut sessions: Vec<Session> = prompts.iter().map(|_| model.session().expect("a free slot")).collect();
        let firsts = sessions.iter_mut().zip(&prompts);
        let mut samples: Vec<Vec<u32>> = firsts
            .map(|(session, prompt)| vec![session.feed_and_sample(prompt, &sampling).expect("the step runs").token])
            .collect();
        while samples[0].len() < 20 {
            let newest: Vec<u32> = samples.iter().map(|samples| samples[samples.len() - 1]).collect();
            let rows = sessions.iter_mut().zip(newest);
            let rows = rows.map(|(session, token)| BatchRow { session, token, sampling: &sampling });
            let sampled = model.decode_batch(rows).expect("the step runs");
            samples.iter_mut().zip(&sampled).for_each(|(samples, sampled)| samples.push(sampled.token));
            // Then several, ahead, interrupted sooner or later.
            let rows = sessions.iter_mut().zip(&sampled);
            let rows = rows.map(|(session, sampled)| BatchRow { session, token: sampled.token, sampling: &sampling });
            let (end, most) = (2 * samples[0].len(), 20 - samples[0].len() as u32);
            for step in model.generate_batch(rows, most) {
                let sampled = step.expect("the step runs");
                samples.iter_mut().zip(&sampled).for_each(|(samples, sampled)| samples.push(sampled.token));
                if samples[0].len() == end {
                    break;
                }
            }
        }
        assert_eq!(samples, expected, "{name} in a batch");
    }
}

/// Steps in flight at the end of a text are discarded, whatever they wrote; the text continues beyond the end of a page, and with
/// a window that moves.
#[test]
fn an_interrupted_generation_continues_with_the_same_tokens() {
    let sampling = Sampling::default().with(|sampling| {
        sampling.temperature = 0.7;
        sampling.top_k = 20;
        sampling.repeat_penalty = 1.2;
        sampling.seed = 5;
    });
    for (name, case) in [
        ("mistral-window", INT4),
        ("gemma3-text", Case { target: "generic", ..INT4 }),
        // Steps in flight have changed its state, which is computed again.
        ("qwen35-delta", INT4),
    ] {
        let model = Built::of(&models().join("tiny").join(name), case).load();
        let begin = || {
            let mut session = model.session().expect("a free slot");
            let prompt: Vec<u32> = (0..58).map(|index| index * 37 % 250).collect();
            let first = session.feed_and_sample(&prompt, &sampling).expect("the steps run");
            (session, vec![first])
        };
        let (mut session, mut expected) = begin();
        while expected.len() < 16 {
            let newest = expected[expected.len() - 1].token;
            expected.push(session.feed_and_sample(&[newest], &sampling).expect("the step runs"));
        }
        drop(session);
        for n_taken in 1..=9 {
            let (mut session, mut samples) = begin();
            while samples.len() < expected.len() {
                let newest = samples[samples.len() - 1].token;
                let (end, most) = (samples.len() + n_taken, expected.len() - samples.len());
                let tokens = session.generate(newest, &sampling, most as u32).take(end - samples.len());
                samples.extend(tokens.map(|sampled| sampled.expect("the step runs")));
            }
            assert_eq!(samples, expected, "{name}, interrupted after {n_taken}");
        }
    }
}

/// Counter synchronisation against barriers: a dispatch that reads what the one before has not made visible continues with
/// another layer's activations, and the text differs. One sequence, whose norms are folded, and three at once.
#[test]
fn counters_give_the_tokens_that_barriers_give() {
    let built = Built::of(&models().join("gemma3-2m-draft"), Case { target: "nvidia", ..INT4 });
    let text = |barriers: bool| -> Vec<u32> {
        let model = built.try_load(3, barriers).expect("it loads");
        let mut sessions = [(); 3].map(|()| model.session().expect("a free slot"));
        let sampling = Sampling::default();
        let first = sessions[0].feed_and_sample(&[2, 100, 200, 300], &sampling).expect("the steps run").token;
        let mut samples = vec![first];
        samples
            .extend(sessions[0].generate(first, &sampling, 150).map(|sampled| sampled.expect("the step runs").token));
        let rows = sessions.each_mut().map(|session| BatchRow { session, token: first, sampling: &sampling });
        for step in model.generate_batch(rows, 50) {
            samples.extend(step.expect("the step runs").iter().map(|one| one.token));
        }
        samples
    };
    let with_barriers = text(true);
    for _ in 0..3 {
        assert_eq!(text(false), with_barriers);
    }
}

/// From some length on another program decodes, also in the middle of a generation. Logits of all rows come from programs that
/// do not depend on the length.
#[test]
fn a_long_sequence_switches_to_the_long_context_program() {
    const LONG_CONTEXT_FROM: usize = 20;
    let folder = models().join("tiny").join("llama-tied");
    let built = Built::of(&folder, Case { target: "nvidia", long_context_from: Some(LONG_CONTEXT_FROM), ..INT4 });
    let file = MappedFile::open(&built.artifact()).expect("it was just written");
    let view = ArtifactView::parse(file.bytes()).expect("the artifact is sound");
    let is_long_context = |program: &Program| program.from_tokens as usize == LONG_CONTEXT_FROM && program.samples;
    assert!(view.kernels.targets[0].programs.iter().any(is_long_context), "a program for long contexts");

    let model = built.load();
    let prompt: Vec<u32> = (0..LONG_CONTEXT_FROM as u32 - 6).map(|index| index * 37 % 250).collect();
    let sampling = Sampling::default();
    let mut session = model.session().expect("a free slot");
    let first = session.feed_and_sample(&prompt, &sampling).expect("the steps run");
    let mut samples = vec![first];
    samples.extend(session.generate(first.token, &sampling, 12).map(|sampled| sampled.expect("the step runs")));
    // Fed one by one, the program is chosen for each step.
    for _ in 0..3 {
        let newest = samples[samples.len() - 1].token;
        samples.push(session.feed_and_sample(&[newest], &sampling).expect("the step runs"));
    }
    drop(session);

    let all: Vec<i32> =
        prompt.iter().copied().chain(samples.iter().map(|one| one.token)).map(|one| one as i32).collect();
    let logits = logits(&model, &all[..all.len() - 1], 0);
    let vocab = logits.len() / (all.len() - 1);
    let rows = logits.chunks_exact(vocab).skip(prompt.len() - 1);
    let expected: Vec<f32> = rows.zip(&samples).map(|(row, one)| row[one.token as usize]).collect();
    let found: Vec<f32> = samples.iter().map(|one| one.logit).collect();
    assert_eq!((found.len(), expected.len()), (16, 16));
    assert_close("logits of the sampled tokens", &found, &expected, INTEGER_TOLERANCE);
    for (row, one) in logits.chunks_exact(vocab).skip(prompt.len() - 1).zip(&samples) {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        assert!(largest - one.logit <= 0.1 * largest.abs(), "{one:?} was sampled, the largest logit is {largest}");
    }
}
