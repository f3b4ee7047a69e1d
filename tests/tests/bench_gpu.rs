//! The script that times a GPU, on the software device and a shape so small that its figures mean nothing: it finds its
//! programs, measures every kind of test and prints a table, unless a trained model's text is wrong on that device.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::models::models;
use tests::programs::program;

#[test]
fn the_script_measures_a_tiny_shape() {
    let bundle = bundle();
    let output = bundle.path().join("out");
    let mut script = Command::new(bundle.path().join("bench-gpu.sh"));
    script.args(["--shapes", "tiny", "--no-check", "-r", "1", "-p", "16", "-n", "4", "--depth", "4096", "-s", "1,3"]);
    script.args(["--batch-steps", "4", "--device"]).arg(device()).arg("--output").arg(&output);
    script.env("XDG_CACHE_HOME", bundle.path().join("cache"));
    let ran = script.output().expect("the script starts");
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{printed}{}", String::from_utf8_lossy(&ran.stderr));

    let json = std::fs::read_to_string(output.join("bench-gpu.json")).expect("the report was written");
    let json: Value = serde_json::from_str(&json).expect("it is JSON");
    let lines = json["lines"].as_array().expect("a list");
    let tests: Vec<(&str, u64)> = lines
        .iter()
        .map(|line| {
            let count = ["tokens", "depth", "sequences"].iter().find_map(|key| line[*key].as_u64());
            (line["test"].as_str().expect("a name"), count.expect("a size"))
        })
        .collect();
    // The model is made for 1024 tokens: 4 to warm up, 4 to measure, and what is left is the deepest.
    assert_eq!(tests, [("prefill", 16), ("decode", 0), ("decode", 1016), ("batch", 1), ("batch", 3)]);
    assert!(lines.iter().all(|line| line["ours_tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0)), "{json}");
    assert!(printed.contains("| tiny | 3 sequences |"), "{printed}");
    assert!(printed.contains("real weights on ") && !printed.contains("FAILED"), "{printed}");
    let left: Vec<_> =
        std::fs::read_dir(&output).expect("it is there").map(|one| one.expect("an entry").file_name()).collect();
    assert_eq!(left.len(), 2, "models and notes are gone: {left:?}");
}

/// As on a device whose kernels compute something else: here it is the expectation that is wrong.
#[test]
fn wrong_text_is_not_timed() {
    let bundle = bundle();
    let mut expected: Value = serde_json::from_str(&perplexity_json()).expect("it is JSON");
    expected["perplexity"] = (expected["perplexity"].as_f64().expect("a number") * 1.05).into();
    let file = bundle.path().join("perplexity.json");
    std::fs::remove_file(&file).expect("it is a link");
    std::fs::write(file, expected.to_string()).expect("a fresh folder takes files");
    let output = bundle.path().join("out");
    let mut script = Command::new(bundle.path().join("bench-gpu.sh"));
    script.args(["--shapes", "tiny", "--no-check", "--device"]).arg(device()).arg("--output").arg(&output);
    let ran = script.env("XDG_CACHE_HOME", bundle.path().join("cache")).output().expect("the script starts");
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(!ran.status.success(), "{printed}");
    assert!(printed.contains("FAILED") && printed.contains("no table") && !printed.contains("| tiny |"), "{printed}");
}

#[test]
fn unknown_options_are_errors() {
    let bundle = bundle();
    for (arguments, complaint) in [(["--shapes", "huge"], "shape is unknown: huge"), (["--fast", "1"], "--fast")] {
        let ran = Command::new(bundle.path().join("bench-gpu.sh")).args(arguments).output().expect("the script starts");
        let message = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && message.contains(complaint), "{message}");
    }
}

/// A bundle of this build's programs.
fn bundle() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let link = |from: &Path, to: &str| {
        std::os::unix::fs::symlink(from, folder.path().join(to)).expect("a fresh folder takes links");
    };
    let benches = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches");
    std::fs::create_dir(folder.path().join("bin")).expect("a fresh folder takes folders");
    for name in ["unicorn-compile", "unicorn-run"] {
        link(Path::new(program(name).get_program()), &format!("bin/{name}"));
    }
    link(&PathBuf::from(env!("CARGO_BIN_EXE_bench-gpu")), "bin/bench-gpu");
    link(&benches.join("bench-gpu.sh"), "bench-gpu.sh");
    link(&benches.join("shapes"), "shapes");
    link(&benches.join("perplexity.json"), "perplexity.json");
    link(&models(), "models");
    folder
}

fn perplexity_json() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/perplexity.json");
    std::fs::read_to_string(path).expect("it is committed")
}

fn device() -> String {
    std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into())
}
