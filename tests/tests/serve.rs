//! `unicorn-run serve` from outside: clients receive what `unicorn-run` prints for one alone.

use std::io::{BufRead, BufReader, Read, Write};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::compiled::{Silent, eight_layers, options};
use tests::http::{begin_post, exchange, get, post};
use tests::programs::{program, send_signal};
use tests::server::Server;
use tests::typed::{artifact, run};
use unicorn_compiler::{Source, compile};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// More clients than sequences, with prompts of one step and of several, at once.
#[test]
fn each_client_gets_the_answer_that_it_would_get_alone() {
    let server = start(&["--parallel", "3", "--ctx", "1024"]);
    let long = "The island lay in the sun, and the sea was calm. ".repeat(40);
    let prompts = ["Once upon a time", "The sea", &long, "He said that", "In the morning"];
    let alone = prompts.map(|prompt| say(&["--raw", "-p", prompt, "-n", "24"]));
    std::thread::scope(|scope| {
        for (index, (prompt, (text, reason))) in prompts.iter().zip(&alone).enumerate() {
            let server = &server;
            scope.spawn(move || {
                let request = json!({"prompt": prompt, "max_tokens": 24, "temperature": 0});
                let received = match index % 2 {
                    0 => server.whole(TEXT, &request)["choices"][0].clone(),
                    _ => streamed(server, TEXT, &request),
                };
                assert_eq!(
                    (received["text"].as_str(), received["finish_reason"].as_str()),
                    (Some(text.as_str()), Some(*reason)),
                    "{prompt}"
                );
            });
        }
    });
}

/// A budget with room for more than one context of four: a request may have a whole one, and others wait or continue later, with the same text.
#[test]
fn sequences_share_the_memory_that_there_is() {
    let serve =
        |context: &str, budget: &str| ["--parallel", "4", "--ctx", context, "--budget", budget].map(str::to_owned);
    // What one sequence of so many tokens needs.
    let needed_mib = |context: &str| -> f64 {
        let mut command = program("unicorn-run");
        command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        let refused =
            command.arg("serve").arg(artifact()).args(serve(context, "vram=1KiB")).output().expect("it starts");
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && !message.contains("slots"), "{message}");
        let (_, needed) = message.split_once("needs ").expect("the bytes");
        needed.split_once(" MiB of vram").expect("a unit").0.parse().unwrap()
    };
    let (one, two) = (needed_mib("512"), needed_mib("1024"));
    let budget = format!("vram={}KiB", ((one + 1.5 * (two - one)) * 1024.0) as u32);
    let server = start(&serve("512", &budget).each_ref().map(String::as_str));
    let (_, properties) = get(&server.address, "/props");
    let tokens =
        serde_json::from_str::<Value>(&properties).unwrap()["unicorn"]["memory"]["kv_tokens"].as_u64().unwrap();
    assert!((513..2048).contains(&tokens), "{tokens} tokens in {budget}");
    assert!(
        server.stderr().contains(&format!("4 sequences of up to 512 tokens, {tokens} together")),
        "{}",
        server.stderr()
    );

    let prompts = ["The sea was calm. ", "The island lay in the sun. ", "He said that. ", "It was morning. "];
    let request = |prompt: &str, max_tokens: u32| json!({"prompt": prompt.repeat(50), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true});
    let whole = |prompt: &str| {
        let n_prompt = server.whole(TEXT, &request(prompt, 1))["usage"]["prompt_tokens"].as_u64().unwrap();
        server.whole(TEXT, &request(prompt, 512 - n_prompt as u32))
    };
    let alone = prompts.map(whole);
    for answer in &alone {
        assert_eq!(answer["usage"]["total_tokens"], 512);
    }
    std::thread::scope(|scope| {
        for (prompt, alone) in prompts.iter().zip(&alone) {
            let whole = &whole;
            scope.spawn(move || assert_eq!(whole(prompt)["choices"], alone["choices"], "{prompt}"));
        }
    });
}

