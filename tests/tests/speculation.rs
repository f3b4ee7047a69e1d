//! Speculation on whole models: the text is the same as without, greedy and sampled, whatever is proposed. llvmpipe unless
//! `UNICORN_DEVICE` names another device.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tests::compiled::{Compiled, options};
use tests::http::get;
use tests::known_texts::known_texts;
use tests::models::models;
use tests::programs::program;
use tests::server::Server;
use unicorn_runtime::{DeviceChoice, LoadOptions, Model, Sampling, Speculation};
use unicorn_spirv::target;
use unicorn_text::Tokenizer;

/// A trained model, which repeats a text that its prompt repeats.
static TRAINED: LazyLock<Compiled> = LazyLock::new(|| compile(&models().join("gemma3-2m-draft")));

/// The text into which that model falls: after it, all that is drafted from the prompt is right, whenever the measured times of
/// steps let a draft be tried.
const REPEATED: &str = "The captain was the ship, and the captain was the ship. The captain was the ship, and the captain was the ship. \
                        The captain was the ship, and the captain was the ship.";

fn compile(folder: &Path) -> Compiled {
    Compiled::of_folder(folder, &options(vec![target::by_name("llvmpipe").unwrap()], Vec::new()))
}

fn device() -> String {
    std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into())
}

fn load(compiled: &Compiled) -> Model {
    let options = LoadOptions::default().with(|options| options.device = DeviceChoice::Name(device()));
    Model::load(&compiled.artifact_path(), &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Tokens after `prompt`, and the numbers of accepted and of proposed draft tokens.
fn generate(
    model: &Model,
    prompt: &[u32],
    sampling: &Sampling,
    speculation: Option<&Speculation>,
    n_tokens: u32,
) -> (Vec<u32>, u64, u64) {
    let mut session = model.session().unwrap();
    session.set_speculation(speculation).unwrap();
    let first = session.feed_and_sample(prompt, sampling).unwrap().token;
    let rest = session.generate(first, sampling, n_tokens - 1).map(|sampled| sampled.unwrap().token);
    let tokens = std::iter::once(first).chain(rest).collect();
    let counts = session.take_draft_counts();
    (tokens, counts.accepted, counts.proposed)
}

#[test]
fn the_text_is_that_of_the_model_whatever_is_proposed() {
    let sampled = Sampling::default().with(|sampling| {
        (sampling.temperature, sampling.top_k, sampling.top_p) = (0.9, 50, 0.95);
        (sampling.repeat_penalty, sampling.seed) = (1.1, 11);
    });
    for name in ["gemma3-text", "mistral-window", "phi3-longrope-short", "qwen3-moe"] {
        let compiled = compile(&models().join("tiny").join(name));
        let model = load(&compiled);
        let prompt: Vec<u32> = (0..40_u32).map(|index| index * 37 % 250).collect();
        for sampling in [&Sampling::default(), &sampled] {
            let (expected, ..) = generate(&model, &prompt, sampling, None, 40);
            let known = known_texts(vec![[&prompt[..], &expected].concat()]);
            let (found, accepted, proposed) = generate(&model, &prompt, sampling, Some(&known), 40);
            assert_eq!(found, expected, "{name}, temperature {}", sampling.temperature);
            assert!(accepted >= 20 && accepted < proposed, "{name}: {accepted} of {proposed}");
        }
    }
}

#[test]
fn a_repeated_text_is_drafted_from_the_prompt() {
    let model = load(&TRAINED);
    let tokenizer = Tokenizer::new(model.tokenizer_section()).unwrap();
    let prompt = tokenizer.encode_prompt(REPEATED).unwrap();
    let sampling = Sampling::default();
    let (expected, ..) = generate(&model, &prompt, &sampling, None, 48);
    for adaptive in [false, true] {
        let ngram = Speculation::ngram(2).with(|one| one.adaptive = adaptive);
        let (found, accepted, proposed) = generate(&model, &prompt, &sampling, Some(&ngram), 48);
        assert_eq!(found, expected);
        assert!(accepted > 0 && proposed >= accepted, "{accepted} of {proposed}");
    }
}

/// A model drafts for itself: nearly all is accepted, beyond its window, and not at all for a model with another tokenizer.
#[test]
fn a_second_model_drafts() {
    let [model, draft] = [load(&TRAINED), load(&TRAINED)];
    let tokenizer = Tokenizer::new(model.tokenizer_section()).unwrap();
    let prompt = tokenizer.encode_prompt("The island was").unwrap();
    let sampling = Sampling::default();
    let (expected, ..) = generate(&model, &prompt, &sampling, None, 200);
    let speculation = draft.speculation_for(&model).unwrap().with(|one| one.adaptive = false);
    let (found, accepted, proposed) = generate(&model, &prompt, &sampling, Some(&speculation), 200);
    assert_eq!(found, expected);
    assert!(10 * accepted >= 9 * proposed && proposed > 150, "{accepted} of {proposed}");
    let other = compile(&models().join("tiny").join("gemma3-text"));
    let error = load(&other).speculation_for(&model).unwrap_err().to_string();
    assert!(error.ends_with("their tokenizers differ"), "{error}");
}

#[test]
fn programs_report_what_was_drafted() {
    let ngram = ["--spec-type", "ngram-simple", "--draft-max", "6"];
    let run = |options: &[&str]| -> Value {
        let mut command = program("unicorn-run");
        command
            .args(["-d", &device()])
            .arg(TRAINED.artifact_path())
            .args(["--raw", "--json", "--temp", "0", "-n", "40"]);
        let output = command.args(["-p", REPEATED]).args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (plain, speculative) = (run(&[]), run(&ngram));
    let path = TRAINED.artifact_path();
    let by_model = run(&["--model-draft", path.to_str().unwrap()]);
    assert_eq!(by_model["text"], plain["text"]);
    assert!(by_model["draft_n_accepted"].as_u64().unwrap() > 0, "{by_model}");
    assert_eq!((&plain["text"], &plain["draft_n"]), (&speculative["text"], &json!(0)));
    let accepted = speculative["draft_n_accepted"].as_u64().unwrap();
    assert!(accepted > 0 && speculative["draft_n"].as_u64().unwrap() >= accepted, "{speculative}");

    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", device());
    let arguments = ["--parallel", "2", "--ctx", "512", "--metrics"];
    let server = Server::start(command, &TRAINED.artifact_path(), &[&arguments[..], &ngram].concat());
    let request = json!({"prompt": REPEATED, "n_predict": 40, "temperature": 0});
    let answer = server.whole("/completion", &request);
    assert_eq!(answer["content"], plain["text"]);
    let timings = &answer["timings"];
    let (drafted, accepted) = (timings["draft_n"].as_u64().unwrap(), timings["draft_n_accepted"].as_u64().unwrap());
    assert!(accepted > 0 && drafted >= accepted, "{timings}");
    // Probabilities come from the same rows.
    let request = json!({"prompt": REPEATED, "n_predict": 40, "temperature": 0, "n_probs": 1});
    let with_probabilities = server.whole("/completion", &request);
    assert_eq!(with_probabilities["content"], plain["text"]);
    assert_eq!(with_probabilities["completion_probabilities"].as_array().unwrap().len(), 40);
    let metrics = get(&server.address, "/metrics").1;
    let figure = |name: &str| -> u64 {
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(&format!("llamacpp:spec_decode_num_{name}_total ")));
        line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
    };
    assert!(figure("drafts") > 1 && figure("draft_tokens") > drafted && figure("accepted_tokens") > accepted);
}
