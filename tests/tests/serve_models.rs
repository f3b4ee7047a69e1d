//! `unicorn-run serve` with several models, from outside: each is loaded when it is named, and unloaded when others need the memory.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use tests::compiled::{Compiled, options, with};
use tests::http::{begin_post, get, post};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;
use tests::tiny_model::TinyModel;
use tests::typed::run;
use unicorn_compiler::{FormatPolicy, WeightsOption};

const TEXT: &str = "/v1/completions";
const PATIENCE: Duration = Duration::from_secs(60);

static INT4: LazyLock<Compiled> = LazyLock::new(|| compiled(WeightsOption::Int4));
/// Other weights, and so other texts.
static F16: LazyLock<Compiled> = LazyLock::new(|| compiled(WeightsOption::F16));

fn compiled(weights: WeightsOption) -> Compiled {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    let options = with(options(targets, vec![]), |options| options.policy = FormatPolicy { weights, group: 32 });
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options)
}

/// Serves `int4` and `f16`, in this order.
fn start(arguments: &[&str]) -> Server {
    let mut command = run(&[]);
    command.args(["serve", "--parallel", "2", "--ctx", "256"]).args(arguments);
    for (name, model) in [("int4", &*INT4), ("f16", &*F16)] {
        command.arg("--model").arg(format!("{name}={}", model.artifact_path().display()));
    }
    Server::begin(command)
}

/// What `unicorn-run` prints for one alone.
fn alone(model: &Compiled, prompt: &str) -> String {
    let mut command = run(&[]);
    command.arg(model.artifact_path()).args(["--raw", "-p", prompt, "-n", "16", "--temp", "0", "--json"]);
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["text"].as_str().expect("a text").to_owned()
}

fn request(model: Option<&str>, prompt: &str) -> Value {
    let mut request = json!({"prompt": prompt, "max_tokens": 16, "temperature": 0});
    if let Some(model) = model {
        request["model"] = model.into();
    }
    request
}

fn text(server: &Server, model: Option<&str>, prompt: &str) -> (String, String) {
    let answer = server.whole(TEXT, &request(model, prompt));
    let field = |value: &Value| value.as_str().expect("a text").to_owned();
    (field(&answer["model"]), field(&answer["choices"][0]["text"]))
}

/// The list's entry of each model.
fn states(server: &Server) -> Vec<(String, String)> {
    let (head, body) = get(&server.address, "/v1/models");
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}\n{body}");
    let list: Value = serde_json::from_str(&body).expect("JSON");
    let field = |value: &Value| value.as_str().expect("a text").to_owned();
    let models = list["data"].as_array().expect("a list").iter();
    models.map(|model| (field(&model["id"]), field(&model["status"]["value"]))).collect()
}

fn is(states: &[(String, String)], expected: [&str; 2]) -> bool {
    states.iter().map(|(name, state)| (name.as_str(), state.as_str())).eq(["int4", "f16"].into_iter().zip(expected))
}