#[test]
fn a_chat_uses_the_models_template_and_continues_from_the_cache() {
    let server = start(&["--parallel", "1", "--ctx", "512"]);
    let (system, question) = ("Be brief.", "Who lives on the island?");
    let (alone, _) = say(&["--system", system, "-p", question, "-n", "16"]);
    let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": [{"type": "text", "text": question}]}]);
    let request = json!({"model": "any", "messages": messages, "max_completion_tokens": 16, "temperature": 0});
    let first = server.whole(CHAT, &request);
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["choices"][0]["message"], json!({"role": "assistant", "content": alone}));
    let usage = &first["usage"];
    let [prompt, completion, total] =
        ["prompt_tokens", "completion_tokens", "total_tokens"].map(|key| usage[key].as_u64().unwrap());
    assert_eq!((completion, total), (16, prompt + 16));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);

    let again = server.whole(CHAT, &request);
    assert_eq!(again["choices"], first["choices"]);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(), Some(prompt - 1));
    assert_eq!(streamed(&server, CHAT, &request)["text"].as_str(), Some(alone.as_str()));
}

#[test]
fn alternating_conversations_continue_from_their_own_caches() {
    let server = start(&["--parallel", "2", "--ctx", "512"]);
    let ask = |question: &str| {
        let system = json!({"role": "system", "content": "Be brief."});
        let messages = json!([system, {"role": "user", "content": question}]);
        let usage =
            server.whole(CHAT, &json!({"messages": messages, "max_tokens": 2, "temperature": 0}))["usage"].take();
        (usage["prompt_tokens"].as_u64().unwrap(), usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    };
    let island = "Who lives on the island in the middle of the sea, and what do they eat when the ships are late?";
    let captain = "Where does the captain sail with his ship in the winter, when all of the other ones are at home?";
    for question in [island, captain] {
        let (prompt, cached) = ask(question);
        assert!(2 * cached < prompt, "{question}: {cached} of {prompt}");
    }
    for question in [island, captain, island] {
        let (prompt, cached) = ask(question);
        assert_eq!(cached, prompt - 1, "{question}");
    }
}

#[test]
fn sigterm_ends_the_server_after_its_answers() {
    let mut server = start(&["--parallel", "1", "--ctx", "256"]);
    let request = json!({"prompt": "The sea", "max_tokens": 32, "temperature": 0, "ignore_eos": true, "stream": true});
    let mut streamed = BufReader::new(begin_post(&server.address, TEXT, &request.to_string())).lines();
    assert!(streamed.any(|line| line.unwrap().starts_with("data: ")), "it has begun");
    send_signal(&server.child, Signal::TERM);
    let rest: Vec<String> = streamed.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line == "data: [DONE]"), "{rest:?}");
    assert!(std::net::TcpStream::connect(&server.address).is_err(), "new connections are refused");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn sigterm_ends_the_server_when_time_is_over() {
    let mut server = start(&["--parallel", "1", "--ctx", "4096", "--drain", "0"]);
    let endless = json!({"prompt": "The sea", "temperature": 0, "stream": true});
    let mut streamed = BufReader::new(begin_post(&server.address, TEXT, &endless.to_string())).lines();
    assert!(streamed.any(|line| line.unwrap().starts_with("data: ")), "it has begun");
    send_signal(&server.child, Signal::TERM);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_seed_repeats_an_answer_and_choices_differ() {
    let server = start(&["--parallel", "3", "--ctx", "256"]);
    let request = |seed: u64, n: u32| json!({"prompt": "The captain", "max_tokens": 12, "temperature": 1.5, "seed": seed, "n": n});
    let texts = |answer: &Value| {
        answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect::<Vec<Value>>()
    };
    let three = server.whole(TEXT, &request(7, 3));
    assert_eq!(three["usage"]["completion_tokens"], 36);
    let three = texts(&three);
    assert!(three[0] != three[1] && three[1] != three[2], "{three:?}");
    let one_by_one: Vec<Value> = (7..10).flat_map(|seed| texts(&server.whole(TEXT, &request(seed, 1)))).collect();
    assert_eq!(three, one_by_one);
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let server = start(&["--parallel", "2", "--ctx", "256"]);
    let mut request = json!({"prompt": ["The sea", "The ship"], "max_tokens": 24, "temperature": 0});
    let texts: Vec<String> = (0..2)
        .map(|index| server.whole(TEXT, &request)["choices"][index]["text"].as_str().unwrap().to_owned())
        .collect();
    // From the middle of a word to the middle of another.
    let middle = texts[0].char_indices().nth(texts[0].chars().count() / 2).unwrap().0;
    let stop: String = texts[0][middle..].chars().take(4).collect();
    request["stop"] = json!(["never in it", stop]);
    let stopped = server.whole(TEXT, &request);
    for (choice, text) in stopped["choices"].as_array().unwrap().iter().zip(&texts) {
        let end = text.find(&stop);
        assert_eq!(choice["text"].as_str(), Some(&text[..end.unwrap_or(text.len())]));
        assert_eq!(choice["finish_reason"], if end.is_some() { "stop" } else { "length" });
    }
}

/// What may be the beginning of a stop string is kept back, here until the stop token.
#[test]
fn text_that_a_stop_token_releases_is_whole() {
    let server = start(&["--parallel", "1", "--ctx", "256"]);
    let mut request = json!({"prompt": "The sea", "max_tokens": 24, "temperature": 0, "ignore_eos": true, "return_tokens": true, "logprobs": 1});
    let ids = server.whole(TEXT, &request)["choices"][0]["token_ids"].take();
    let ids = ids.as_array().unwrap();
    let stop = (4..ids.len()).find(|&at| !ids[..at].contains(&ids[at])).unwrap();
    request["stop_token_ids"] = json!([ids[stop]]);
    let expected = server.whole(TEXT, &request)["choices"][0].take();
    assert_eq!((&expected["token_ids"], &expected["finish_reason"]), (&json!(ids[..stop]), &json!("stop")));
    assert_eq!(expected["logprobs"]["tokens"].as_array().map(Vec::len), Some(stop));

    let last = expected["text"].as_str().unwrap().chars().last().unwrap();
    request["stop"] = json!([format!("{last}, and never this")]);
    assert_eq!(server.whole(TEXT, &request)["choices"][0], expected);
    request["stream"] = json!(true);
    let (head, body) = post(&server.address, TEXT, &request.to_string());
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}\n{body}");
    let parts = body.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let (mut text, mut tokens, mut rated) = (String::new(), Vec::new(), 0);
    for mut part in parts {
        let choice = &mut part["choices"][0];
        text += choice["text"].as_str().unwrap_or_default();
        tokens.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        rated += choice["logprobs"]["tokens"].as_array().map_or(0, Vec::len);
    }
    assert_eq!((&json!(text), &json!(tokens), rated), (&expected["text"], &expected["token_ids"], stop), "{body}");
}

