//! Connections of `unicorn-run serve`: clients that leave, clients that do not read, sockets that a service manager has bound, and the line
//! that is logged for each request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::http::{begin_post, exchange, get, post};
use tests::server::Server;
use tests::typed::{artifact, run};

const TEXT: &str = "/v1/completions";
const PATIENCE: Duration = Duration::from_secs(120);

fn start(arguments: &[&str]) -> Server {
    Server::start(run(&[]), &artifact(), arguments)
}

fn settles(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A figure of `/metrics`.
fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = get(&server.address, "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn steps(server: &Server) -> u64 {
    metric(server, "llamacpp:n_decode_total")
}

fn is_idle(server: &Server) -> bool {
    metric(server, "llamacpp:requests_processing") == 0
}

/// The server's end of a client's connection, as its descriptors name it.
fn socket_of(server: &Server, client: &TcpStream) -> PathBuf {
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    let own = server.address.rsplit_once(':').unwrap().1.parse().ok();
    let theirs = Some(client.local_addr().unwrap().port());
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let mut connections = connections.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    let connection = connections.find(|fields| port(fields[1]) == own && port(fields[2]) == theirs);
    format!("socket:[{}]", connection.expect("it is open")[9]).into()
}

fn has_open(server: &Server, socket: &Path) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
    descriptors.flatten().any(|descriptor| std::fs::read_link(descriptor.path()).is_ok_and(|file| file == socket))
}

/// Counted in steps from the moment on at which the server has closed the connection.
#[test]
fn a_sequence_ends_with_the_step_in_which_its_client_leaves() {
    const MAX_TOKENS: u64 = 4000;
    // One that is counted after its token was passed on, the one that runs, and one that was submitted ahead of its end.
    const STEPS_IN_FLIGHT: u64 = 3;
    let server = start(&["--parallel", "1", "--ctx", "4096", "--metrics"]);
    for stream in [true, false] {
        let before = steps(&server);
        let long = json!({"prompt": "The sea", "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": true, "stream": stream});
        let client = begin_post(&server.address, TEXT, &long.to_string());
        settles("the text has begun", || steps(&server) > before);
        let socket = socket_of(&server, &client);
        assert!(has_open(&server, &socket));
        drop(client);
        settles("the connection is closed", || !has_open(&server, &socket));
        let at_close = steps(&server);
        settles("the sequence ends", || is_idle(&server));
        let at_end = steps(&server);
        assert!(at_end - at_close <= STEPS_IN_FLIGHT, "{at_close} steps at its end, then {at_end}; stream: {stream}");
        assert!(at_end - before < MAX_TOKENS, "it ended by itself");
    }
}

/// What was computed of the prompt stays in the cache, and shows how far that was.
#[test]
fn a_prompt_is_not_computed_to_its_end_for_a_client_that_has_left() {
    let server = start(&["--parallel", "1", "--ctx", "4096", "--batch-size", "32", "--metrics"]);
    let prompt = "The island lay in the sun, and the sea was calm. ".repeat(220);
    let request = json!({"prompt": prompt, "max_tokens": 1, "stream": true, "return_progress": true});
    let mut parts = BufReader::new(begin_post(&server.address, TEXT, &request.to_string())).lines().map(Result::unwrap);
    let progress = |line: String| {
        let part: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
        part["prompt_progress"]["processed"].as_u64()
    };
    assert!(parts.by_ref().filter_map(progress).any(|processed| processed > 0), "it has begun");
    drop(parts);
    settles("the sequence ends", || is_idle(&server));
    let usage = server.whole(TEXT, &json!({"prompt": prompt, "max_tokens": 1}))["usage"].take();
    let total = usage["prompt_tokens"].as_u64().unwrap();
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 0 && cached < total - 64, "{cached} of {total} tokens");
}

