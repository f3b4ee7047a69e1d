//! What clients and command lines of llama-server expect of `unicorn-run serve`, beside the texts themselves. Expected values were
//! taken from llama-server 0.7.0, with the same options and requests.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::compiled::{Compiled, options};
use tests::http::{exchange, get, post};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;

static MODEL: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
});

fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Server {
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    command.envs(variables.iter().copied());
    Server::start(command, &MODEL.artifact_path(), arguments)
}

fn start(arguments: &[&str]) -> Server {
    start_with(arguments, &[])
}

/// The data of the events of a stream.
fn events(server: &Server, path: &str, request: &Value) -> Vec<Value> {
    let (head, body) = post(&server.address, path, &request.to_string());
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}\n{body}");
    let data = body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn rendered(server: &Server, request: Value) -> String {
    server.whole("/apply-template", &request)["prompt"].as_str().unwrap().to_owned()
}

/// The same weights with tokens for text in the middle, in the place of four words.
fn with_infill_tokens() -> Compiled {
    const INFILL: [&str; 4] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"];
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(models().join("gemma3-2m-draft")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let mut words: Vec<(String, u64)> = vocab.iter().map(|(word, id)| (word.clone(), id.as_u64().unwrap())).collect();
    words.sort_by_key(|(_, id)| *id);
    let replaced = words.split_off(words.len() - INFILL.len());
    for ((word, id), token) in replaced.iter().zip(INFILL) {
        vocab.remove(word);
        vocab.insert(token.into(), json!(id));
    }
    let added = replaced.iter().zip(INFILL).map(|((_, id), token)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    });
    tokenizer["added_tokens"].as_array_mut().unwrap().extend(added);
    let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
    merges.retain(|merge| {
        let parts = merge.as_array().map(|parts| parts.iter().filter_map(Value::as_str).collect::<String>());
        let merged = parts.unwrap_or_else(|| merge.as_str().unwrap().replace(' ', ""));
        replaced.iter().all(|(word, _)| *word != merged)
    });
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    Compiled::of_folder(folder.path(), &options(targets, vec![]))
}

#[test]
fn text_in_the_middle_is_generated_behind_prefix_and_suffix() {
    let model = with_infill_tokens();
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    let server = Server::start(command, &model.artifact_path(), &["--parallel", "1", "--ctx", "256"]);
    let (prefix, suffix) = ("The captain went to the", "and came home.");
    let form = format!("<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>");
    let generate = |prompt: Value| {
        let answer = server.whole("/completion", &json!({"prompt": prompt, "n_predict": 8, "temperature": 0}));
        [&answer["prompt"], &answer["content"]].map(|text| text.as_str().unwrap().to_owned())
    };
    let [prompt, expected] = generate(json!(form));
    assert!(prompt.ends_with(&form) && !expected.is_empty(), "{prompt:?}: {expected:?}");

    let openai = json!({"prompt": prefix, "suffix": suffix, "max_tokens": 8, "temperature": 0, "verbose": true});
    let answer = server.whole("/v1/completions", &openai);
    assert_eq!(answer["__verbose"]["prompt"].as_str(), Some(prompt.as_str()));
    assert_eq!(answer["choices"][0]["text"].as_str(), Some(expected.as_str()));
    let infill = |extra: Value| {
        let (before, begun) = prefix.split_at(7);
        let request = json!({
            "input_prefix": before, "prompt": begun, "input_suffix": suffix, "input_extra": extra, "n_predict": 8, "temperature": 0,
        });
        let answer = server.whole("/infill", &request);
        [&answer["prompt"], &answer["content"]].map(|text| text.as_str().unwrap().to_owned())
    };
    assert_eq!(infill(json!([])), [prompt, expected]);
    let extra = json!([{"filename": "sea.txt", "text": "The sea was calm."}]);
    assert_eq!(infill(extra), generate(json!(format!("<|file_sep|>sea.txt\nThe sea was calm.\n{form}"))));
}