/// One sequence alone has so much to do for the first that no other would be answered in the time that tests wait.
#[test]
fn a_disconnect_frees_the_sequence() {
    let server = start(&["--parallel", "1", "--ctx", "4096"]);
    let endless = json!({"prompt": "The sea", "temperature": 0, "n": 128, "stream": true});
    let mut streamed = BufReader::new(begin_post(&server.address, TEXT, &endless.to_string())).lines();
    assert!(streamed.any(|line| line.unwrap().starts_with("data: ")), "it has begun");
    let mut whole = endless.clone();
    whole["stream"] = json!(false);
    let waiting = begin_post(&server.address, TEXT, &whole.to_string());
    drop((streamed, waiting));
    let (_, health) = get(&server.address, "/health");
    assert_eq!(health, r#"{"status":"ok"}"#);
    assert_eq!(server.whole(TEXT, &json!({"prompt": "The sea", "max_tokens": 1}))["usage"]["completion_tokens"], 1);
}

#[test]
fn what_cannot_be_answered_is_refused_in_openai_s_form() {
    let server = start(&["--parallel", "1", "--ctx", "64"]);
    let far = "word ".repeat(100);
    for (path, body, parameter, message) in [
        (TEXT, "{", Value::Null, "body: expected JSON, found EOF"),
        (TEXT, "[]", Value::Null, "body: expected an object, found []"),
        (TEXT, "{}", "prompt".into(), "prompt: expected text,"),
        (TEXT, r#"{"prompt": []}"#, "prompt".into(), "prompt: expected 1 to 64 tokens, found 0"),
        (TEXT, r#"{"prompt": [-1]}"#, "prompt".into(), "prompt: expected text,"),
        (TEXT, r#"{"prompt": [4000000]}"#, "prompt".into(), "prompt: expected token ids below"),
        (
            TEXT,
            &json!({"prompt": far}).to_string(),
            "prompt".into(),
            "prompt: exceeds the available context size: this model's maximum context length is 64 tokens",
        ),
        (TEXT, r#"{"prompt": "a", "temperature": -1}"#, Value::Null, "temperature must be 0 or more, found -1"),
        (TEXT, r#"{"prompt": "a", "mirostat": 2}"#, "mirostat".into(), "mirostat: not supported here, found 2"),
        (CHAT, r#"{"messages": []}"#, "messages".into(), "messages: expected at least one message, found none"),
        (
            CHAT,
            r#"{"messages": [{"role": "user"}]}"#,
            "messages[0]".into(),
            "messages[0]: expected a role and a content",
        ),
        (
            CHAT,
            r#"{"messages": [{"role": "user", "content": "a"}], "tools": [1]}"#,
            "tools[0]".into(),
            "tools[0]: expected an object with a type",
        ),
    ] {
        let (head, answer) = post(&server.address, path, body);
        assert!(head.starts_with("HTTP/1.0 400 "), "{body}: {head}");
        let error = &serde_json::from_str::<Value>(&answer).unwrap()["error"];
        let kind = if body.contains(&far) { "exceed_context_size_error" } else { "invalid_request_error" };
        assert_eq!((&error["type"], &error["param"]), (&kind.into(), &parameter), "{body}");
        assert!(error["message"].as_str().unwrap().starts_with(message), "{body}: {error}");
    }
    assert!(get(&server.address, "/nowhere").0.starts_with("HTTP/1.0 404 "));
    assert!(get(&server.address, TEXT).0.starts_with("HTTP/1.0 405 "));
    let (_, too_long) = post(&server.address, TEXT, &json!({"prompt": far}).to_string());
    assert_eq!(serde_json::from_str::<Value>(&too_long).unwrap()["error"]["code"], "context_length_exceeded");
    let models: Value = serde_json::from_str(&get(&server.address, "/v1/models").1).unwrap();
    assert_eq!(models["data"][0]["id"], "gemma3-2m-draft");
    let model: Value = serde_json::from_str(&get(&server.address, "/v1/models/gemma3-2m-draft").1).unwrap();
    assert_eq!(model, models["data"][0]);
    let (head, other) = get(&server.address, "/v1/models/some/other");
    assert!(head.starts_with("HTTP/1.0 404 "), "{head}");
    let error = &serde_json::from_str::<Value>(&other).unwrap()["error"];
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["message"], r#"model: expected "gemma3-2m-draft", found "some/other""#);
}

/// A page of any site can send these, and by a name of its own that resolves to this machine read the answers.
#[test]
fn pages_of_other_origins_are_refused_unless_they_are_named() {
    let body = r#"{"prompt": "The sea", "max_tokens": 1}"#;
    let status = |server: &Server, method: &str, headers: &str| {
        let length = body.len();
        let head = format!("{method} {TEXT} HTTP/1.0\r\n{headers}Content-Length: {length}\r\n\r\n");
        let head = head.replace("HERE", &server.address);
        let (head, _) = exchange(&server.address, &(head + body));
        (head.split(' ').nth(1).unwrap().parse::<u16>().unwrap(), head.to_lowercase())
    };
    let json = "Content-Type: application/json\r\n";
    let closed = start(&["--parallel", "1", "--ctx", "64"]);
    for (expected, headers) in [
        (200, format!("Host: HERE\r\n{json}")),
        (200, format!("Host: localhost\r\nOrigin: http://localhost\r\n{json}")),
        (200, "Host: HERE\r\n".to_owned()),
        (415, "Host: HERE\r\nOrigin: http://HERE\r\n".to_owned()),
        (415, "Host: HERE\r\nSec-Fetch-Site: cross-site\r\n".to_owned()),
        (415, "Host: HERE\r\nContent-Type: text/plain\r\n".to_owned()),
        (403, format!("Host: rebound.example\r\n{json}")),
        (403, format!("Host: HERE\r\nOrigin: https://chat.example\r\n{json}")),
        (403, format!("Host: HERE\r\nOrigin: null\r\n{json}")),
        (400, json.to_owned()),
    ] {
        assert_eq!(status(&closed, "POST", &headers).0, expected, "{headers}");
    }
    let options = ["--parallel", "1", "--ctx", "64", "--cors", "https://chat.example", "--allowed-host", "gpu.lan"];
    let open = start(&options);
    let page = "Host: gpu.lan:8006\r\nOrigin: https://chat.example\r\n";
    let asks = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n";
    for (method, headers) in [("POST", format!("{page}{json}")), ("OPTIONS", format!("{page}{asks}"))] {
        let (status, head) = status(&open, method, &headers);
        assert!(status == 200 && head.contains("access-control-allow-origin: https://chat.example"), "{head}");
        assert_eq!(head.contains("access-control-allow-headers: content-type"), method == "OPTIONS", "{head}");
    }
    assert_eq!(status(&open, "POST", &format!("Host: HERE\r\nOrigin: https://evil.example\r\n{json}")).0, 403);
}

/// Tokenizing takes a few hundred bytes of memory for each byte of text.
#[test]
fn prompts_that_cannot_fit_take_no_memory() {
    const MAX_GROWTH_BYTES: u64 = 64 << 20;
    let server = start(&["--parallel", "1", "--ctx", "256"]);
    let text = json!({"prompt": "The sea. ".repeat(100_000)}).to_string();
    let message = json!({"role": "user", "content": "The sea. ".repeat(100_000)});
    let chat = json!({"messages": [message]}).to_string();
    server.whole(TEXT, &json!({"prompt": "The sea", "max_tokens": 1}));
    let before = server.figure("VmHWM");
    let counted = json!({"content": "The sea. ".repeat(100_000)}).to_string();
    let biased = json!({"prompt": "The sea", "logit_bias": [["The sea. ".repeat(100_000), 1]]}).to_string();
    for (path, body) in [(TEXT, &text), (CHAT, &chat), ("/tokenize", &counted), (TEXT, &biased)] {
        let (head, answer) = post(&server.address, path, body);
        assert!(head.starts_with("HTTP/1.0 400 ") && answer.contains("context_length_exceeded"), "{head}\n{answer}");
    }
    let grown = server.figure("VmHWM") - before;
    assert!(grown < MAX_GROWTH_BYTES, "{grown} bytes");
    // No byte of this body is waited for.
    let head = format!("POST {TEXT} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    let (head, _) = exchange(&server.address, &format!("{head}Content-Length: 100000000\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.0 413 "), "{head}");
}

#[test]
fn a_full_queue_and_a_slow_body_are_refused() {
    let server = start(&["--parallel", "1", "--ctx", "4096", "--max-queue", "1", "--timeout", "1"]);
    // Until its end, one sequence runs and the other waits.
    let endless = json!({"prompt": "The sea", "temperature": 0, "n": 2, "stream": true});
    let mut streamed = BufReader::new(begin_post(&server.address, TEXT, &endless.to_string())).lines();
    assert!(streamed.any(|line| line.unwrap().starts_with("data: ")), "it has begun");
    let (head, body) = post(&server.address, TEXT, r#"{"prompt": "The sea"}"#);
    assert!(head.starts_with("HTTP/1.0 429 ") && head.to_lowercase().contains("retry-after: 2"), "{head}");
    assert!(body.contains("rate_limit_error"), "{body}");
    let head = format!("POST {TEXT} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    let (head, _) = exchange(&server.address, &format!("{head}Content-Length: 100\r\n\r\n{{"));
    assert!(head.starts_with("HTTP/1.0 408 "), "{head}");
    drop(streamed);
    // Its places are free after the next step.
    let answers =
        || post(&server.address, TEXT, r#"{"prompt": "The sea", "max_tokens": 1}"#).0.starts_with("HTTP/1.0 200 ");
    let begun = std::time::Instant::now();
    while !answers() {
        assert!(begun.elapsed().as_secs() < 60, "the places stay taken");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_body_that_is_not_utf_8_is_refused() {
    let server = start(&["--parallel", "1", "--ctx", "64"]);
    for body in
        [&b"\xff\xfe"[..], b"{\"prompt\": \"\xc3\x28\", \"max_tokens\": 1}", b"{\"prompt\": \"a\", \"\xf0\x9f\": 1}"]
    {
        let length = body.len();
        let head = format!(
            "POST {TEXT} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 400 ") && answer.contains("body: expected JSON, found"), "{answer}");
    }
}

/// By default, a server at several addresses has one port.
#[test]
fn several_hosts_and_a_socket_give_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("unicorn.sock");
    let hosts = format!("127.0.0.1,127.0.0.2,{}", socket.display());
    let server = start(&["--parallel", "1", "--ctx", "64", "--host", &hosts]);
    let begun = std::time::Instant::now();
    while !server.stderr().contains("http+unix://") {
        assert!(begun.elapsed().as_secs() < 60, "{}", server.stderr());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let port = server.address.rsplit_once(':').unwrap().1;
    let other = format!("127.0.0.2:{port}");
    assert!(server.stderr().contains(&format!(" at http://{other}/v1: ")), "{}", server.stderr());
    let models = get(&server.address, "/v1/models").1;
    assert_eq!(get(&other, "/v1/models").1, models);
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 ") && answer.ends_with(&models), "{answer}");
    // Addresses that were not given are not listened at.
    assert!(std::net::TcpStream::connect(format!("127.0.0.3:{port}")).is_err());
}

#[test]
fn keys_of_a_file_give_access_and_a_file_without_keys_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "one\n\n  two \r\n").unwrap();
    let path = file.to_str().unwrap();
    let server = start(&["--parallel", "1", "--ctx", "64", "--api-key-file", path, "--api-key", "three"]);
    let status = |key: &str| {
        let request = format!("GET /props HTTP/1.0\r\nHost: localhost\r\n{key}\r\n");
        exchange(&server.address, &request).0.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    for key in ["one", "two", "three"] {
        assert_eq!(status(&format!("Authorization: Bearer {key}\r\n")), 200, "{key}");
    }
    assert_eq!((status(""), status("X-Api-Key: \r\n"), status("X-Api-Key: four\r\n")), (401, 401, 401));
    drop(server);
    std::fs::write(&file, "\n  \n").unwrap();
    for (path, expected) in [(path, "expected a key in each line, found none"), ("missing.keys", "missing.keys: ")] {
        let output =
            run(&[]).arg("serve").arg(artifact()).args(["--api-key-file", path, "--port", "0"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(expected), "{error}");
    }
}

#[test]
fn a_sandboxed_server_answers_and_its_threads_are_filtered() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = run(&[]);
    command.env("XDG_RUNTIME_DIR", folder.path());
    let mut server = Server::start(command, &artifact(), &["--parallel", "2", "--ctx", "256", "--sandbox"]);
    let (alone, _) = say(&["--raw", "-p", "The sea", "-n", "16"]);
    let request = json!({"prompt": "The sea", "max_tokens": 16, "temperature": 0, "n": 2});
    let answer = server.whole(TEXT, &request);
    assert_eq!(answer["choices"][1]["text"].as_str(), Some(alone.as_str()));
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"), "{status}");
    }
    // The one folder that it still writes to.
    let file = folder.path().join(format!("unicorn/{}.json", server.child.id()));
    assert!(std::fs::read_to_string(&file).unwrap().contains(r#""tokens":"#));
    send_signal(&server.child, Signal::TERM);
    assert!(server.child.wait().unwrap().success() && !file.exists());
}

#[test]
fn synthetic_weights_are_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let (config, artifact) = (folder.path().join("config.json"), folder.path().join("synthetic.unicorn"));
    std::fs::write(&config, eight_layers(512, 64)).unwrap();
    compile(
        Source::Synthetic(&config),
        &artifact,
        &options(vec![unicorn_spirv::target::by_name("generic").unwrap()], vec![]),
        &mut Silent,
    )
    .unwrap();
    // Before a device is looked for: this one does not exist.
    let output = program("unicorn-run").arg("serve").arg(&artifact).args(["--device", "none"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("error: {}: weights of ", artifact.display());
    let reason = "are synthetic, good for timing and not for text: a server expects those of a trained model";
    assert!(error.starts_with(&expected) && error.contains(reason) && output.stdout.is_empty(), "{error}");
}

#[test]
fn a_port_that_is_taken_ends_it_with_a_clear_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = program("unicorn-run").arg("serve").arg(artifact()).args(["--port", &port]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.starts_with(&format!("error: cannot serve at 127.0.0.1 port {port}: ")), "{error}");
}

/// What `unicorn-run` generates with these arguments, most likely token by most likely token, and why it ended.
fn say(arguments: &[&str]) -> (String, &'static str) {
    let mut command = run(&[]);
    let output = command.arg(artifact()).args(arguments).args(["--temp", "0", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reason = if answer["stop_reason"] == "stop_token" { "stop" } else { "length" };
    (answer["text"].as_str().unwrap().to_owned(), reason)
}

fn start(arguments: &[&str]) -> Server {
    Server::start(run(&[]), &artifact(), arguments)
}

/// The text of the only choice, put together of the chunks of a stream, and why it ended.
fn streamed(server: &Server, path: &str, request: &Value) -> Value {
    let mut request = request.clone();
    request["stream"] = json!(true);
    let (head, body) = post(&server.address, path, &request.to_string());
    assert!(head.starts_with("HTTP/1.0 200 ") && head.contains("text/event-stream"), "{head}\n{body}");
    let mut data: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"));
    let chunks: Vec<Value> = data.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let new = |chunk: &Value| match &chunk["choices"][0] {
        chat if path == CHAT => chat["delta"]["content"].as_str().map(str::to_owned),
        text => text["text"].as_str().map(str::to_owned),
    };
    let (last, others) = chunks.split_last().unwrap();
    assert!(others.len() > 1 && others.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()), "{body}");
    let text: String = chunks.iter().filter_map(new).collect();
    json!({"text": text, "finish_reason": last["choices"][0]["finish_reason"]})
}
