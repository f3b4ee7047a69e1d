//! A shape with random weights, timed by `unicorn-run bench`.

use std::process::Command;

use serde_json::Value;

use crate::clock::Clock;
use crate::options::Options;
use crate::report::{Report, Test};
use crate::scratch::Scratch;

/// Runs three commands, so that a slow one loses only its own figures.
///
/// # Errors
/// In words; what was measured before stays in the report.
pub fn measure(options: &Options, clock: &Clock, shape: &str, report: &mut Report) -> Result<(), String> {
    let artifact = Scratch { path: options.output.join(format!("{shape}.unicorn")) };
    let mut compile = Command::new(options.program("unicorn-compile"));
    compile.arg("--synthetic").arg(options.config(shape)).arg("-o").arg(&artifact.path);
    clock.run(&mut compile)?;
    let (p, n, depth) = (options.prompt_tokens, options.generated_tokens, options.depth_tokens);
    let steps = options.batch_tokens;
    let alone = ["-p", &p.to_string(), "-n", &n.to_string(), "--depth", "0"].map(String::from).to_vec();
    let at_depth = ["-p", "0", "-n", &n.to_string(), "--depth", &depth.to_string()].map(String::from).to_vec();
    let batches = ["-p", "0", "-n", &steps.to_string(), "-s", &options.sequences].map(String::from).to_vec();
    for arguments in [alone, at_depth, batches] {
        let mut bench = Command::new(options.program("unicorn-run"));
        bench.arg("bench").arg(&artifact.path).args(["--json", "-r", &options.repetitions.to_string()]).args(arguments);
        if let Some(device) = &options.device {
            bench.args(["--device", device]);
        }
        // If one batch does not fit, smaller ones may.
        if let Err(problem) = clock.run(&mut bench).and_then(|text| add(report, shape, &text)) {
            report.problem(shape, "ours", problem);
        }
    }
    Ok(())
}

fn add(report: &mut Report, shape: &str, text: &str) -> Result<(), String> {
    let json: Value = serde_json::from_str(text).map_err(|error| format!("bench printed no JSON: {error}"))?;
    let load = &json["loads"][0];
    report.device = load["device"].as_str().unwrap_or_default().into();
    report.target = load["target"].as_str().unwrap_or_default().into();
    report.read_bandwidth_gb_per_s = json["read_bandwidth_gb_per_s"].as_f64();
    for case in json["cases"].as_array().into_iter().flatten() {
        let number = |key: &str| case[key].as_f64();
        let count = |key: &str| case[key].as_u64().unwrap_or_default();
        let test = match case["test"].as_str() {
            Some("prefill") => Test::Prefill { tokens: count("tokens") },
            Some("decode") => Test::Decode { depth: count("depth_tokens") },
            Some("batch") => Test::Batch { sequences: count("sequences") },
            other => return Err(format!("bench has a test that is not known here: {other:?}")),
        };
        let line = report.line(shape, test);
        line.floor_tokens_per_s = number("floor_tokens_per_s");
        line.ours_tokens_per_s = number("tokens_per_s");
        line.ours_gpu_tokens_per_s = number("gpu_tokens_per_s");
        line.percent_of_floor = number("percent_of_floor");
    }
    Ok(())
}