#[test]
fn a_template_replaces_the_model_s() {
    let messages = json!([{"role": "system", "content": "You are a test."}, {"role": "user", "content": "Hi there"}]);
    let server = start(&["--parallel", "1", "--ctx", "256", "--chat-template", "command-r"]);
    let turn = "<|START_OF_TURN_TOKEN|><|";
    assert_eq!(
        rendered(&server, json!({"messages": messages})),
        format!(
            "{turn}SYSTEM_TOKEN|>You are a test.<|END_OF_TURN_TOKEN|>{turn}USER_TOKEN|>Hi there<|END_OF_TURN_TOKEN|>{turn}CHATBOT_TOKEN|>"
        )
    );
    drop(server);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("thinks.jinja");
    let template = "{{ date_string }}|{{ datetime }}|{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% if enable_thinking %}on {% endif %}<think>\n{% endif %}";
    std::fs::write(&file, template).unwrap();
    let prompt_of = |reasoning: &str, request: Value| {
        let file = file.to_str().unwrap();
        let server =
            start(&["--parallel", "1", "--ctx", "256", "--chat-template-file", file, "--reasoning", reasoning]);
        rendered(&server, request)
    };
    let question = json!([{"role": "user", "content": "Hi"}]);
    let on = prompt_of("auto", json!({"messages": question}));
    assert!(on.ends_with("|<user>Hi<assistant>on <think>\n"), "{on}");
    let off = prompt_of("off", json!({"messages": question, "tools": null}));
    assert!(off.ends_with("|<user>Hi<assistant><think>\n</think>"), "{off}");
    let history = prompt_of("on", json!({"messages": question, "add_generation_prompt": false}));
    assert!(history.ends_with("|<user>Hi"), "{history}");
    // Granite's and DeepSeek's name of the switch.
    std::fs::write(&file, template.replace("enable_thinking", "thinking")).unwrap();
    let granite = prompt_of("auto", json!({"messages": question}));
    assert!(granite.ends_with("|<user>Hi<assistant>on <think>\n"), "{granite}");
    let granite = prompt_of("auto", json!({"messages": question, "enable_thinking": false}));
    assert!(granite.ends_with("|<user>Hi<assistant><think>\n</think>"), "{granite}");
    // Two forms of the same day.
    let parts: Vec<&str> = on.split('|').collect();
    let [mut date, mut datetime] = [parts[0], parts[1]].map(|date| date.split(' ').collect::<Vec<_>>());
    date.sort_unstable();
    datetime.sort_unstable();
    assert_eq!((date.len(), &date), (3, &datetime), "{on}");
}

