//! What a person types in the first minutes with models that are not compiled yet: a GGUF file, this machine's own kernels, a model
//! without a tokenizer, a full disk.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::compiled::{Compiled, options};
use tests::models::models;
use tests::programs::program;
use tests::typed::{answer, cached, run, stderr, with_cache_on_small_disk};
use unicorn_artifact::{ArtifactView, MappedFile};
use unicorn_compiler::{Silent, Source, Target, plan, targets};
use unicorn_runtime::{DeviceKind, devices, misfit};
use unicorn_spirv::target;

const QUESTION: [&str; 9] = ["who", "lives", "on", "the", "island", "-n", "8", "--temp", "0"];

/// The artifact's targets.
fn targets_of(artifact: &Path) -> Vec<String> {
    let file = MappedFile::open(artifact).unwrap();
    let view = ArtifactView::parse(file.bytes()).unwrap();
    view.kernels.targets.iter().map(|target| target.name.clone()).collect()
}

/// With tokenizer and chat template, as llama.cpp's package writes it.
#[test]
fn a_gguf_file_or_the_folder_that_holds_it_gets_an_answer() {
    let (place, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = models().join("gemma3-2m-draft.Q8_0.gguf");
    std::fs::create_dir(place.path().join("downloaded")).unwrap();
    std::fs::copy(&file, place.path().join("tiny.gguf")).unwrap();
    std::fs::copy(&file, place.path().join("downloaded/tiny.gguf")).unwrap();
    std::fs::write(place.path().join("downloaded/README.md"), "# Tiny").unwrap();
    let ask = |model: &str, more: &[&str]| {
        let mut command = run(&[&[model], &QUESTION[..], more].concat());
        let output = command.current_dir(place.path()).env("XDG_CACHE_HOME", cache.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
    };
    let mut answers = Vec::new();
    for model in ["tiny.gguf", "downloaded"] {
        let (text, notes) = ask(model, &[]);
        assert!(text.trim().len() > 1, "{text:?}: {notes}");
        let announced = format!("compiling {model} for ");
        assert!(notes.starts_with(&announced) && notes.contains(", once: about "), "{notes}");
        assert!(notes.contains("compiled in "), "{notes}");
        let (again, notes) = ask(model, &[]);
        assert!(again == text && !notes.contains("compil"), "{again:?}, not {text:?}: {notes}");
        answers.push(text);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(cached(cache.path()).len(), 2, "one artifact of each: {:?}", cached(cache.path()));

    // The file's tokenizer and template make the same tokens as those of the folder that it was made of.
    let prefill = |model: &str| {
        let report: Value = serde_json::from_str(&ask(model, &["--json"]).0).unwrap();
        report["prefill_tokens"].as_u64().unwrap()
    };
    let folder = models().join("gemma3-2m-draft");
    assert_eq!(prefill("tiny.gguf"), prefill(folder.to_str().unwrap()));
}

/// The first target that fits each of this machine's devices: of hardware, where there is any.
fn native_targets() -> Vec<&'static str> {
    let mut found = devices().unwrap();
    if found.iter().any(|device| device.kind != DeviceKind::Cpu) {
        found.retain(|device| device.kind != DeviceKind::Cpu);
    }
    let first = |device| targets().into_iter().find(|target| misfit(&target.matches(), device).is_none());
    let fitting: Vec<&str> = found.iter().filter_map(first).map(|target| target.name).collect();
    targets().iter().map(|target| target.name).filter(|name| fitting.contains(name)).collect()
}

#[test]
fn native_compiles_for_this_machines_devices() {
    let (place, model) = (tempfile::tempdir().unwrap(), models().join("gemma3-2m-draft"));
    let native = native_targets();
    let compile = |arguments: &[&str]| {
        answer(program("unicorn-compile").args(arguments).current_dir(place.path()));
    };
    compile(&[model.to_str().unwrap(), "-o", "native.unicorn", "--target", "native"]);
    assert_eq!(targets_of(&place.path().join("native.unicorn")), native);

    let other = if native.contains(&"rdna3") { "gcn" } else { "rdna3" };
    compile(&[model.to_str().unwrap(), "-o", "other.unicorn", "--target", other]);
    compile(&["retarget", "other.unicorn", "--target", "native"]);
    let mut both = targets_of(&place.path().join("other.unicorn"));
    assert!(both.iter().any(|name| name == other), "{both:?}");
    both.retain(|name| name != other);
    assert_eq!(both, native);

    let ask = |artifact: &str| {
        let mut command = run(&[&[artifact], &QUESTION[..], &["--json"]].concat());
        let report: Value = serde_json::from_str(&answer(command.current_dir(place.path()))).unwrap();
        report["tokens"].clone()
    };
    // The tests' device may be software beside hardware.
    let is_tested = |target: &Target| misfit(&target.matches(), &tests::launch::device()).is_none();
    if targets().iter().any(|target| native.contains(&target.name) && is_tested(target)) {
        assert_eq!(ask("native.unicorn"), ask("other.unicorn"));
    }
}

#[test]
fn a_context_shorter_than_the_models_is_noted_with_the_remedy() {
    let (whole, folder) = (models().join("gemma3-2m-draft"), tempfile::tempdir().unwrap());
    for file in ["chat_template.jinja", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(whole.join(file), folder.path().join(file)).unwrap();
    }
    let config = std::fs::read_to_string(whole.join("config.json")).unwrap();
    let longer = config.replace("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 8192");
    assert_ne!(config, longer);
    std::fs::write(folder.path().join("config.json"), longer).unwrap();
    let kernels = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
    let compiled = Compiled::of_folder(folder.path(), &options(kernels, vec![]));
    let artifact = compiled.artifact_path();
    let notes = |more: &[&str]| {
        let output = run(&[&[artifact.to_str().unwrap()], &QUESTION[..], more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let is_software = tests::launch::device().kind == DeviceKind::Cpu;
    let expected =
        "context 4096 of the model's 8192 tokens, the default of software devices; -c 8192 gives the model's longest";
    assert_eq!(notes(&[]).lines().any(|line| line == expected), is_software, "{}", notes(&[]));
    // What the note says gives it, and a context that was asked for has no note.
    for context in ["8192", "64"] {
        let notes = notes(&["-c", context]);
        assert!(!notes.contains("of the model's"), "{notes}");
    }
}

/// Room for the weights is not enough.
#[test]
fn a_disk_too_small_for_the_artifact_is_named_before_the_work() {
    let (disk, model) = (tempfile::tempdir().unwrap(), models().join("gemma3-2m-draft"));
    let planned = plan(Source::Model(&model), &options(targets(), vec![]), &mut Silent).unwrap();
    let weights_bytes: u64 = planned.plan().slices.iter().map(|slice| slice.bytes).sum();
    let size = (weights_bytes + (64 << 10)).to_string();
    let Some(mut ask) = with_cache_on_small_disk(disk.path(), &size, 0, &program("unicorn-run")) else { return };
    let output = ask.arg(&model).args(QUESTION).output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for part in ["disk is too full, artifact needs about ", " free; ", " are missing", "XDG_CACHE_HOME"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(!message.contains("compiling "), "{message}");
}

/// The GGUF files beside the goldens have none.
#[test]
fn a_missing_tokenizer_is_named_before_the_work() {
    let (model, cache) = (models().join("gguf/granite.gguf"), tempfile::tempdir().unwrap());
    let model = model.to_str().unwrap();
    let in_cache = |mut command: Command| command.env("XDG_CACHE_HOME", cache.path()).output().unwrap();
    let refused = |arguments: &[&str]| {
        let output = in_cache(run(arguments));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("granite.gguf: model has no tokenizer, expected one that reads text"), "{message}");
        assert!(message.contains("`logits` and `bench` work without"), "{message}");
        assert!(!message.contains("compiling ") && !message.contains("software device"), "before the work: {message}");
    };
    refused(&[model, "Hello"]);
    refused(&["serve", model, "--port", "0"]);
    assert_eq!(cached(cache.path()), [""; 0]);

    let bench = in_cache(run(&["bench", model, "-p", "4", "-n", "2", "-r", "1"]));
    assert!(bench.status.success() && stderr(&bench).starts_with("compiling "), "{}", stderr(&bench));
    refused(&[model, "Hello"]);

    // unicorn-compile makes an artifact of it, and warns before kernels and weights.
    let output = cache.path().join("m.unicorn");
    let compiled = program("unicorn-compile").args([model, "--target", "generic", "-o"]).arg(output).output().unwrap();
    let notes = stderr(&compiled);
    let line = |part: &str| notes.lines().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{notes}"));
    assert!(compiled.status.success() && line("warning: model has no tokenizer") < line("kernels"), "{notes}");
}
