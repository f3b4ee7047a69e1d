//! Malformed requests and misused connections. After each kind, the server must answer a sound request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::Row;
use crate::generators::fullest_request;
use crate::http::{begin_post, get, post};
use crate::server::Server;

pub(super) const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Requests with one thing wrong: each gets a status below 500, or its connection is closed.
pub fn malformed_requests(server: &Server) -> Row {
    Row::of("malformed requests", |row| {
        for bytes in malformed_heads(&server.address) {
            row.inputs += 1;
            match exchange(&server.address, &bytes) {
                Err(error) => row.findings.push(format!("{error} after {:?}", String::from_utf8_lossy(&bytes))),
                Ok(answer) => check_status(row, &answer, &bytes),
            }
        }
        for (path, body) in malformed_bodies() {
            row.inputs += 1;
            let (head, _) = post(&server.address, path, &body);
            check_status(row, head.as_bytes(), body.as_bytes());
        }
        check_answers(row, server);
    })
}

/// Number of idle connections that this process and the servers that it starts may have open, at most `wanted`.
pub fn connections_permitted(wanted: usize) -> usize {
    /// Descriptors of a server besides: files, the device, its own.
    const OTHERS: u64 = 200;
    let limit = getrlimit(Resource::Nofile);
    let needed = wanted as u64 + OTHERS;
    if limit.current.is_some_and(|current| current < needed) {
        let current = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
        // What is not permitted shows in the limit that is read next.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(wanted, |current| wanted.min(current.saturating_sub(OTHERS) as usize))
}

/// Connections that send nothing, and one that sends a byte now and then: the server, whose timeout is `timeout`, closes all of them
/// and answers others.
pub fn idle_connections(server: &Server, count: usize, timeout: Duration) -> Row {
    Row::of("idle and dripping connections", |row| {
        let before = server.descriptors();
        let connect = || TcpStream::connect(&server.address).expect("the system queues it");
        let idle: Vec<TcpStream> = (0..count).map(|_| connect()).collect();
        let mut dripping = connect();
        row.inputs = count as u64 + 1;
        drip(row, "head", &mut dripping, b"G", timeout);
        check_answers(row, server);
        drop(idle);
        let settled = settles(|| server.descriptors() <= before);
        if !settled {
            row.findings.push(format!("{} descriptors after {before}", server.descriptors()));
        }
    })
}

/// Sends a byte now and then of a `part` that never ends, until the server, whose timeout is `timeout`, closes the connection.
pub(super) fn drip(row: &mut Row, part: &str, stream: &mut TcpStream, byte: &[u8; 1], timeout: Duration) {
    let begun = Instant::now();
    while stream.write_all(byte).is_ok() {
        if begun.elapsed() >= PATIENCE {
            return row.findings.push(format!("a {part} that grows by a byte at a time is read for {PATIENCE:?}"));
        }
        std::thread::sleep(timeout / 10);
    }
}

/// Clients that disconnect at any point of a request and of its answer.
pub fn disconnects(server: &Server, count: u64) -> Row {
    Row::of("disconnecting clients", |row| {
        let before = server.descriptors();
        let body = json!({"prompt": "The sea", "temperature": 0, "stream": true}).to_string();
        let host = &server.address;
        let head = format!(
            "POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let whole = head + &body;
        for number in 0..count {
            row.inputs += 1;
            if number % 2 == 0 {
                let end = whole.len() * (number as usize * 7919 % 1000) / 1000;
                let mut stream = TcpStream::connect(host).expect("the server listens");
                let _ = stream.write_all(&whole.as_bytes()[..end]);
            } else {
                let mut stream = begin_post(host, TEXT, &body);
                let mut some = vec![0; 1 + number as usize * 37 % 2000];
                let _ = stream.read(&mut some);
            }
        }
        check_answers(row, server);
        if !settles(|| server.descriptors() <= before) {
            row.findings.push(format!("{} descriptors after {before}", server.descriptors()));
        }
    })
}

pub(super) fn check_answers(row: &mut Row, server: &Server) {
    if !get(&server.address, "/health").0.starts_with("HTTP/1.0 200 ") {
        row.findings.push("/health does not answer 200".into());
    }
    let sound = json!({"prompt": "The sea", "max_tokens": 1}).to_string();
    // Requests whose clients have gone keep their places in the queue until the next step.
    if !settles(|| post(&server.address, TEXT, &sound).0.starts_with("HTTP/1.0 200 ")) {
        row.findings.push("a sound request is not answered".into());
    }
    if server.stderr().contains("panicked") {
        row.findings.push(server.stderr());
    }
}

pub(super) fn check_status(row: &mut Row, answer: &[u8], request: &[u8]) {
    let head = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    // A connection that is closed without an answer has no status.
    if answer.is_empty() || status.is_some_and(|status| status < 500) {
        return;
    }
    let request = String::from_utf8_lossy(&request[..request.len().min(200)]);
    row.findings.push(format!("{head} for {request:?}"));
}

pub(super) fn settles(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// What the server sends until it closes the connection, or until the client, which has sent all, stops waiting.
pub(super) fn exchange(address: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    // The server may close before all is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err("no answer".into()),
        _ => Ok(answer),
    }
}

fn malformed_heads(host: &str) -> Vec<Vec<u8>> {
    let json = "Content-Type: application/json\r\n";
    let head = |line: &str, headers: &str| format!("{line}\r\nHost: {host}\r\n{headers}\r\n").into_bytes();
    let post = format!("POST {TEXT} HTTP/1.1");
    let with_length = |length: &str| head(&post, &format!("{json}Content-Length: {length}\r\n"));
    let chunked = |body: &str| {
        let mut request = head(&post, &format!("{json}Transfer-Encoding: chunked\r\n"));
        request.extend(body.as_bytes());
        request
    };
    let mut heads = vec![
        b"".to_vec(),
        b"\r\n\r\n".to_vec(),
        b"\0\0\0\0".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /\r\n".to_vec(),
        head("GET http://evil.example/ HTTP/1.1", ""),
        head("GET /v1/models/../../../../etc/passwd HTTP/1.0", ""),
        head("GET /v1/models/%00%ff HTTP/1.0", ""),
        head("DELETE /v1/models HTTP/1.0", ""),
        head("TRACE / HTTP/1.0", ""),
        head("GET / HTTP/1.0", "Host: second\r\n"),
        head("GET / HTTP/1.0", &"X: y\r\n".repeat(1000)),
        head("GET / HTTP/1.0", &format!("X: {}\r\n", "y".repeat(1 << 20))),
        head(&format!("GET /{} HTTP/1.0", "y".repeat(1 << 20)), ""),
        chunked("zz\r\n"),
        chunked("ffffffffffffffff\r\n{}"),
        chunked("1\r\n{\r\n0\r\n\r\n"),
        chunked(&format!("{:x}\r\n{}", 64 << 20, "[".repeat(4 << 20))),
        head(&post, &format!("{json}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n")),
        head(&post, &format!("{json}Content-Length: 2\r\nContent-Length: 3\r\n")),
        head(&post, &format!("{json}Expect: 100-continue\r\nContent-Length: 5\r\n")),
        head(&post, "Content-Type: \r\nContent-Length: 0\r\n"),
        [with_length("2"), b"\xff\xfe".to_vec()].concat(),
        [with_length("17"), b"{\"prompt\": \"\xc3\x28\"}".to_vec()].concat(),
    ];
    heads.extend(["-1", "1e9", "0x10", "99999999999999999999", "100000000", "10", ""].map(with_length));
    heads
}

fn malformed_bodies() -> Vec<(&'static str, String)> {
    let deep = "[".repeat(100_000);
    let texts =
        ["", "null", "{", "{}", "[]", "\"", "1e999", "{\"prompt\":}", "{\"prompt\":\"\\ud800\"}", deep.as_str()];
    let mut bodies: Vec<_> =
        texts.iter().flat_map(|text| [(TEXT, text.to_string()), (CHAT, text.to_string())]).collect();
    let values = [
        Value::Null,
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!("\u{0}\u{1b}[2J\u{ffff}"),
        json!([[], {}]),
        json!({"a": {"b": []}}),
        json!("x".repeat(1 << 16)),
    ];
    let sound = fullest_request();
    for name in sound.as_object().expect("an object").keys() {
        for value in &values {
            let mut request = sound.clone();
            // Whatever the rest, one token.
            request["max_tokens"] = json!(1);
            request["stream"] = json!(false);
            request[name] = value.clone();
            bodies.extend([TEXT, CHAT].map(|path| (path, request.to_string())));
        }
    }
    bodies
}
