//! The examples of the libraries, run as their first lines say, on an artifact of a tiny model. Cargo builds them beside the test
//! programs: `cargo build --workspace --examples`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use tests::compiled::{Compiled, options};
use tests::models::models;
use tests::programs::program;

static MODEL: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
});

fn example(name: &str) -> Command {
    let mut command = program(&format!("examples/{name}"));
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    command
}

/// What an example prints about the model.
fn output(name: &str, arguments: &[&str]) -> String {
    let ran = example(name).arg(MODEL.artifact_path()).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn a_batch_samples_what_each_sequence_samples_alone() {
    let tokens = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let alone: Vec<u32> = serde_json::from_str(output("generate", &["2", "100"]).trim()).unwrap();
    assert_eq!(alone.len(), 16);
    let again: Vec<u32> = serde_json::from_str(output("generate", &["2", "100"]).trim()).unwrap();
    assert_eq!(again, alone);
    let batch = tokens(&output("batch", &["2", "100", "7"]));
    assert_eq!(batch.len(), 3);
    for (line, first) in batch.iter().zip(["2", "100", "7"]) {
        let sequence: Vec<u32> = serde_json::from_str(line).unwrap();
        assert_eq!((sequence.len(), sequence[0].to_string()), (16, first.to_owned()));
        let single: Vec<u32> = serde_json::from_str(output("generate", &[first]).trim()).unwrap();
        assert_eq!(sequence[1..], single[..15], "sequence of {first}");
    }
}

#[test]
fn a_stream_ends_when_it_is_cancelled() {
    assert_eq!(output("stream", &["2", "100"]).lines().count(), 8);
}

#[test]
fn logits_name_the_most_likely_token() {
    let text = output("logits", &["2", "100"]);
    let generated: Vec<u32> = serde_json::from_str(output("generate", &["2", "100"]).trim()).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert_eq!(text.lines().nth(1).unwrap(), format!("1: likeliest {}", generated[0]));
}

#[test]
fn inspect_lists_devices_and_what_the_model_takes() {
    let text = output("inspect", &[]);
    assert!(text.contains("device ") && text.contains("weight bytes") && text.contains("KV pages"), "{text}");
}

#[test]
fn a_chat_answers_each_line() {
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    std::fs::write(&lines, "Who lives on the island?\n").unwrap();
    let stdin = std::fs::File::open(&lines).unwrap();
    let ran = example("chat").arg(MODEL.artifact_path()).arg("20").stdin(stdin).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(text.trim_end().ends_with(')') && text.len() > 10, "{text}");
}

#[test]
fn compile_writes_an_artifact() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("out.unicorn");
    let ran = example("compile").arg(models().join("tiny/llama-tied")).arg(&made).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(text.contains("weights\n") && text.contains("LlamaForCausalLM: "), "{text}");
    assert!(unicorn_compiler::is_artifact(Path::new(&made)));
}