/// Polls until the models are in these states.
fn expect_states(server: &Server, expected: [&str; 2]) {
    let begun = Instant::now();
    loop {
        let found = states(server);
        if is(&found, expected) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "expected {expected:?}, found {found:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// More requests than places, for both models at once: each waits for its turn, and none fails.
#[test]
fn models_that_are_named_take_turns_in_one_place() {
    let server = start(&["--models-max", "1"]);
    assert!(is(&states(&server), ["unloaded", "unloaded"]));
    let prompts = ["Once upon a time", "The sea", "He said that"];
    let expected = [("int4", &*INT4), ("f16", &*F16)]
        .map(|(name, model)| prompts.map(|prompt| (name.to_owned(), alone(model, prompt))));
    assert_ne!(expected[0].each_ref().map(|one| &one.1), expected[1].each_ref().map(|one| &one.1));
    thread::scope(|scope| {
        for expected in expected.iter().flatten().zip(prompts.into_iter().cycle()) {
            let server = &server;
            scope.spawn(move || {
                let ((name, _), prompt) = expected;
                assert_eq!(text(server, Some(name), prompt), *expected.0, "{prompt}");
            });
        }
    });
    let loaded = states(&server).iter().filter(|(_, state)| state == "loaded").count();
    assert_eq!(loaded, 1);
    assert!(server.stderr().contains(" is unloaded"), "{}", server.stderr());
}

#[test]
fn sandboxed_models_are_loaded_and_nothing_else_is_opened() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = run(&[]);
    command.env("XDG_RUNTIME_DIR", folder.path()).args(["serve", "--ctx", "256", "--models-max", "1", "--sandbox"]);
    for (name, model) in [("int4", &*INT4), ("f16", &*F16)] {
        command.arg("--model").arg(format!("{name}={}", model.artifact_path().display()));
    }
    let server = Server::begin(command);
    // Each is loaded behind the sandbox, the first one twice.
    for (name, model) in [("int4", &*INT4), ("f16", &*F16), ("int4", &*INT4)] {
        assert_eq!(text(&server, Some(name), "The sea").1, alone(model, "The sea"));
    }
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.child.id())).expect("it runs") {
        let status = std::fs::read_to_string(thread.expect("a thread").path().join("status")).expect("it runs");
        assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"), "{status}");
    }
    let status = folder.path().join(format!("unicorn/{}-0.json", server.child.id()));
    assert!(status.exists(), "`top` finds the model that is loaded");
}

#[test]
fn a_request_without_a_name_gets_the_first_and_a_wrong_name_the_list() {
    let server = start(&[]);
    assert_eq!(text(&server, None, "The sea").0, "int4");
    assert_eq!(text(&server, Some("f16:latest"), "The sea").0, "f16");
    assert!(is(&states(&server), ["loaded", "loaded"]));
    let (head, body) = post(&server.address, TEXT, &request(Some("f61"), "The sea").to_string());
    assert!(head.starts_with("HTTP/1.0 404 "), "{head}");
    let error: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(error["error"]["code"], "model_not_found");
    assert!(error["error"]["message"].as_str().unwrap().contains("int4, f16"), "{body}");
    let (head, body) = get(&server.address, "/props?model=f16");
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}\n{body}");
    assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON")["model_alias"], "f16");
}

#[test]
fn an_idle_model_is_unloaded_and_a_pinned_one_stays() {
    let server = start(&["--sleep-idle-seconds", "1", "--pin", "f16"]);
    // Before any request.
    expect_states(&server, ["unloaded", "loaded"]);
    let first = text(&server, Some("int4"), "The sea");
    expect_states(&server, ["unloaded", "loaded"]);
    assert_eq!(text(&server, Some("int4"), "The sea"), first);
    let named = json!({"model": "f16"}).to_string();
    assert!(post(&server.address, "/models/unload", &named).0.starts_with("HTTP/1.0 200 "));
    expect_states(&server, ["unloaded", "unloaded"]);
    assert!(post(&server.address, "/models/load", &named).0.starts_with("HTTP/1.0 200 "));
    assert!(states(&server).contains(&("f16".into(), "loaded".into())));
}

