//! Spans of `unicorn-run serve`, as a collector of OpenTelemetry receives them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Any};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::http::{begin, begin_post, exchange, get, post};
use tests::programs::send_signal;
use tests::server::Server;
use tests::typed::{artifact, run};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const PATIENCE: Duration = Duration::from_secs(60);

/// Receives spans by OTLP over HTTP.
struct Collector {
    endpoint: String,
    received: Arc<Mutex<Received>>,
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    /// Attributes of the last resource.
    resource: BTreeMap<String, Value>,
    /// The last head of a request, in lower case.
    head: String,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Received::default()));
        let collector = Collector { endpoint, received: received.clone() };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let received = received.clone();
                thread::spawn(move || while receive(&stream, &received).is_some() {});
            }
        });
        collector
    }

    /// The first span that passes, once it has come, which is then forgotten.
    fn take(&self, what: &str, passes: impl Fn(&Span) -> bool) -> Span {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let mut received = self.received.lock().unwrap();
            if let Some(index) = received.spans.iter().position(&passes) {
                return received.spans.remove(index);
            }
            drop(received);
            thread::sleep(Duration::from_millis(20));
        }
        panic!("no span of {what}: {:?}", self.received.lock().unwrap().spans);
    }

    fn take_at(&self, path: &str) -> Span {
        self.take(path, |span| attributes(span)["url.path"] == path)
    }
}

/// One request of an exporter, and its answer; `None`: the connection has ended.
fn receive(mut stream: &TcpStream, received: &Mutex<Received>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|&bytes| bytes > 0)?;
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.trim().parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    assert!(head.starts_with("post /v1/traces ") && head.contains("content-type: application/x-protobuf"), "{head}");
    let request = ExportTraceServiceRequest::decode(&body[..]).expect("OTLP");
    let mut received = received.lock().unwrap();
    received.head = head;
    for spans in request.resource_spans {
        received.resource = values(&spans.resource.unwrap().attributes);
        received.spans.extend(spans.scope_spans.into_iter().flat_map(|spans| spans.spans));
    }
    drop(received);
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n").ok()
}

fn values(attributes: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Any::StringValue(text)) => json!(text),
        Some(Any::IntValue(number)) => json!(number),
        Some(Any::DoubleValue(number)) => json!(number),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), value(attribute))).collect()
}

fn attributes(span: &Span) -> BTreeMap<String, Value> {
    values(&span.attributes)
}

/// Time from beginning to end, in seconds.
fn seconds(span: &Span) -> f64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e9
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32)
}

/// A program that sends its spans every tenth of a second.
fn unicorn_run() -> Command {
    let mut command = run(&[]);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "100");
    command
}

fn start(collector: &Collector, arguments: &[&str]) -> Server {
    let ours = ["--parallel", "1", "--ctx", "2048", "--otlp-traces-endpoint", &collector.endpoint];
    Server::start(unicorn_run(), &artifact(), &[&ours, arguments].concat())
}

/// Sends a POST with further headers, each with its line's end.
fn post_with(server: &Server, path: &str, headers: &str, body: &Value) -> (String, Value) {
    let (address, body) = (&server.address, body.to_string());
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (head, body) = exchange(address, &request);
    (head, serde_json::from_str(&body).expect("JSON"))
}

fn assert_used(span: &Span, operation: &str, input: &Value, output: &Value) {
    let found = attributes(span);
    assert_eq!(found["gen_ai.operation.name"], operation);
    assert_eq!((&found["gen_ai.usage.input_tokens"], &found["gen_ai.usage.output_tokens"]), (input, output));
}

