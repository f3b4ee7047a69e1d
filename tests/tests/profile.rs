//! `unicorn-run profile` from outside: every dispatch of a real artifact gets a time, and rates where the artifact says
//! enough.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tests::compiled::{Compiled, options};
use tests::image_golden;
use tests::programs::program;
use tests::tiny_model::TinyModel;
use unicorn_compiler::WeightsOption;
use unicorn_runtime::{DeviceChoice, LoadOptions, Model};

#[test]
fn every_matrix_has_its_operations_counted() {
    let (_folder, path) = artifact();
    let load = LoadOptions::default().with(|options| {
        options.device = device();
        options.profile = true;
    });
    let model = Model::load(&path, &load).unwrap_or_else(|error| panic!("{error}"));
    let mut session = model.session().unwrap();
    session.feed(&[1, 2, 3]).unwrap();
    session.feed(&[4]).unwrap();
    let profiles = model.take_profiles();
    assert_eq!(profiles.iter().map(|step| step.rows).collect::<Vec<_>>(), [3, 1]);
    assert!(model.take_profiles().is_empty());
    for step in &profiles {
        assert_eq!(step.seconds.len(), step.dispatches.len());
        assert!(step.seconds.iter().sum::<f64>() <= step.wall_seconds);
        for dispatch in step.dispatches.iter().filter(|dispatch| dispatch.weight_bytes > 0) {
            match dispatch.flops_per_row {
                // Two flops a weight; padding of so small a matrix may double its bytes.
                Some(flops) => {
                    let bits_per_weight = 16.0 * dispatch.weight_bytes as f64 / flops as f64;
                    assert!((4.0..34.0).contains(&bits_per_weight), "{bits_per_weight} bits in {dispatch:?}");
                }
                None => assert_eq!(dispatch.kernel, "embed", "it multiplies by no matrix"),
            }
        }
    }
}

#[test]
fn without_profiling_no_profile_is_kept() {
    let (_folder, path) = artifact();
    let load = LoadOptions::default().with(|options| options.device = device());
    let model = Model::load(&path, &load).unwrap_or_else(|error| panic!("{error}"));
    model.session().unwrap().feed(&[1, 2, 3]).unwrap();
    assert!(model.take_profiles().is_empty());
}

#[test]
fn the_command_prints_a_table_or_json_and_writes_a_trace() {
    let (folder, path) = artifact();
    let trace = folder.path().join("trace.json");
    let printed = run(profile(&path).args(["--beside", "5", "--trace"]).arg(&trace));
    assert!(
        printed.contains("prefill: 9 tokens in ") && printed.contains("decode after 9 tokens: 2 tokens in 2 steps")
    );
    assert!(printed.contains("decode beside a prompt: 12 tokens in 2 steps"), "{printed}");
    assert!(printed.contains("o_proj") && printed.contains("TFLOP/s"), "{printed}");

    let json: Value = serde_json::from_str(&run(profile(&path).args(["--beside", "5", "--json"]))).unwrap();
    for phase in ["prefill", "decode", "beside_a_prompt"] {
        let kernels = json[phase]["kernels"].as_array().unwrap();
        let share: f64 = kernels.iter().map(|kernel| kernel["share"].as_f64().unwrap()).sum();
        assert!((share - 1.0).abs() < 1e-9, "{phase}: shares add up to {share}");
        let calls: u64 = kernels.iter().map(|kernel| kernel["calls"].as_u64().unwrap()).sum();
        assert_eq!(json[phase]["dispatches"].as_u64(), Some(calls));
    }

    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let steps = events.iter().filter(|event| event["cat"] == "step").count();
    assert!(steps >= 5 && events.iter().filter(|event| event["ph"] == "X").all(|event| event["dur"].is_number()));
}

#[test]
fn a_vision_tower_is_a_phase_of_its_own() {
    let model = image_golden::compiled("gemma3-vision", WeightsOption::Int8, true);
    let json: Value = serde_json::from_str(&run(profile(&model.artifact_path()).args(["--image", "--json"]))).unwrap();
    let kernels = json["image"]["kernels"].as_array().unwrap();
    assert!(kernels.iter().any(|kernel| kernel["role"] == "image attention"), "{json}");
    assert!(json["image"]["gpu_s"].as_f64().unwrap() > 0.0, "{json}");
    // A model of texts.
    let (_folder, path) = artifact();
    let output = profile(&path).arg("--image").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("rows of an image"), "{stderr}");
}

#[test]
fn statistics_of_kernels_are_the_drivers_or_refused_before_anything_is_timed() {
    let (_folder, path) = artifact();
    let output = profile(&path).args(["--json", "--kernel-statistics"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let expected = "reports no statistics, expected VK_KHR_pipeline_executable_properties";
        return assert!(stderr.contains(expected) && output.stdout.is_empty(), "{stderr}");
    }
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = json["kernel_statistics"].as_array().unwrap();
    let has_statistics = |one: &Value| !one["statistics"].as_object().unwrap().is_empty();
    assert!(found.iter().any(|one| one["kernel"] == "embed") && found.iter().all(has_statistics), "{json}");
}

#[test]
fn a_benchmark_writes_a_chart() {
    let (folder, path) = artifact();
    let bench = |plot: &Path| {
        let mut command = program("unicorn-run");
        command.arg("bench").arg(&path).args(["--device", &device_name(), "--plot"]).arg(plot);
        command.args(["-p", "0", "-n", "4", "-r", "1", "--depth", "0,16,32", "-s", "1,2"]);
        command
    };
    let chart = folder.path().join("chart.svg");
    assert!(run(&mut bench(&chart)).contains("decode"));
    let svg = std::fs::read_to_string(chart).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!(svg.matches("<circle").count(), 5, "a point for each case: {svg}");
    // Refused before anything is loaded or measured.
    let refused = bench(&folder.path().join("chart.png")).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("chart.png: charts are SVG, expected a name that ends in .svg"), "{stderr}");
    assert!(!stderr.contains("software device"), "{stderr}");
}

/// A tiny model's artifact.
fn artifact() -> (TempDir, PathBuf) {
    let model = TinyModel { layers: 2, max_position_embeddings: 128, ..Default::default() };
    let compiled = Compiled::of(&model, &options(unicorn_spirv::target::defaults(), vec![]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, compiled.artifact()).unwrap();
    (folder, path)
}

fn device_name() -> String {
    std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into())
}

fn device() -> DeviceChoice {
    let Ok(choice) = device_name().parse();
    choice
}

fn profile(path: &Path) -> Command {
    let mut command = program("unicorn-run");
    command.arg("profile").arg(path).args(["-p", "9", "-n", "2", "--device", &device_name()]);
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
