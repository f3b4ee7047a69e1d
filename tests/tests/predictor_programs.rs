//! The head that predicts the token behind the next one, as the programs use it: the text is the same with it and without it, and it is used unless
//! another way is named. llvmpipe unless `UNICORN_DEVICE` names another device.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tests::changed_weights::chain_with_head;
use tests::compiled::{Compiled, options, with};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;
use unicorn_compiler::CompileOptions;
use unicorn_spirv::target;

fn generic() -> CompileOptions {
    options(vec![target::by_name("generic").unwrap()], Vec::new())
}

/// A model whose head is always right, with it and without it.
static WITH: LazyLock<Compiled> = LazyLock::new(|| Compiled::of_folder(chain_with_head().path(), &generic()));
static WITHOUT: LazyLock<Compiled> = LazyLock::new(|| {
    Compiled::of_folder(chain_with_head().path(), &with(generic(), |options| options.predictor = false))
});

fn unicorn_run() -> Command {
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    command
}

fn output(artifact: &Path, options: &[&str]) -> Output {
    let mut command = unicorn_run();
    command.arg(artifact).args(["--raw", "--json", "--temp", "0", "-n", "60", "-p", "The island was"]).args(options);
    command.output().unwrap()
}

fn run(artifact: &Compiled, options: &[&str]) -> Value {
    let output = output(&artifact.artifact_path(), options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn drafted(answer: &Value) -> u64 {
    answer["draft_n"].as_u64().unwrap()
}

#[test]
fn the_text_is_the_same_with_it_and_without_it() {
    let expected = run(&WITHOUT, &[]);
    assert_eq!(drafted(&expected), 0);
    for (options, drafts) in [
        (&[][..], true),
        (&["--spec-type", "mtp", "--draft-max", "3"], true),
        (&["--spec-type", "none"], false),
        (&["--draft", "none"], false),
    ] {
        let answer = run(&WITH, options);
        assert_eq!(answer["tokens"], expected["tokens"], "{options:?}");
        assert_eq!(drafted(&answer) > 0, drafts, "{options:?}: {answer}");
        assert_eq!(answer["draft_n_accepted"].as_u64() > Some(0), drafts, "{options:?}: {answer}");
    }
    let refused = output(&WITHOUT.artifact_path(), &["--spec-type", "mtp"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && error.contains("has no MTP head, expected one for --spec-type mtp"),
        "{error}"
    );
}

#[test]
fn servers_use_it_of_one_model_and_of_several() {
    let text = run(&WITHOUT, &[])["text"].clone();
    let file = WITH.artifact_path();
    let (one, named) = (file.to_str().unwrap(), format!("a={}", file.display()));
    for (arguments, drafts) in [
        (&[one][..], true),
        (&["--model", &named], true),
        (&["--model", &named, "--spec-type", "mtp"], true),
        (&["--model", &named, "--draft", "none"], false),
        (&[one, "--deterministic"], false),
    ] {
        let mut command = unicorn_run();
        command.args(["serve", "--parallel", "2", "--ctx", "256"]).args(arguments);
        let server = Server::begin(command);
        let request = json!({"prompt": "The island was", "n_predict": 60, "temperature": 0});
        let answer = server.whole("/completion", &request);
        assert_eq!(answer["content"], text, "{arguments:?}");
        assert_eq!(answer["timings"]["draft_n"].as_u64().unwrap_or(0) > 0, drafts, "{arguments:?}: {answer}");
    }
}

/// What the plan, the report of a compile and an inspection say of it.
#[test]
fn its_bytes_are_shown() {
    let line = "of weights, of which a token without a draft reads";
    let model = models().join("tiny/qwen35-mtp");
    let shown = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let plan = shown(program("unicorn-compile").arg(&model).arg("--plan-only"));
    assert!(plan.contains("MTP head: ") && plan.contains(line), "{plan}");
    let without = shown(program("unicorn-compile").arg(&model).args(["--plan-only", "--no-mtp"]));
    assert!(!without.contains("MTP head"), "{without}");
    let inspected = shown(unicorn_run().arg("inspect").arg(WITH.artifact_path()));
    assert!(inspected.contains("MTP head ") && inspected.contains(line), "{inspected}");
    assert!(!shown(unicorn_run().arg("inspect").arg(WITHOUT.artifact_path())).contains("MTP head"));
}
