//! The APIs of `unicorn-run serve`: each in its own form, and all of them the same text.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tests::compiled::{Compiled, options};
use tests::http::{exchange, get, post};
use tests::models::models;
use tests::packages;
use tests::programs::program;
use tests::server::Server;
use tests::skip::skip;

static MODEL: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
});

fn start(arguments: &[&str]) -> Server {
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    Server::start(command, &MODEL.artifact_path(), arguments)
}

const QUESTION: &str = "Who lives on the island?";

/// The data of the events of a stream.
fn events(server: &Server, path: &str, request: &Value) -> Vec<Value> {
    let mut request = request.clone();
    request["stream"] = json!(true);
    let (head, body) = post(&server.address, path, &request.to_string());
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}\n{body}");
    let data =
        body.lines().filter_map(|line| line.strip_prefix("data: ").or(Some(line).filter(|line| line.starts_with('{'))));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn joined<'e>(events: &'e [Value], pointer: &str) -> String {
    events.iter().filter_map(|event: &'e Value| event.pointer(pointer)?.as_str()).collect()
}

#[test]
fn every_api_gives_the_same_text() {
    let server = start(&["--parallel", "2", "--ctx", "512", "--metrics"]);
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    let text =
        server.whole("/v1/chat/completions", &chat)["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(joined(&events(&server, "/chat/completions", &chat), "/choices/0/delta/content"), text);

    let message = server.whole("/v1/messages", &chat);
    assert_eq!(message["content"], json!([{"type": "text", "text": text}]));
    assert_eq!((&message["stop_reason"], &message["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(12)));
    let message = events(&server, "/v1/messages", &chat);
    assert_eq!(joined(&message, "/delta/text"), text);
    let kinds: Vec<&str> = message
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .filter(|kind| *kind != "content_block_delta")
        .collect();
    assert_eq!(kinds, ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]);

    let respond = json!({"input": QUESTION, "max_output_tokens": 12, "temperature": 0});
    let response = server.whole("/v1/responses", &respond);
    assert_eq!(response["output"][0]["content"][0]["text"].as_str(), Some(text.as_str()));
    assert_eq!((&response["status"], &response["usage"]["output_tokens"]), (&json!("incomplete"), &json!(12)));
    let response = events(&server, "/v1/responses", &respond);
    let deltas: Vec<Value> =
        response.iter().filter(|event| event["type"] == "response.output_text.delta").cloned().collect();
    assert_eq!(joined(&deltas, "/delta"), text);
    assert_eq!(response.last().unwrap()["response"]["output"][0]["content"][0]["text"].as_str(), Some(text.as_str()));

    let ollama = json!({"model": "any", "messages": messages, "options": {"num_predict": 12, "temperature": 0}, "stream": false});
    let reply = server.whole("/api/chat", &ollama);
    assert_eq!((reply["message"]["content"].as_str(), &reply["done"]), (Some(text.as_str()), &json!(true)));
    let lines = events(&server, "/api/chat", &ollama);
    assert_eq!(joined(&lines, "/message/content"), text);
    assert_eq!(
        (&lines.last().unwrap()["done_reason"], &lines.last().unwrap()["eval_count"]),
        (&json!("length"), &json!(12))
    );
    let generate = json!({"prompt": QUESTION, "options": {"num_predict": 12, "temperature": 0}, "stream": false});
    assert_eq!(server.whole("/api/generate", &generate)["response"].as_str(), Some(text.as_str()));

    // The rendered prompt, as text and as tokens.
    let prompt = server.whole("/apply-template", &chat)["prompt"].clone();
    let tokens = server.whole("/tokenize", &json!({"content": prompt}))["tokens"].clone();
    let counted = server.whole("/v1/messages/count_tokens", &chat)["input_tokens"].as_u64();
    assert_eq!(counted, Some(tokens.as_array().unwrap().len() as u64));
    assert_eq!(server.whole("/detokenize", &json!({"tokens": tokens}))["content"], prompt);
    let completion = server
        .whole("/completion", &json!({"prompt": tokens, "n_predict": 12, "temperature": 0, "return_tokens": true}));
    assert_eq!((completion["content"].as_str(), &completion["stop_type"]), (Some(text.as_str()), &json!("limit")));
    assert_eq!((completion["tokens"].as_array().unwrap().len(), &completion["prompt"]), (12, &prompt));
    let pieces = events(&server, "/completion", &json!({"prompt": tokens, "n_predict": 12, "temperature": 0}));
    assert_eq!(joined(&pieces, "/content"), text);
    assert_eq!(pieces.last().unwrap()["timings"]["predicted_n"], 12);

    let metrics = get(&server.address, "/metrics").1;
    assert!(metrics.contains("\nvllm:request_success_total 11\n"), "{metrics}");
    assert!(metrics.contains(&format!("\nllamacpp:tokens_predicted_total {}\n", 11 * 12)), "{metrics}");
}

/// Claude Code's first line is another one in each request.
#[test]
fn a_billing_header_in_the_system_prompt_costs_no_cache() {
    let server = start(&["--parallel", "1", "--ctx", "512"]);
    let ask = |cch: &str| {
        let header = format!("x-anthropic-billing-header: cc_version=2.1.42.834; cc_entrypoint=cli; cch={cch};");
        let system: Vec<Value> = [&header, "You are a sailor. The ship is old, and the island is far."]
            .map(|text| json!({"type": "text", "text": text}))
            .into();
        let messages = json!([{"role": "user", "content": QUESTION}]);
        let request = json!({"system": system, "messages": messages, "max_tokens": 1, "temperature": 0});
        server.whole("/v1/messages", &request)["usage"].take()
    };
    assert_eq!(ask("65abc")["cache_read_input_tokens"], 0);
    let again = ask("fa690");
    // The last token of a prompt is computed again, for what follows it.
    assert_eq!(again["input_tokens"], 1, "{again}");
    assert!(again["cache_read_input_tokens"].as_u64().is_some_and(|cached| cached > 16), "{again}");
}

#[test]
fn a_tool_that_has_to_be_called_is_called() {
    let server = start(&["--parallel", "1", "--ctx", "512"]);
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}});
    let choice = json!({"type": "function", "function": {"name": "look"}});
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let request = json!({"messages": messages, "tools": [tool, {"type": "web_search"}], "tool_choice": choice, "max_tokens": 8, "temperature": 0});
    let message = server.whole("/v1/chat/completions", &request)["choices"][0]["message"].take();
    // The prompt ends where the arguments begin; what a model of stories writes there is no JSON.
    let call = &message["tool_calls"][0]["function"];
    assert_eq!((&message["content"], &call["name"]), (&Value::Null, &json!("look")), "{message}");
    let chunks = events(&server, "/v1/chat/completions", &request);
    assert_eq!(joined(&chunks, "/choices/0/delta/tool_calls/0/function/name"), "look");
    assert_eq!(
        joined(&chunks, "/choices/0/delta/tool_calls/0/function/arguments"),
        call["arguments"].as_str().unwrap()
    );

    let anthropic = json!({
        "messages": messages, "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "look"}, "max_tokens": 8, "temperature": 0,
    });
    let content = &server.whole("/v1/messages", &anthropic)["content"][0];
    assert_eq!((&content["type"], &content["name"]), (&json!("tool_use"), &json!("look")));
    // Calls and results of the conversation reach the prompt, which this model's template has no tools for.
    let calls = json!([{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}}]);
    let conversation = json!([
        messages[0], {"role": "assistant", "content": null, "tool_calls": calls}, {"role": "tool", "tool_call_id": "1", "content": "a goat"}
    ]);
    let prompt =
        server.whole("/apply-template", &json!({"messages": conversation, "tools": [tool]}))["prompt"].to_string();
    for part in [r#"{\"name\":\"look\",\"arguments\":{\"at\":1}}"#, "Result of look: a goat", r#"\"parameters\""#] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

#[test]
fn parameters_of_stopping_take_effect() {
    let server = start(&["--parallel", "1", "--ctx", "256"]);
    let request = json!({"prompt": "The sea", "max_tokens": 8, "temperature": 0, "return_tokens": true});
    let choice = server.whole("/v1/completions", &request)["choices"][0].take();
    let tokens: Vec<u64> =
        choice["token_ids"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
    let with = |name: &str, value: Value| {
        let mut request = request.clone();
        request[name] = value;
        request["min_tokens"] = json!(if name == "min_tokens" { 8 } else { 0 });
        request["stop_token_ids"] = json!([tokens[3]]);
        request
    };
    let first = tokens.iter().position(|token| *token == tokens[3]).unwrap();
    let stopped = server.whole("/v1/completions", &with("n", json!(1)))["choices"][0].take();
    assert_eq!((stopped["token_ids"].as_array().unwrap().len(), &stopped["finish_reason"]), (first, &json!("stop")));
    let later = server.whole("/v1/completions", &with("min_tokens", json!(8)))["choices"][0].take();
    assert_eq!((&later["token_ids"], &later["finish_reason"]), (&choice["token_ids"], &json!("length")));
    let echoed = server.whole("/v1/completions", &with("echo", json!(true)))["choices"][0]["text"].take();
    assert_eq!(echoed, json!(format!("The sea{}", stopped["text"].as_str().unwrap())));
}

#[test]
fn errors_have_the_form_of_their_api() {
    let server = start(&["--parallel", "1", "--ctx", "64", "--api-key", "one,two", "--alias", "mine"]);
    let ask = |method: &str, path: &str, headers: &str, body: &str| {
        let head =
            format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}");
        let (head, body) = exchange(&server.address, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
        (head.split(' ').nth(1).unwrap().parse::<u16>().unwrap(), serde_json::from_str::<Value>(&body).unwrap())
    };
    let key = "Authorization: Bearer two\r\n";
    for (path, pointer, kind) in [
        ("/v1/chat/completions", "/error/type", "invalid_request_error"),
        ("/v1/messages", "/error/type", "invalid_request_error"),
        ("/api/chat", "/error", "messages: expected a list of messages, found 1"),
    ] {
        let (status, body) = ask("POST", path, key, r#"{"messages": 1}"#);
        assert_eq!((status, body.pointer(pointer)), (400, Some(&json!(kind))), "{path}: {body}");
    }
    // Also where there is no endpoint, or no key.
    for (path, key, expected) in [("/api/pull", key, 404), ("/api/embed", key, 501), ("/api/chat", "", 401)] {
        let (status, body) = ask("POST", path, key, "{}");
        assert!(status == expected && body["error"].is_string(), "{path}: {status} {body}");
    }
    assert_eq!(ask("POST", "/v1/messages", key, "{}").1["type"], "error");
    assert_eq!(ask("GET", "/metrics", key, "").0, 501);
    assert_eq!(ask("POST", "/infill", key, r#"{"input_prefix": "a"}"#).0, 501);
    for (path, headers, status) in [
        ("/health", "", 200),
        ("/ping", "", 200),
        ("/version", key, 200),
        ("/v1/models", "", 200),
        ("/props", "", 401),
        ("/props", "X-Api-Key: one\r\n", 200),
        ("/props", "Authorization: Bearer three\r\n", 401),
        ("/slots", key, 200),
    ] {
        assert_eq!(ask("GET", path, headers, "").0, status, "{path} {headers}");
    }
    assert_eq!(ask("GET", "/v1/models", "", "").1["data"][0]["id"], "mine");
    assert_eq!(ask("POST", "/api/show", key, "{}").1["capabilities"], json!(["completion", "tools"]));
}

/// What the program `ollama` reads: it cuts digests at 12 letters, and before a chat it asks for no text, to have the model loaded.
#[test]
fn ollamas_program_finds_what_it_reads() {
    let server = start(&["--parallel", "1", "--ctx", "512"]);
    let read = |path: &str| -> Value { serde_json::from_str(&get(&server.address, path).1).unwrap() };
    let (listed, running) = (read("/api/tags")["models"][0].take(), read("/api/ps")["models"][0].take());
    assert_eq!(listed["capabilities"], json!(["completion", "tools"]));
    for model in [&listed, &running] {
        assert_eq!(model["digest"].as_str().map(str::len), Some(64), "{model}");
        assert!(model["size"].as_u64().unwrap() > 0 && model["details"]["family"] == "Gemma3ForCausalLM", "{model}");
    }
    let is_gpu = std::env::var("UNICORN_DEVICE").is_ok_and(|device| device != "llvmpipe");
    assert_eq!(running["size_vram"] == 0, !is_gpu, "a software device uses no memory of a GPU: {running}");
    assert_eq!((&running["context_length"], &running["digest"]), (&json!(512), &listed["digest"]));

    let shown = server.whole("/api/show", &json!({"model": listed["name"]}));
    let info = &shown["model_info"];
    let architecture = info["general.architecture"].as_str().unwrap();
    assert!(info["general.parameter_count"].as_u64().unwrap() > 1_000_000, "{info}");
    assert_eq!(info[format!("{architecture}.context_length")], 512);
    assert!(shown["parameters"].as_str().unwrap().lines().any(|line| line.starts_with("temperature ")), "{shown}");
    assert!(shown["modelfile"].as_str().unwrap().starts_with("FROM "), "{shown}");
    assert_eq!(shown["license"], "apache-2.0");

    let load = json!({"model": listed["name"], "prompt": "", "options": {}});
    let loaded = server.whole("/api/generate", &load);
    assert_eq!(
        (&loaded["done"], &loaded["done_reason"], &loaded["response"]),
        (&json!(true), &json!("load"), &json!(""))
    );
    let loaded = events(&server, "/api/chat", &json!({"model": listed["name"], "messages": []}));
    assert_eq!(
        (loaded.len(), &loaded[0]["done_reason"], &loaded[0]["message"]["content"]),
        (1, &json!("load"), &json!(""))
    );

    // Probabilities of tokens, in each line of a stream.
    let ask = json!({"messages": [{"role": "User", "content": QUESTION}], "logprobs": true, "top_logprobs": 2,
        "options": {"num_predict": 4.0, "temperature": 0.0, "top_k": 40.0}, "stream": false});
    let whole = server.whole("/api/chat", &ask)["logprobs"].take();
    let lines = events(&server, "/api/chat", &ask);
    let streamed: Vec<Value> = lines.iter().filter_map(|line| line["logprobs"].as_array()).flatten().cloned().collect();
    let tokens = |list: &[Value]| list.iter().map(|token| token["token"].clone()).collect::<Vec<_>>();
    assert_eq!(tokens(whole.as_array().unwrap()), tokens(&streamed));
    assert_eq!(
        (whole[0]["top_logprobs"].as_array().map(Vec::len), &whole[0]["token"]),
        (Some(2), &whole[0]["top_logprobs"][0]["token"])
    );
}

#[test]
fn a_server_is_started_with_llama_server_s_options() {
    let options = ["--parallel", "2", "--ctx-size", "512", "--n-predict", "4", "--seed", "7", "--temp", "0", "--no-ui"];
    let server = start(&[&options[..], &["--slots"]].concat());
    let props: Value = serde_json::from_str(&get(&server.address, "/props").1).unwrap();
    let defaults = &props["default_generation_settings"];
    assert_eq!((&props["total_slots"], &defaults["n_ctx"]), (&json!(2), &json!(256)));
    let params = &defaults["params"];
    assert_eq!((&params["n_predict"], &params["seed"], &params["temperature"]), (&json!(4), &json!(7), &json!(0.0)));
    for (asked, answered) in [(json!({}), 4), (json!({"n_predict": 9}), 4), (json!({"n_predict": 2}), 2)] {
        let mut request = asked.clone();
        (request["prompt"], request["ignore_eos"]) = (json!(QUESTION), json!(true));
        let answer = server.whole("/completion", &request);
        assert_eq!(answer["tokens_predicted"], answered, "{asked}");
        assert_eq!(answer["generation_settings"]["n_predict"], answered, "{asked}");
        assert_eq!(answer["stop_type"], "limit", "{asked}");
    }
    assert_eq!(
        server.whole(
            "/v1/chat/completions",
            &json!({"messages": [{"role": "user", "content": QUESTION}], "ignore_eos": true})
        )["usage"]["completion_tokens"],
        4
    );
    assert!(get(&server.address, "/").0.starts_with("HTTP/1.0 404 "));
    let (head, slots) = get(&server.address, "/slots");
    assert!(head.contains("\r\nContent-Type: application/json"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(&slots).unwrap().as_array().unwrap().len(), 2);
}

/// The libraries that people point at a server, as PyPI has them.
#[test]
fn real_clients_understand_every_answer() {
    let clients =
        ["openai==3.57.0", "anthropic==2.13.0", "ollama==0.6.3", "litellm==1.110.2", "langchain-openai==1.7.4"];
    let packages = match packages::of_pypi(Path::new(env!("CARGO_TARGET_TMPDIR")), &clients) {
        Ok(packages) => packages,
        Err(error) => return skip("real clients", error),
    };
    let server = start(&["--parallel", "2", "--ctx", "512"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients.py");
    // litellm fetches prices of models otherwise.
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", packages).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    let output = python.arg(script).arg(&server.address).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The same, as npm has them.
#[test]
fn real_clients_in_javascript_understand_every_answer() {
    let clients = ["openai@6.49.0", "@ai-sdk/openai-compatible@2.0.92", "ai@6.0.325"];
    let packages = match packages::of_npm(Path::new(env!("CARGO_TARGET_TMPDIR")), &clients) {
        Ok(packages) => packages,
        Err(error) => return skip("clients of npm", error),
    };
    let server = start(&["--parallel", "2", "--ctx", "512"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients.mjs");
    let output = Command::new("node").arg(script).arg(&server.address).arg(packages).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