#[test]
fn a_request_is_a_span_of_its_client_s_trace() {
    let collector = Collector::start();
    let mut command = unicorn_run();
    command.env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven");
    // The environment's name of the option.
    command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &collector.endpoint);
    let server = Server::start(command, &artifact(), &["--parallel", "1", "--ctx", "512"]);
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let headers =
        format!("traceparent: 00-{trace}-{parent}-01\r\ntracestate: a=1\r\ntracestate: b=2\r\nX-Request-Id: mine\r\n");
    let body = json!({"model": "any", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 9});
    let begun = Instant::now();
    let (_, answer) = post_with(&server, CHAT, &headers, &body);
    let took = begun.elapsed().as_secs_f64();

    let span = collector.take_at(CHAT);
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (trace.to_owned(), parent.to_owned()));
    assert!(span.span_id.len() == 8 && hex(&span.span_id) != parent && span.trace_state == "a=1,b=2", "{span:?}");
    assert_eq!((&*span.name, span.kind), ("POST /v1/chat/completions", SpanKind::Server as i32));
    assert!(!is_error(&span) && seconds(&span) <= took, "{span:?}");
    let usage = &answer["usage"];
    assert_used(&span, "chat", &usage["prompt_tokens"], &usage["completion_tokens"]);
    let found = attributes(&span);
    for (name, value) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!(CHAT)),
        ("http.response.status_code", json!(200)),
        ("url.scheme", json!("http")),
        ("gen_ai.provider.name", json!("unicorn")),
        ("gen_ai.request.id", json!("mine")),
        ("gen_ai.request.model", json!("any")),
        ("gen_ai.response.model", answer["model"].clone()),
        ("gen_ai.usage.cache_read.input_tokens", json!(0)),
    ] {
        assert_eq!(found[name], value, "{name}");
    }
    let time = |name: &str| found[name].as_f64().unwrap();
    let (queue, first) = (time("gen_ai.latency.time_in_queue"), time("gen_ai.latency.time_to_first_token"));
    assert!(0.0 <= queue && queue < first && first < seconds(&span), "{queue} {first} {}", seconds(&span));
    assert!(!found.contains_key("error.type"));
    {
        let received = collector.received.lock().unwrap();
        assert_eq!(received.resource["service.name"], "unicorn-run");
        assert_eq!(received.resource["deployment.environment.name"], "test");
        assert!(received.head.contains("x-tenant: seven"), "{}", received.head);
    }

    // A client that records no trace gets no span; one without a trace begins one; what is polled is none.
    get(&server.address, "/health");
    post_with(&server, CHAT, &format!("traceparent: 00-{trace}-{parent}-00\r\n"), &body);
    let (head, answer) = post_with(&server, TEXT, "", &json!({"prompt": "The sea", "max_tokens": 3}));
    let span = collector.take("any", |_| true);
    assert!(span.name == "POST /v1/completions" && span.parent_span_id.is_empty(), "{span:?}");
    assert!(span.trace_id.len() == 16 && hex(&span.trace_id) != trace, "{span:?}");
    assert_used(&span, "text_completion", &answer["usage"]["prompt_tokens"], &json!(3));
    let id = head.lines().find_map(|line| line.strip_prefix("X-Request-Id: ")).expect("an id");
    assert_eq!(attributes(&span)["gen_ai.request.id"], id);
    assert_eq!(attributes(&span)["gen_ai.request.model"], answer["model"]);
}

#[test]
fn streams_end_their_spans_and_so_do_clients_that_leave() {
    let collector = Collector::start();
    let server = start(&collector, &[]);
    let request = json!({"prompt": "The sea", "max_tokens": 24, "temperature": 0, "ignore_eos": true, "n": 2,
        "stream": true, "stream_options": {"include_usage": true}});
    let begun = Instant::now();
    let (_, body) = post(&server.address, TEXT, &request.to_string());
    let took = begun.elapsed().as_secs_f64();
    let mut usage = body.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let usage = usage.next_back().expect("a last event")["usage"].clone();
    let span = collector.take_at(TEXT);
    assert_used(&span, "text_completion", &usage["prompt_tokens"], &json!(48));
    let found = attributes(&span);
    assert!(!found.contains_key("error.type") && found["http.response.status_code"] == 200, "{found:?}");
    // Until the last event, as the number of tokens has shown.
    let first = found["gen_ai.latency.time_to_first_token"].as_f64().unwrap();
    assert!(first < seconds(&span) && seconds(&span) <= took, "{first} {took} {}", seconds(&span));

    let endless = json!({"prompt": "The sea", "temperature": 0, "ignore_eos": true, "n": 8, "stream": true});
    let mut streamed = BufReader::new(begin_post(&server.address, TEXT, &endless.to_string())).lines();
    assert!(streamed.any(|line| line.unwrap().starts_with("data: ")), "it has begun");
    // It waits for the sequence that the first has.
    let mut whole = endless.clone();
    whole["stream"] = json!(false);
    let waiting = begin_post(&server.address, "/completion", &whole.to_string());
    thread::sleep(Duration::from_millis(100));
    drop((streamed, waiting));
    let span = collector.take_at(TEXT);
    let found = attributes(&span);
    assert!(found["error.type"] == "client_left" && found["http.response.status_code"] == 200, "{found:?}");
    assert!((1..8 * 2048).contains(&found["gen_ai.usage.output_tokens"].as_i64().unwrap()), "{found:?}");
    assert!(!is_error(&span));
    let found = attributes(&collector.take_at("/completion"));
    assert!(found["error.type"] == "client_left" && !found.contains_key("http.response.status_code"), "{found:?}");
}

