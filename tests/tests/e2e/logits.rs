//! Logits of whole prompts: against transformers, the reference, and the same model computed otherwise.

use std::collections::BTreeSet;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tests::launch::{device, device_matrices, skip_matrix_units};
use tests::models::{everything, models, one_of, tiny_models};
use tests::reference::{Reference, mean_kl_divergence, read_golden, relative_error};
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::{ArtifactView, MappedFile};
use unicorn_compiler::WeightsOption;
use unicorn_kernels::KvFormat;
use unicorn_runtime::Model;

use crate::built::*;

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

/// Decode of mixtures of experts as NVIDIA's kernels have it, with the choice of experts in the router's dispatch and the sum of their results in
/// that of their last matrix: against transformers, and with integer activations against the exported weights. Steps of one row each.
#[test]
fn mixtures_of_experts_in_steps_of_one_row() {
    let mixtures = [
        "qwen2-moe-shared-twice",
        "qwen3-moe",
        "gpt-oss",
        "deepseek-v3",
        "qwen35-moe-shared",
        "gemma4-moe",
        "glm4-moe-lite",
        "qwen2-moe-shared",
        "mixtral",
        "lfm2-moe",
        "olmoe",
    ];
    let taken = if everything() { mixtures.len() } else { 4 };
    for name in &mixtures[..taken] {
        let folder = models().join("tiny").join(name);
        let golden = read_golden(&folder);
        let rows = golden.tokens.len();
        let model = Built::of(&folder, Case { target: "nvidia", ..F16 }).load();
        let found = logits(&model, &golden.tokens, 1);
        assert_close(&format!("{name} in f16"), &found, &golden.logits, F16_TOLERANCE);
        let vocab = golden.logits.len() / rows;
        assert_greedy(&folder, &model, &golden.tokens, &golden.greedy, vocab);

        let built = Built::of(&folder, Case { target: "nvidia", group: group_of(&folder), ..INT4 });
        let expected_all = built.exported_logits(&golden.tokens);
        let found = logits(&built.load(), &golden.tokens, 1);
        let (found, expected) = closest_rows(&found, &expected_all, rows);
        assert_close(&format!("{name} with integer activations"), &found, &expected, INTEGER_TOLERANCE);
        // Without the choice of experts in the router's dispatch, where workgroups do not exchange data.
        let apart = logits(&Built::of(&folder, Case { group: group_of(&folder), ..INTEGER }).load(), &golden.tokens, 1);
        let (found, expected) = closest_rows(&apart, &expected_all, rows);
        assert_close(&format!("{name} with a choice apart"), &found, &expected, INTEGER_TOLERANCE);
        let text = |barriers| greedy(&built.try_load(1, barriers).expect("it loads"), &golden.tokens, 40);
        assert_eq!(text(false), text(true), "{name}: counters give the tokens that barriers give");
    }
}

/// Of the others' format and size, or a multiple of it, a shared expert is one of them, or several: no step has a dispatch for it alone, and
/// logits are those of the graph in which it has operations of its own.
#[test]
fn a_shared_expert_is_among_the_experts() {
    for name in ["qwen2-moe-shared-twice", "qwen35-moe-shared", "deepseek-v3"] {
        let folder = models().join("tiny").join(name);
        let tokens = read_golden(&folder).tokens;
        let (joined, plain) = (Built::of(&folder, INT4), Built::of(&folder, Case { fuse: false, ..INT4 }));
        assert_eq!(layers_with_own_shared_expert(&joined), [] as [String; 0], "{name}");
        assert_ne!(layers_with_own_shared_expert(&plain), [] as [String; 0], "{name}");
        let expected = logits(&plain.load(), &tokens, 0);
        let model = joined.load();
        for rows_of_step in [0, 1, 5] {
            let what = format!("{name} in steps of {rows_of_step}, against its plain graph");
            assert_close(&what, &logits(&model, &tokens, rows_of_step), &expected, SAME_TOLERANCE);
        }
    }
}

/// Layers whose experts have a matrix of a shared one beside them, in any program.
fn layers_with_own_shared_expert(built: &Built) -> Vec<String> {
    let file = MappedFile::open(&built.artifact()).expect("an artifact");
    let view = ArtifactView::parse(file.bytes()).expect("it was just written");
    let programs = view.kernels.targets.iter().flat_map(|target| &target.programs);
    let labels: BTreeSet<&str> =
        programs.flat_map(|program| &program.dispatches).map(|dispatch| &*dispatch.label).collect();
    let of_experts = labels.iter().filter_map(|label| label.split_once(".experts")).map(|(layer, _)| layer);
    let layers: BTreeSet<&str> = of_experts.collect();
    assert!(!layers.is_empty(), "experts have dispatches");
    let own = layers.into_iter().filter(|layer| labels.contains(&*format!("{layer}.down_proj")));
    own.map(str::to_owned).collect()
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

/// Widths that are multiples of no tile, one head or many, windows shorter than the text, tied or not. Of three families, one is
/// checked in f16, one in INT4, and one by its golden model alone.
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
        if seed % 3 == 0 || everything() {
            let expected = Reference::open(folder.path()).logits(&tokens);
            check("f16", logits(&Built::of(folder.path(), F16).load(), &tokens, 0), expected, F16_TOLERANCE);
        }
        if seed % 3 == 1 || everything() {
            let built = Built::of(folder.path(), INT4);
            check("int4", logits(&built.load(), &tokens, 0), built.exported_logits(&tokens), EXPORTED_TOLERANCE);
        }
    }
}

#[test]
fn any_chunking_gives_the_same_logits() {
    let names = ["gemma3-text", "mistral-window", "qwen3-qknorm", "phi3-longrope-long", "llama-odd-sizes", "qwen3-moe"];
    let later = ["glm", "glm4", "ministral3", "qwen35-delta", "gemma4-moe", "gemma4-layer-inputs"];
    for name in names.into_iter().chain(later).chain(["gpt-oss-mxfp4", "deepseek-v2", "lfm2"]) {
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
    for folder in one_of(4) {
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
