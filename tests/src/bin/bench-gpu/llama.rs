//! The same shape as a random Q4_0 GGUF file, timed by llama-bench on llama.cpp's Vulkan backend.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::clock::Clock;
use crate::options::Options;
use crate::report::{Report, Test};
use crate::scratch::Scratch;

/// # Errors
/// In words; what was measured before stays in the report.
pub fn measure(options: &Options, clock: &Clock, llama: &Path, shape: &str, report: &mut Report) -> Result<(), String> {
    // llama-bench runs in another folder.
    let folder = options.output.canonicalize().map_err(|error| error.to_string())?;
    let model = Scratch { path: folder.join(format!("{shape}.gguf")) };
    let mut make = Command::new(options.program("random-gguf"));
    make.arg(options.config(shape)).arg(&model.path);
    clock.run(&mut make)?;
    let (p, n) = (options.prompt_tokens.to_string(), options.generated_tokens.to_string());
    let depth = report.deepest(shape).filter(|&depth| depth > 0).unwrap_or(u64::from(options.depth_tokens));
    for (prompt, depth) in [(p.as_str(), "0"), ("0", &depth.to_string())] {
        let mut bench = llama_bench(llama);
        bench.arg("-m").arg(&model.path).args(["-p", prompt, "-n", &n, "-d", depth]);
        bench.args(["-r", &options.repetitions.to_string(), "-fa", "1", "-ngl", "99", "-o", "json"]);
        if let Err(problem) = clock.run(&mut bench).and_then(|text| add(report, shape, &text)) {
            report.problem(shape, "llama.cpp", problem);
        }
    }
    Ok(())
}

/// llama-bench with its own loader and libraries, whatever this system has; it finds its backends in the folder it runs in.
fn llama_bench(llama: &Path) -> Command {
    let libraries = llama.join("lib");
    let mut search = libraries.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
        search.push(":");
        search.push(more);
    }
    // The driver's own libraries are the system's; a foreign loader does not find them.
    search.push(":/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu:/usr/lib64");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(search).arg(llama.join("llama-bench"));
    command.env_remove("LD_LIBRARY_PATH").current_dir(libraries);
    command
}

fn add(report: &mut Report, shape: &str, text: &str) -> Result<(), String> {
    let json: Value = serde_json::from_str(text).map_err(|error| format!("llama-bench printed no JSON: {error}"))?;
    let count = |run: &Value, key: &str| run[key].as_u64().unwrap_or_default();
    for run in json.as_array().into_iter().flatten() {
        let backend = run["backends"].as_str().unwrap_or_default();
        if !backend.contains("Vulkan") {
            return Err(format!("llama-bench ran on {backend}, expected Vulkan"));
        }
        let test = match (count(run, "n_prompt"), count(run, "n_gen")) {
            (tokens, 0) => Test::Prefill { tokens },
            (0, _) => Test::Decode { depth: count(run, "n_depth") },
            _ => continue,
        };
        let mut rates: Vec<f64> =
            run["samples_ts"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        rates.sort_by(f64::total_cmp);
        report.line(shape, test).llama_tokens_per_s = rates.get(rates.len() / 2).copied();
    }
    Ok(())
}
