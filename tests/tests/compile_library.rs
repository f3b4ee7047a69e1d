//! The compiler as a library: what a caller's mistakes and cancellations leave behind.

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use tests::compiled::{options, with};
use tests::models::models;
use unicorn_compiler::{
    CompileError, CompileOptions, Prediction, Progress, Silent, Source, Stage, compile, plan, target_by_name, targets,
};

fn generic() -> unicorn_compiler::CompileOptions {
    options(vec![target_by_name("generic").expect("a preset")], Vec::new())
}

fn files(folder: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.collect()
}

#[test]
fn a_model_is_not_replaced_by_its_artifact() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    tests::tiny_model::TinyModel::default().write(&model);
    for file in ["model.safetensors", "config.json"] {
        let output = model.join(file);
        let before = std::fs::read(&output).unwrap();
        let error = compile(Source::Model(&model), &output, &generic(), &mut Silent).unwrap_err().to_string();
        assert!(error.contains("belongs to the model"), "{error}");
        assert_eq!(std::fs::read(&output).unwrap(), before);
    }
}

#[test]
fn options_that_no_compile_can_be_made_with_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.unicorn");
    let model = models().join("tiny/llama-tied");
    for (option, options) in [
        ("group", with(generic(), |options| options.policy.group = 33)),
        ("targets", with(generic(), |options| options.targets.clear())),
        ("context_tokens", with(generic(), |options| options.context_tokens = Some(0))),
    ] {
        match compile(Source::Model(&model), &output, &options, &mut Silent) {
            Err(CompileError::Option { option: found, what }) => {
                assert_eq!(found, option);
                assert!(!what.contains("--"), "{what}");
            }
            other => panic!("{option}: {:?}", other.err()),
        }
    }
    assert!(files(folder.path()).is_empty());
}

/// Workgroups of attention hold the queries of several heads, in the memory that the target has.
#[test]
fn the_widest_heads_fit_every_target() {
    let folder = tempfile::tempdir().unwrap();
    let (config, output) = (folder.path().join("config.json"), folder.path().join("out.unicorn"));
    let small = |class: &str, rest: Value| {
        let mut config = json!({
            "architectures": [class], "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 320,
            "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        });
        config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        config
    };
    for shape in [
        // DeepSeek-V2-Lite's attention.
        small(
            "DeepseekV2ForCausalLM",
            json!({ "q_lora_rank": null, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32 }),
        ),
        small("LlamaForCausalLM", json!({ "head_dim": 512 })),
    ] {
        std::fs::write(&config, shape.to_string()).unwrap();
        let report = compile(Source::Synthetic(&config), &output, &options(targets(), Vec::new()), &mut Silent);
        report.unwrap_or_else(|error| panic!("{shape}: {error}"));
        std::fs::remove_file(&output).unwrap();
    }
}

/// Cancels when `stage` begins, or at its first advance.
struct BreakAt {
    stage: Stage,
    at_advance: bool,
    current: Option<Stage>,
}

impl Progress for BreakAt {
    fn stage(&mut self, stage: Stage, _total: u64) -> ControlFlow<()> {
        self.current = Some(stage);
        if stage == self.stage && !self.at_advance { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn advance(&mut self, _amount: u64) -> ControlFlow<()> {
        if self.current == Some(self.stage) && self.at_advance {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[test]
fn a_compile_that_is_cancelled_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.unicorn");
    std::fs::write(&output, "what was there").unwrap();
    let model = models().join("tiny/llama-tied");
    let stages = [Stage::Import, Stage::Plan, Stage::Kernels, Stage::Importance, Stage::Weights];
    let at_advance = stages.map(|stage| (stage, true));
    for (stage, at_advance) in
        stages.map(|stage| (stage, false)).into_iter().chain([(Stage::Write, false)]).chain(at_advance)
    {
        let mut progress = BreakAt { stage, at_advance, current: None };
        let result = compile(Source::Model(&model), &output, &generic(), &mut progress);
        assert!(matches!(result, Err(CompileError::Cancelled)), "{stage}: {:?}", result.err());
        assert_eq!(files(folder.path()), ["out.unicorn"], "{stage}");
        assert_eq!(std::fs::read(&output).unwrap(), b"what was there");
    }
}

/// Keeps the prediction; cancels there if requested.
#[derive(Default)]
struct Predicted {
    found: Option<Prediction>,
    stages: Vec<Stage>,
    is_enough: bool,
}

impl Progress for Predicted {
    fn stage(&mut self, stage: Stage, _total: u64) -> ControlFlow<()> {
        self.stages.push(stage);
        ControlFlow::Continue(())
    }

    fn planned(&mut self, prediction: &Prediction) -> ControlFlow<()> {
        self.found = Some(prediction.clone());
        if self.is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn an_artifact_is_about_as_long_as_was_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.unicorn");
    // Mostly weights, mostly tokenizer, mostly kernels.
    for model in ["gemma3-2m-draft", "tiny/llama-tied"] {
        let mut progress = Predicted::default();
        let alternatives = with(generic(), |options| options.alternatives = true);
        let report = compile(Source::Model(&models().join(model)), &output, &alternatives, &mut progress).unwrap();
        let predicted = progress.found.expect("a compile predicts");
        let off = predicted.artifact_bytes.abs_diff(report.artifact_bytes);
        assert!(
            off <= (report.artifact_bytes / 100).max(1 << 20),
            "{model}: {predicted:?}, found {}",
            report.artifact_bytes
        );
        assert_eq!((predicted.has_tokenizer, predicted.has_chat_template), (true, true), "{model}");
        assert!(predicted.free_bytes.is_some_and(|free| free > report.artifact_bytes));
    }
}

#[test]
fn a_prediction_comes_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.unicorn");
    let mut progress = Predicted { is_enough: true, ..Predicted::default() };
    let result = compile(Source::Model(&models().join("tiny/llama-tied")), &output, &generic(), &mut progress);
    assert!(matches!(result, Err(CompileError::Cancelled)));
    assert_eq!(progress.stages, [Stage::Import, Stage::Plan]);
    assert!(files(folder.path()).is_empty());
}

/// SmolLM2, compiled with default options: the kernels of every target are small beside 86 MiB of weights.
#[test]
fn kernels_are_small_beside_the_weights() {
    let shape = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/shapes/smollm2-135m.json");
    let planned = plan(Source::Synthetic(&shape), &CompileOptions::default(), &mut Silent).unwrap();
    let targets = planned.kernels(&mut Silent).unwrap().targets;
    let bytes: u64 = targets.iter().map(|target| target.modules.packed_bytes()).sum();
    assert!(
        targets.len() >= 8 && (1..=5_000_000).contains(&bytes),
        "{bytes} bytes of SPIR-V for {} targets",
        targets.len()
    );
}
