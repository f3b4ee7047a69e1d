//! `unicorn-run top` from outside, while a model generates: what is scraped is what is printed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::compiled::{Compiled, options};
use tests::http::get;
use tests::openmetrics::{Series, parse};
use tests::programs::{Watched, program};
use tests::tiny_model::TinyModel;

/// Updates by which a scrape may be late or early.
const LOOKS_ASIDE: usize = 4;

#[test]
fn metrics_are_the_figures_of_the_lines() {
    // Slow enough to be watched.
    let model =
        TinyModel { hidden: 256, intermediate: 1024, layers: 8, max_position_embeddings: 4096, ..Default::default() };
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    let compiled = Compiled::of(&model, &options(targets, vec![]));
    let machine = tempfile::tempdir().unwrap();
    write_machine(machine.path());
    let statuses = tempfile::tempdir().unwrap();

    let mut top = Watched::start(
        unicorn_run(statuses.path())
            .args(["top", "--json", "--interval-ms", "200", "--metrics", "127.0.0.1:0", "--root"])
            .arg(machine.path()),
    );
    let address = address(&mut top);
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let mut seeds = 5u32..;
    let mut speaker = || {
        let mut speaker = unicorn_run(statuses.path());
        let seed = seeds.next().expect("seeds do not end").to_string();
        speaker.arg(compiled.artifact_path()).args(["-p", "Once", "--device", &device, "--seed", &seed]);
        Watched::start(&mut speaker)
    };
    let mut speaking = speaker();

    let begin = Instant::now();
    let mut lines: Vec<Value> = Vec::new();
    let rate = loop {
        assert!(begin.elapsed() < Duration::from_secs(120), "no process was seen decoding: {lines:#?}");
        // It may sample its stop token early; with another seed, later.
        if speaking.child.try_wait().unwrap().is_some() {
            speaking = speaker();
        }
        lines.push(line(&mut top));
        let rate = &lines.last().unwrap()["processes"][0]["tokens_per_s"];
        if let Some(rate) = rate.as_f64() {
            break rate;
        }
    };
    assert!(rate > 0.0);
    let (head, body) = get(&address, "/metrics");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    let scraped = parse(&body).unwrap_or_else(|error| panic!("{error}\n{body}"));
    lines.extend((0..LOOKS_ASIDE).map(|_| line(&mut top)));
    let printed = |line: &Value| series_of(line) == scraped;
    assert!(lines.iter().any(printed), "{body}\nis none of {:#?}", &lines[lines.len() - LOOKS_ASIDE - 1..]);

    // The made-up card is there, with the figures that it reports and nothing else.
    let of_gpu: Vec<&str> =
        scraped.keys().map(|(name, _)| name.as_str()).filter(|name| name.contains("_gpu_")).collect();
    assert_eq!(of_gpu, ["unicorn_gpu_busy_ratio", "unicorn_gpu_vram_bytes", "unicorn_gpu_vram_used_bytes"]);
    assert!(scraped.keys().any(|(name, _)| name == "unicorn_tokens_per_second"), "{body}");
}

