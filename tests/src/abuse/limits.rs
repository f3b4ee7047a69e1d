//! Requests that are too long, too slow, or a page's of another site: they are refused, and take no memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use super::Row;
use super::http::{PATIENCE, TEXT, check_answers, check_status, drip, exchange, settles};
use crate::http::post;
use crate::server::Server;

/// Tokenizing takes a few hundred bytes for each byte of text.
const MAX_GROWTH_BYTES: u64 = 96 << 20;
const CLIENTS: u64 = 3;
const HUGE_BODY_BYTES: usize = 100_000_000;
/// A body is read up to its limit, of a megabyte beyond a full context.
const MAX_BODY_GROWTH_BYTES: u64 = 16 << 20;

/// Prompts of 15 MB, and the longest that a body may hold, sent by three clients at a time, `count` times.
pub fn huge_prompts(server: &Server, count: u64) -> Row {
    Row::of("huge prompts", |row| {
        check_answers(row, server);
        let before = server.figure("VmHWM");
        for number in 0..count {
            let repeats = if number % 2 == 0 { 15_000_000 / 9 } else { 100_000 };
            let body = json!({"prompt": "The sea. ".repeat(repeats), "max_tokens": 1}).to_string();
            let answers: Vec<Vec<u8>> = std::thread::scope(|scope| {
                let clients: Vec<_> =
                    (0..CLIENTS).map(|_| scope.spawn(|| exchange(&server.address, &request(server, &body)))).collect();
                // A server that closes while it is sent to leaves no answer.
                clients.into_iter().map(|client| client.join().expect("no panic").unwrap_or_default()).collect()
            });
            row.inputs += CLIENTS;
            for answer in answers {
                check_status(row, &answer, b"a huge prompt");
                if answer.starts_with(b"HTTP/1.1 200") {
                    row.findings.push("a prompt beyond the context is answered".into());
                }
            }
        }
        check_answers(row, server);
        let grown = server.figure("VmHWM").saturating_sub(before);
        if grown > MAX_GROWTH_BYTES {
            row.findings.push(format!("{grown} bytes more than before"));
        }
    })
}

/// Bodies of 100 MB, with their length in the head and in chunks without it, all of which is sent unless the server closes the connection,
/// `count` times each.
pub fn huge_bodies(server: &Server, count: u64) -> Row {
    Row::of("huge bodies", |row| {
        check_answers(row, server);
        let before = server.figure("VmHWM");
        for number in 0..2 * count {
            let framing = if number % 2 == 0 {
                format!("Content-Length: {HUGE_BODY_BYTES}")
            } else {
                "Transfer-Encoding: chunked".to_owned()
            };
            row.inputs += 1;
            let (answer, sent) = send_huge_body(server, &framing);
            if !(answer.is_empty() || answer.starts_with(b"HTTP/1.1 413 ")) {
                let answer = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
                row.findings.push(format!("{answer:?} after {sent} bytes, {framing}"));
            }
            check_answers(row, server);
        }
        let grown = server.figure("VmHWM").saturating_sub(before);
        if grown > MAX_BODY_GROWTH_BYTES {
            row.findings.push(format!("{grown} bytes more than before"));
        }
    })
}

/// The answer to a body of which the server reads as much as it likes, and how much it took.
fn send_huge_body(server: &Server, framing: &str) -> (Vec<u8>, usize) {
    const PART_BYTES: usize = 100_000;
    let part = " ".repeat(PART_BYTES);
    let part = match framing.starts_with("Content-Length") {
        true => part,
        false => format!("{PART_BYTES:x}\r\n{part}\r\n"),
    };
    let mut stream = TcpStream::connect(&server.address).expect("the system queues it");
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let head = format!(
        "POST {TEXT} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{framing}\r\n\r\n",
        server.address
    );
    let _ = stream.write_all(head.as_bytes());
    let mut sent = 0;
    while sent < HUGE_BODY_BYTES && stream.write_all(part.as_bytes()).is_ok() {
        sent += PART_BYTES;
    }
    if sent == HUGE_BODY_BYTES && framing.ends_with("chunked") {
        let _ = stream.write_all(b"0\r\n\r\n");
    }
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut answer);
    (answer, sent)
}

/// Bodies that end after some bytes, and one that grows by a byte now and then: the server, whose timeout is `timeout`, closes their
/// connections and answers others.
pub fn slow_bodies(server: &Server, count: usize, timeout: Duration) -> Row {
    Row::of("slow bodies", |row| {
        let before = server.descriptors();
        let head = post_head("application/json", &server.address, "", 1000);
        let begin = || {
            let mut stream = TcpStream::connect(&server.address).expect("the system queues it");
            let _ = stream.write_all(head.as_bytes());
            stream
        };
        let stopped: Vec<TcpStream> = (0..count).map(|_| begin()).collect();
        let mut dripping = begin();
        row.inputs = count as u64 + 1;
        drip(row, "body", &mut dripping, b" ", timeout);
        for mut stream in stopped {
            let mut answer = Vec::new();
            let _ = stream.set_read_timeout(Some(PATIENCE));
            // A reset is an end, too.
            let _ = stream.read_to_end(&mut answer);
            check_status(row, &answer, b"a body that stops");
        }
        check_answers(row, server);
        if !settles(|| server.descriptors() <= before) {
            row.findings.push(format!("{} descriptors after {before}", server.descriptors()));
        }
    })
}

/// What a page of another site can make a browser send, `count` times each: nothing of it may be answered.
pub fn foreign_pages(server: &Server, count: u64) -> Row {
    Row::of("requests of foreign pages", |row| {
        let body = json!({"prompt": "The sea", "max_tokens": 1}).to_string();
        let own = server.address.as_str();
        let (json, text) = ("application/json", "text/plain");
        let forms = [
            (text, own, ""),
            ("application/x-www-form-urlencoded", own, ""),
            (text, own, "Origin: https://evil.example\r\n"),
            (json, own, "Origin: https://evil.example\r\n"),
            (json, own, "Origin: null\r\n"),
            (json, "rebound.example", ""),
            (json, "127.0.0.1.rebound.example", "Origin: http://127.0.0.1.rebound.example\r\n"),
        ];
        for (kind, host, origin) in (0..count).flat_map(|_| forms) {
            let request = post_head(kind, host, origin, body.len()) + &body;
            row.inputs += 1;
            let answer = exchange(&server.address, request.as_bytes()).unwrap_or_default();
            let answer = String::from_utf8_lossy(&answer);
            check_status(row, answer.as_bytes(), request.as_bytes());
            if answer.contains(" 200 ") || answer.to_lowercase().contains("access-control-allow-origin") {
                row.findings.push(format!("{answer} for {request:?}"));
            }
        }
        if !post(own, TEXT, &body).0.starts_with("HTTP/1.0 200 ") {
            row.findings.push("the same request of a program is not answered".into());
        }
    })
}

fn request(server: &Server, body: &str) -> Vec<u8> {
    (post_head("application/json", &server.address, "", body.len()) + body).into_bytes()
}

fn post_head(kind: &str, host: &str, headers: &str, length: usize) -> String {
    format!(
        "POST {TEXT} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )
}