#[test]
fn a_stream_reports_the_progress_of_the_prompt_and_the_timings() {
    let server = start(&["--parallel", "1", "--ctx", "512", "--batch-size", "32"]);
    let prompt = "The island lay in the sun, and the sea was calm. ".repeat(9);
    let wants = |mut request: Value| {
        request.as_object_mut().unwrap().extend(
            json!({"stream": true, "timings_per_token": true, "return_progress": true, "temperature": 0, "ignore_eos": true})
                .as_object()
                .unwrap()
                .clone(),
        );
        request
    };
    let chat = json!([{"role": "user", "content": prompt}]);
    for (path, request) in [
        ("/completion", json!({"prompt": prompt, "n_predict": 3})),
        ("/v1/completions", json!({"prompt": prompt, "max_tokens": 3, "seed": 1})),
        ("/v1/chat/completions", json!({"messages": chat, "max_tokens": 3})),
        ("/v1/responses", json!({"input": prompt, "max_output_tokens": 3})),
    ] {
        let parts = events(&server, path, &wants(request));
        let progress: Vec<&Value> = parts.iter().filter(|part| part.get("prompt_progress").is_some()).collect();
        let first = progress[0];
        assert_eq!(first["prompt_progress"]["processed"], first["prompt_progress"]["cache"], "{path}");
        for name in ["prompt_n", "prompt_ms", "predicted_n", "predicted_ms"] {
            assert_eq!(first["timings"][name].as_f64(), Some(0.0), "{path}: {name}");
        }
        let number = |part: &Value, name: &str| part["prompt_progress"][name].as_u64().unwrap();
        let (total, cached) = (number(first, "total"), number(first, "cache"));
        // Steps of 32 tokens, after the tokens that an earlier request left in the cache.
        assert_eq!(progress.len() as u64, 1 + (total - cached).div_ceil(32), "{path}");
        for pair in progress.windows(2) {
            assert!(number(pair[0], "processed") < number(pair[1], "processed"), "{path}");
            assert!(pair[0]["timings"]["prompt_ms"].as_f64() <= pair[1]["timings"]["prompt_ms"].as_f64(), "{path}");
        }
        assert_eq!(number(progress.last().unwrap(), "processed"), total, "{path}");
        let with_text = parts.iter().filter(|part| {
            let texts = ["/content", "/choices/0/text", "/choices/0/delta/content", "/delta"];
            texts.iter().any(|text| part.pointer(text).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
        });
        let predicted: Vec<u64> = with_text.filter_map(|part| part["timings"]["predicted_n"].as_u64()).collect();
        assert!(!predicted.is_empty() && predicted.is_sorted() && predicted[0] >= 1, "{path}: {predicted:?}");
    }
    let plain = events(&server, "/completion", &json!({"prompt": prompt, "n_predict": 2, "stream": true}));
    assert!(plain.iter().all(|part| part.get("prompt_progress").is_none()), "it was not requested");
    // A path in response_fields is the name of its value.
    let fields = json!(["content", "generation_settings/n_predict"]);
    let chosen = server.whole("/completion", &json!({"prompt": prompt, "n_predict": 2, "response_fields": fields}));
    assert_eq!((chosen.as_object().unwrap().len(), &chosen["generation_settings/n_predict"]), (2, &json!(2)));
}

#[test]
fn names_tags_and_the_prompt_are_reported() {
    let options = ["--parallel", "1", "--ctx", "64", "--alias", "tiny,fim,code", "--tags", "chat,small", "--verbose"];
    let server = start(&options);
    let read = |path: &str| -> Value { serde_json::from_str(&get(&server.address, path).1).unwrap() };
    let model = read("/models")["data"][0].take();
    assert_eq!(
        (&model["id"], &model["aliases"], &model["tags"]),
        (&json!("code"), &json!(["code", "fim", "tiny"]), &json!(["chat", "small"]))
    );
    assert_eq!(read("/v1/models/tiny")["id"], "code");
    let path = read("/props")["model_path"].take();
    assert_eq!(path.as_str(), MODEL.artifact_path().to_str());
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let told = |verbose: Value| {
        let request = json!({"messages": messages, "max_tokens": 1, "verbose": verbose});
        server.whole("/v1/chat/completions", &request).get("__verbose").is_some()
    };
    assert_eq!([Value::Null, json!(false)].map(told), [true, false]);
    // A prompt that is too long, as llama-server's clients look for it.
    let long = json!({"messages": [{"role": "user", "content": "The sea. ".repeat(100)}]}).to_string();
    let error: Value = serde_json::from_str(&post(&server.address, "/v1/chat/completions", &long).1).unwrap();
    let error = &error["error"];
    assert!(error["message"].as_str().unwrap().contains("exceeds the available context size"), "{error}");
    assert_eq!((&error["type"], &error["n_ctx"]), (&json!("exceed_context_size_error"), &json!(64)));
}

/// An idle server frees its memory. Requests that only read its state do not load the model.
#[test]
fn an_idle_model_sleeps_until_a_request_needs_it() {
    let server =
        start(&["--parallel", "1", "--ctx", "64", "--metrics", "--alias", "tiny,small", "--sleep-idle-seconds", "1"]);
    let read = |path: &str| -> Value { serde_json::from_str(&get(&server.address, path).1).unwrap() };
    let is_sleeping = || read("/props")["is_sleeping"].as_bool().unwrap();
    let sleep = || {
        let begun = Instant::now();
        while !is_sleeping() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not go to sleep");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let request =
        json!({"model": "whatever a client is set to", "prompt": "The sea", "n_predict": 4, "temperature": 0});
    let awake = server.whole("/completion", &request);
    let sampled = |metrics: &str| {
        metrics.lines().find_map(|line| line.strip_prefix("llamacpp:tokens_predicted_total ")).map(str::to_owned)
    };
    let before = sampled(&get(&server.address, "/metrics").1);
    assert_eq!(before.as_deref(), Some("4"));
    sleep();
    assert_eq!(sampled(&get(&server.address, "/metrics").1), before);
    let model = read("/v1/models")["data"][0].take();
    assert_eq!((&model["id"], &model["status"]["value"]), (&json!("small"), &json!("unloaded")));
    assert_eq!((&model["aliases"], read("/health")["status"].take()), (&json!(["small", "tiny"]), json!("ok")));
    assert!(is_sleeping(), "it was only looked at");
    let again = server.whole("/completion", &request);
    assert!(!is_sleeping());
    assert_eq!(again["content"], awake["content"]);
    for path in ["/v1/responses/input_tokens", "/chat/completions/input_tokens"] {
        sleep();
        let question = json!({"input": "Hi", "messages": [{"role": "user", "content": "Hi"}]});
        assert!(server.whole(path, &question)["input_tokens"].as_u64().is_some_and(|count| count > 0));
        assert!(!is_sleeping(), "{path}");
    }
}

#[test]
fn pages_of_this_machine_have_access_by_one_word() {
    let server = start(&["--parallel", "1", "--ctx", "64", "--cors-origins", "localhost", "--api-key", "one"]);
    let preflight = |origin: &str| {
        let request = format!(
            "OPTIONS /completions HTTP/1.0\r\nHost: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: Authorization\r\n\r\n"
        );
        let head = exchange(&server.address, &request).0;
        assert!(head.starts_with("HTTP/1.0 200 "), "{head}");
        let allowed = head.lines().find_map(|line| line.strip_prefix("Access-Control-Allow-Origin: "));
        allowed.map(str::to_owned)
    };
    for origin in ["http://localhost", "http://127.0.0.1:3000", "http://[::1]:3000"] {
        assert_eq!(preflight(origin).as_deref(), Some(origin));
    }
    for origin in ["http://evil.com", "http://localhost.evil.com"] {
        assert_eq!(preflight(origin), None, "{origin}");
        let request = format!("GET /health HTTP/1.0\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n");
        assert!(exchange(&server.address, &request).0.starts_with("HTTP/1.0 403 "), "{origin}");
    }
}

#[test]
fn vertex_ai_finds_its_paths() {
    let variables =
        [("AIP_MODE", "PREDICTION"), ("AIP_PREDICT_ROUTE", "v1/models/m:predict"), ("AIP_HEALTH_ROUTE", "/alive")];
    let server = start_with(&["--parallel", "2", "--ctx", "128"], &variables);
    assert!(get(&server.address, "/alive").0.starts_with("HTTP/1.0 200 "));
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let request = json!({"instances": [
        {"@requestFormat": "chatCompletions", "max_tokens": 2, "messages": messages, "stream": true},
        {"@requestFormat": "/tokenize", "content": "Hi"},
        {"@requestFormat": "sing"},
    ]});
    let predictions = server.whole("/v1/models/m:predict", &request)["predictions"].take();
    assert_eq!(predictions[0]["choices"][0]["message"]["role"], "assistant", "{predictions}");
    assert!(predictions[1]["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()), "{predictions}");
    assert_eq!(predictions[2]["error"]["type"], "invalid_request_error", "{predictions}");
    drop(server);
    let elsewhere = start(&["--parallel", "1", "--ctx", "64"]);
    assert!(post(&elsewhere.address, "/predict", "{}").0.starts_with("HTTP/1.0 404 "));
}