/// Events are large by the model's name, so that they soon fill the buffers of a connection.
#[test]
fn a_client_that_does_not_read_holds_up_no_other_and_loses_nothing() {
    const TOKENS: usize = 1500;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("unicorn.sock");
    let (hosts, alias) = (format!("127.0.0.1,{}", socket.display()), "x".repeat(4000));
    let options = ["--parallel", "2", "--ctx", "2048", "--timeout", "600", "--metrics", "--host", &hosts];
    let server = start(&[&options[..], &["--alias", &alias]].concat());
    let long = json!({"prompt": "The sea", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": true});
    let short = json!({"prompt": "He said that", "max_tokens": 16, "temperature": 0});
    let alone = [&long, &short].map(|request| server.whole(TEXT, request)["choices"][0]["text"].take());
    let before = steps(&server);

    let mut stream = long.clone();
    stream["stream"] = json!(true);
    let body = stream.to_string();
    settles("it listens at the socket", || socket.exists());
    // The buffers of a Unix domain socket do not grow.
    let mut slow = UnixStream::connect(&socket).unwrap();
    let head = format!("POST {TEXT} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    slow.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    // Three megabytes in events, of which the connection takes less than one.
    settles("its text goes on", || steps(&server) > before + TOKENS as u64 / 2);
    assert_eq!(server.whole(TEXT, &short)["choices"][0]["text"], alone[1]);
    settles("its text ends", || is_idle(&server));
    assert_eq!(server.whole(TEXT, &short)["choices"][0]["text"], alone[1]);

    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    let data: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"));
    // Many tokens in one event are those that waited for the client.
    assert!(data.len() < TOKENS / 2, "{} events: the client was never waited for", data.len());
    let parts = data.iter().filter_map(|part| serde_json::from_str::<Value>(part).ok());
    let text: String = parts.filter_map(|part| part["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(alone[0], text);
}

/// As systemd passes it: a bound socket as descriptor 3, and the number of the process that it is for.
#[test]
fn an_inherited_socket_takes_the_place_of_host_and_port() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let run = run(&[]);
    let mut command = Command::new("sh");
    command.args(["-c", r#"LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@" 3<&0 0</dev/null"#]).arg(run.get_program());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::from(OwnedFd::from(socket)));
    let server = Server::start(command, &artifact(), &["--parallel", "1", "--ctx", "64"]);
    assert_eq!(server.address, address);
    let answer = server.whole(TEXT, &json!({"prompt": "The sea", "max_tokens": 2}));
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[test]
fn a_line_of_json_is_logged_for_each_request() {
    let server = start(&["--parallel", "1", "--ctx", "64", "--log", "json"]);
    let with_id =
        |line: &str| format!("{line} HTTP/1.0\r\nHost: {}\r\nX-Request-Id: its \"own\"\r\n\r\n", server.address);
    assert!(exchange(&server.address, &with_id("GET /v1/models?a=secret")).0.starts_with("HTTP/1.0 200 "));
    assert!(get(&server.address, "/nowhere").0.starts_with("HTTP/1.0 404 "));
    let (head, _) = post(&server.address, TEXT, r#"{"prompt": "A secret", "max_tokens": 1}"#);
    let id = head.lines().find_map(|line| line.to_lowercase().strip_prefix("x-request-id: ").map(str::to_owned));

    let lines = || server.stderr().lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect::<Vec<_>>();
    settles("each request is logged", || lines().len() >= 3);
    let (lines, mut found) = (lines(), Vec::new());
    for line in &lines {
        let mut event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let timestamp = event["timestamp"].as_str().unwrap();
        assert!(timestamp.ends_with('Z') && timestamp.as_bytes()[10] == b'T', "{line}");
        assert!(event["fields"]["ms"].is_u64(), "{line}");
        event["fields"]["ms"] = json!(0);
        event["timestamp"].take();
        found.push(event);
    }
    let event = |status: u16, id: &str, method: &str, path: &str| {
        let fields = json!({"message": "answered", "status": status, "ms": 0});
        let span = json!({"id": id, "method": method, "path": path, "name": "request"});
        json!({"timestamp": null, "level": "INFO", "fields": fields, "span": span})
    };
    let random = found[1]["span"]["id"].as_str().unwrap().to_owned();
    assert_eq!(random.len(), 36, "{random}");
    let expected = [
        event(200, "its \"own\"", "GET", "/v1/models"),
        event(404, &random, "GET", "/nowhere"),
        event(200, &id.expect("an id in the response"), "POST", TEXT),
    ];
    assert_eq!(found, expected);
    assert!(!server.stderr().contains("secret"), "{}", server.stderr());
}