#[test]
fn requests_that_fail_name_their_error() {
    let collector = Collector::start();
    let server = start(&collector, &["--api-key", "secret"]);
    let address = &server.address;
    let with_key = |path: &str, length: usize, body: &str| {
        format!(
            "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Authorization: Bearer secret\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let no_object = "[1]";
    exchange(address, &with_key(CHAT, no_object.len(), no_object));
    let span = collector.take_at(CHAT);
    let found = attributes(&span);
    assert!(found["error.type"] == "400" && found["http.response.status_code"] == 400, "{found:?}");
    // It is the client's, and there is a route, though no model was reached.
    assert!(!is_error(&span) && span.name == "POST /v1/chat/completions", "{span:?}");
    assert!(!found.contains_key("gen_ai.response.model") && !found.contains_key("gen_ai.usage.output_tokens"));

    // A body that ends before its length.
    drop(begin(address, &with_key("/infill", 100, "{")));
    let found = attributes(&collector.take_at("/infill"));
    assert!(["400", "client_left"].contains(&found["error.type"].as_str().unwrap()), "{found:?}");

    let (_, unknown) = exchange(address, &with_key("/v9/any/path", 2, "{}"));
    assert!(unknown.contains("no endpoint"), "{unknown}");
    let span = collector.take_at("/v9/any/path");
    assert!(span.name == "POST" && attributes(&span)["error.type"] == "404", "{span:?}");
    assert!(!attributes(&span).contains_key("http.route"));

    post(address, "/tokenize", r#"{"content": "a"}"#);
    let found = attributes(&collector.take_at("/tokenize"));
    assert!(found["error.type"] == "401" && found["http.response.status_code"] == 401, "{found:?}");

    exchange(address, &format!("BREW / HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer secret\r\n\r\n"));
    let span = collector.take_at("/");
    assert_eq!((attributes(&span)["http.request.method"].as_str(), &*span.name), (Some("_OTHER"), "HTTP /"));
}

#[test]
fn embeddings_and_ranks_are_spans_too() {
    let collector = Collector::start();
    let server = start(&collector, &["--embeddings", "--reranking"]);
    let answer = server.whole("/v1/embeddings", &json!({"model": "e", "input": ["The sea", "A fox"]}));
    let span = collector.take_at("/v1/embeddings");
    assert_used(&span, "embeddings", &answer["usage"]["prompt_tokens"], &json!(0));
    let found = attributes(&span);
    assert_eq!(found["gen_ai.request.model"], "e");
    let waited = found["gen_ai.latency.time_in_queue"].as_f64().unwrap();
    assert!(waited < seconds(&span) && !found.contains_key("gen_ai.latency.time_to_first_token"), "{found:?}");
    let answer = server.whole("/v1/rerank", &json!({"query": "Who?", "documents": ["A fox"]}));
    assert_used(&collector.take_at("/v1/rerank"), "rerank", &answer["usage"]["prompt_tokens"], &json!(0));
    let (head, _) = post(&server.address, "/embedding", r#"{"input": "a", "dimensions": 0}"#);
    assert!(head.contains(" 400 "), "{head}");
    assert_eq!(attributes(&collector.take_at("/embedding"))["error.type"], "400");
}

#[test]
fn of_several_models_the_span_names_one_and_one_that_fails_is_an_error() {
    let collector = Collector::start();
    let broken = tempfile::NamedTempFile::with_suffix(".unicorn").unwrap();
    std::fs::write(&broken, &std::fs::read(artifact()).unwrap()[..8192]).unwrap();
    let mut command = unicorn_run();
    command.args(["serve", "--parallel", "1", "--ctx", "256", "--otlp-traces-endpoint", &collector.endpoint]);
    command.arg("--model").arg(format!("small={}", artifact().display()));
    command.arg("--model").arg(format!("broken={}", broken.path().display()));
    // The file is looked at before the server starts, as far as it can be.
    let server = Server::begin(command);
    let answer = server.whole(TEXT, &json!({"model": "small:latest", "prompt": "The sea", "max_tokens": 2}));
    let span = collector.take_at(TEXT);
    assert_used(&span, "text_completion", &answer["usage"]["prompt_tokens"], &json!(2));
    assert_eq!(span.name, "POST /v1/completions");
    let found = attributes(&span);
    assert_eq!(
        (&found["gen_ai.request.model"], &found["gen_ai.response.model"]),
        (&json!("small:latest"), &json!("small"))
    );
    let (head, _) =
        post(&server.address, CHAT, r#"{"model": "broken", "messages": [{"role": "user", "content": "a"}]}"#);
    assert!(head.contains(" 503 "), "{head}");
    let span = collector.take_at(CHAT);
    assert!(is_error(&span) && attributes(&span)["error.type"] == "503", "{span:?}");
}

#[test]
fn a_server_that_is_drained_has_sent_its_spans() {
    let collector = Collector::start();
    let mut command = unicorn_run();
    command.env("OTEL_BSP_SCHEDULE_DELAY", "3600000").env("OTEL_SERVICE_NAME", "named");
    // The environment's name of the collector for all signals.
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.strip_suffix("/v1/traces").unwrap());
    let mut server = Server::start(command, &artifact(), &["--parallel", "1", "--ctx", "256"]);
    let request = json!({"prompt": "The sea", "max_tokens": 32, "temperature": 0, "ignore_eos": true, "stream": true});
    let mut streamed = BufReader::new(begin_post(&server.address, TEXT, &request.to_string())).lines();
    assert!(streamed.any(|line| line.unwrap().starts_with("data: ")), "it has begun");
    assert!(collector.received.lock().unwrap().spans.is_empty());
    send_signal(&server.child, Signal::TERM);
    assert!(streamed.map(Result::unwrap).any(|line| line == "data: [DONE]"));
    assert!(server.child.wait().unwrap().success());
    let received = collector.received.lock().unwrap();
    assert_eq!(received.resource["service.name"], "named");
    assert_eq!(attributes(&received.spans[0])["gen_ai.usage.output_tokens"], 32);
    assert!(received.spans.len() == 1 && !attributes(&received.spans[0]).contains_key("error.type"));
}

/// One port refuses connections; the other accepts them and never answers.
#[test]
fn without_a_collector_the_server_answers_and_says_so_once() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, says_so) in [(closed, true), (silent.local_addr().unwrap(), false)] {
        let mut command = unicorn_run();
        command.args(["serve"]).arg(artifact()).args(["--parallel", "1", "--ctx", "256"]);
        // Fewer places than requests.
        command
            .args(["--otlp-traces-endpoint", &format!("http://{address}/v1/traces")])
            .env("OTEL_BSP_MAX_QUEUE_SIZE", "4");
        let mut server = Server::begin(command);
        let begun = Instant::now();
        for _ in 0..40 {
            server.whole("/tokenize", &json!({"content": "The sea"}));
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let note = "traces cannot be sent";
        while says_so && !server.stderr().contains(note) {
            assert!(begun.elapsed() < PATIENCE, "{}", server.stderr());
            thread::sleep(Duration::from_millis(20));
        }
        server.whole("/tokenize", &json!({"content": "The sea"}));
        thread::sleep(Duration::from_millis(500));
        assert_eq!(server.stderr().matches(note).count(), usize::from(says_so), "{}", server.stderr());
        let ending = Instant::now();
        send_signal(&server.child, Signal::TERM);
        assert!(server.child.wait().unwrap().success());
        assert!(ending.elapsed() < Duration::from_secs(20), "{:?}", ending.elapsed());
    }
}

#[test]
fn no_traces_leave_a_sandbox_and_none_are_sent_to_what_is_no_url() {
    let refusal = |arguments: &[&str], variable: Option<&str>| {
        let mut command = unicorn_run();
        command.arg("serve").arg(artifact()).args(arguments);
        command.envs(variable.map(|name| (name, "http://127.0.0.1:4318")));
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let url = "http://127.0.0.1:4318/v1/traces";
    let sandboxed = "--sandbox denies outgoing connections, and --otlp-traces-endpoint needs one";
    for (arguments, variable) in [
        (&["--sandbox", "--otlp-traces-endpoint", url][..], None),
        (&["--sandbox"], Some("OTEL_EXPORTER_OTLP_ENDPOINT")),
        (&["--sandbox"], Some("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")),
    ] {
        let error = refusal(arguments, variable);
        assert!(error.contains(sandboxed), "{error}");
    }
    let error = refusal(&["--otlp-traces-endpoint", "grpc://127.0.0.1:4317"], None);
    assert!(error.contains("expected the URL where OTLP is received over HTTP"), "{error}");
}