#[test]
fn a_place_that_is_taken_ends_it_with_a_clear_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let output = program("unicorn-run").args(["top", "-n", "1", "--metrics", &place]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.starts_with(&format!("error: cannot serve metrics at {place}: ")), "{error}");
    // Without a terminal it serves in silence.
    let output =
        program("unicorn-run").args(["top", "-n", "2", "--interval-ms", "100", "--metrics", "127.0.0.1:0"]).output();
    let output = output.unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn an_empty_top_names_the_folders_that_it_searched() {
    let folder = tempfile::tempdir().unwrap();
    let stderr = |change: &dyn Fn(&mut Command)| {
        let mut top = program("unicorn-run");
        change(top.args(["top", "--json", "-n", "1"]));
        let output = top.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let given = stderr(&|top| {
        top.env("XDG_RUNTIME_DIR", folder.path());
    });
    let expected = folder.path().join("unicorn");
    assert_eq!(given, format!("no status file of a running unicorn-run in {} (XDG_RUNTIME_DIR)\n", expected.display()));
    // The fallback is systemd's folder of the user, where there is one.
    let unset = stderr(&|top| {
        top.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", folder.path());
    });
    let is_known =
        unset.contains("in /run/user/") || unset.contains(&format!("in {}/unicorn-", folder.path().display()));
    assert!(is_known && unset.contains("(XDG_RUNTIME_DIR is not set; give both programs the same value"), "{unset}");
}

/// The series that stand for a line of `--json`.
fn series_of(line: &Value) -> BTreeMap<Series, f64> {
    let mut all = BTreeMap::new();
    let same: fn(f64) -> f64 = |value| value;
    let ratio: fn(f64) -> f64 = |percent| percent / 100.0;
    let hertz: fn(f64) -> f64 = |mhz| mhz * 1e6;
    let mut put = |name: &str, labels: &[(&str, &str)], value: &Value, of: fn(f64) -> f64| {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        all.extend(value.as_f64().map(|value| ((format!("unicorn_{name}"), labels), of(value))));
    };
    for (number, gpu) in line["gpus"].as_array().unwrap().iter().enumerate() {
        let labels = [("gpu", number.to_string()), ("name", gpu["name"].as_str().unwrap().to_owned())];
        let labels = labels.each_ref().map(|(name, value)| (*name, value.as_str()));
        for (name, key, of) in [
            ("gpu_busy_ratio", "busy_percent", ratio),
            ("gpu_vram_used_bytes", "vram_used_bytes", same),
            ("gpu_vram_bytes", "vram_bytes", same),
            ("gpu_gtt_used_bytes", "gtt_used_bytes", same),
            ("gpu_gtt_bytes", "gtt_bytes", same),
            ("gpu_core_clock_hertz", "core_mhz", hertz),
            ("gpu_memory_clock_hertz", "memory_mhz", hertz),
            ("gpu_power_watts", "power_w", same),
            ("gpu_temperature_celsius", "temperature_c", same),
        ] {
            put(name, &labels, &gpu[key], of);
        }
    }
    for process in line["processes"].as_array().unwrap() {
        let pid = process["pid"].to_string();
        let text = |key: &str| process[key].as_str().unwrap();
        let labels = [("pid", pid.as_str()), ("model", text("model")), ("device", text("device"))];
        for (name, key, of) in [
            ("tokens_per_second", "tokens_per_s", same),
            ("tokens_total", "tokens", same),
            ("kv_used_pages", "kv_pages_used", same),
            ("kv_pages", "kv_pages", same),
            ("queue_requests", "queue", same),
            ("process_vram_bytes", "vram_bytes", same),
            ("process_gtt_bytes", "gtt_bytes", same),
            ("process_gpu_ratio", "gpu_percent", ratio),
        ] {
            put(name, &labels, &process[key], of);
        }
        for state in ["prefill", "decode", "idle"] {
            let labels = [labels.as_slice(), &[("unicorn_doing", state)]].concat();
            put("doing", &labels, &u32::from(text("doing") == state).into(), same);
        }
    }
    all
}

/// A root folder with this machine's processes and a card that reports little.
fn write_machine(root: &Path) {
    std::os::unix::fs::symlink("/proc", root.join("proc")).unwrap();
    let card = root.join("sys/class/drm/card0/device");
    fs::create_dir_all(&card).unwrap();
    for (file, text) in
        [("mem_info_vram_total", "1024\n"), ("mem_info_vram_used", "512\n"), ("gpu_busy_percent", "50\n")]
    {
        fs::write(card.join(file), text).unwrap();
    }
}

fn unicorn_run(statuses: &Path) -> Command {
    let mut command = program("unicorn-run");
    command.env("XDG_RUNTIME_DIR", statuses);
    command
}

/// The address of metrics that it prints.
fn address(top: &mut Watched) -> String {
    let line = top.stderr_line();
    let address = line.trim().strip_prefix("serving metrics at http://").and_then(|rest| rest.strip_suffix("/metrics"));
    address.unwrap_or_else(|| panic!("{line}")).to_owned()
}

fn line(top: &mut Watched) -> Value {
    let line = top.stdout_line();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}