/// There are places for four models, and memory for one: that of a software device is the process's, whose address space is limited.
#[test]
fn a_model_that_does_not_fit_takes_the_place_of_another() {
    // Less than a KV cache, which has 1 GiB, and more than loading takes besides.
    const FREE_BYTES: u64 = 512 << 20;
    let targets = || vec![unicorn_spirv::target::by_name("llvmpipe").expect("a target")];
    let compiled = [1, 2].map(|seed| {
        let shape = TinyModel {
            layers: 4,
            heads: 8,
            kv_heads: 8,
            head_dim: 128,
            max_position_embeddings: 16_384,
            ..TinyModel::default()
        };
        Compiled::of(&TinyModel { seed, ..shape }, &options(targets(), vec![]))
    });
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", "llvmpipe").args(["serve", "--parallel", "4", "--ctx", "16384"]);
    for (name, model) in ["int4", "f16"].iter().zip(&compiled) {
        command.arg("--model").arg(format!("{name}={}", model.artifact_path().display()));
    }
    let server = Server::begin(command);
    let ask = |name: &str| text(&server, Some(name), "The sea").1;
    let expected = [ask("int4"), ask("f16")];
    assert!(is(&states(&server), ["loaded", "loaded"]), "without a limit, both fit");
    assert!(post(&server.address, "/models/unload", r#"{"model": "f16"}"#).0.starts_with("HTTP/1.0 200 "));
    expect_states(&server, ["loaded", "unloaded"]);

    let limit = Some(server.figure("VmSize") + FREE_BYTES);
    let process = Pid::from_raw(server.child.id() as i32);
    prlimit(process, Resource::As, Rlimit { current: limit, maximum: limit }).expect("a lower limit is permitted");
    assert_eq!(ask("f16"), expected[1]);
    assert!(is(&states(&server), ["unloaded", "loaded"]));
    assert_eq!(ask("int4"), expected[0]);
    assert!(is(&states(&server), ["loaded", "unloaded"]));
}

/// Running requests are not cut for a model that waits.
#[test]
fn a_stream_ends_before_its_model_is_unloaded() {
    let server = start(&["--models-max", "1"]);
    let stream = json!({"model": "int4", "prompt": "The sea", "max_tokens": 150, "temperature": 0, "ignore_eos": true, "stream": true});
    let mut lines = BufReader::new(begin_post(&server.address, TEXT, &stream.to_string())).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("data: ")), "it has begun");
    thread::scope(|scope| {
        let other = scope.spawn(|| text(&server, Some("f16"), "The sea").0);
        let rest: Vec<String> = lines.filter(|line| line.starts_with("data: ")).collect();
        assert_eq!(rest.last().map(String::as_str), Some("data: [DONE]"));
        assert!(rest.len() > 100, "{rest:?}");
        assert_eq!(other.join().unwrap(), "f16");
    });
}

#[test]
fn a_model_that_cannot_be_loaded_costs_its_own_requests_only() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("it is written");
    let sound = INT4.artifact();
    place("sound.unicorn", &sound);
    place("cut.unicorn", &sound[..sound.len() / 2]);
    place("notes.txt", b"mine");
    let mut command = run(&[]);
    command.args(["serve", "--ctx", "256", "--models-dir"]).arg(folder.path());
    let server = Server::begin(command);
    let names: Vec<String> = states(&server).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["cut", "sound"]);
    for _ in 0..2 {
        let (head, body) = post(&server.address, TEXT, &request(Some("cut"), "The sea").to_string());
        assert!(head.starts_with("HTTP/1.0 503 ") && body.contains("cannot be loaded"), "{head}\n{body}");
        assert!(body.contains("cut.unicorn"), "{body}");
    }
    assert_eq!(text(&server, Some("sound"), "The sea").1, alone(&INT4, "The sea"));
}

#[test]
fn mistakes_of_the_command_line_are_reported_before_anything_is_loaded() {
    let refused = |arguments: &[&str], expected: &str| {
        let output = run(&[]).arg("serve").args(arguments).output().expect("the program starts");
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success() && stderr.contains(expected), "{arguments:?}: {stderr}");
    };
    let path = INT4.artifact_path();
    let named = |name: &str, path: &Path| format!("{name}={}", path.display());
    let (a, b) = (named("a", &path), named("b", &path));
    refused(&[], "<MODEL>");
    refused(&["--model", "small.unicorn"], "expected NAME=MODEL");
    refused(&["--model", &a, "--model", &a], "expected names that differ");
    refused(&["--model", &a, "--pin", "c"], "pinned model \"c\" is none of a");
    refused(&["--model", &a, "--model", &b, "--pin", "a", "--models-max", "1"], "no place");
    refused(&["--model", "gone=/nowhere/gone.unicorn"], "/nowhere/gone.unicorn");
    let empty = tempfile::tempdir().expect("a temporary folder");
    refused(&["--models-dir", empty.path().to_str().expect("UTF-8")], "found none");
}
