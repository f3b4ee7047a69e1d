//! As much of an HTTP client as tests need: one request a connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Maximum wait: longer than an answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Head and body of the answer to a GET.
///
/// # Panics
/// If there is no answer.
pub fn get(address: &str, path: &str) -> (String, String) {
    exchange(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"))
}

/// Head and body of the answer to a POST of JSON.
///
/// # Panics
/// If there is no answer.
pub fn post(address: &str, path: &str, body: &str) -> (String, String) {
    exchange(address, &post_request(address, path, body))
}

/// Sends a POST of JSON, whose answer is still to be read: a body that ends with its connection.
///
/// # Panics
/// If the connection is refused.
pub fn begin_post(address: &str, path: &str, body: &str) -> TcpStream {
    begin(address, &post_request(address, path, body))
}

fn post_request(address: &str, path: &str, body: &str) -> String {
    // With 1.1, a body may come in chunks that the client has to join.
    format!(
        "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Head and body of the answer to a request of any form, whose connection the server closes.
///
/// # Panics
/// If there is no answer.
pub fn exchange(address: &str, request: &str) -> (String, String) {
    let mut answer = String::new();
    begin(address, request).read_to_string(&mut answer).expect("an answer in UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

/// Sends a request of any form, whose answer is still to be read.
///
/// # Panics
/// If the connection is refused.
pub fn begin(address: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is above zero");
    stream.write_all(request.as_bytes()).expect("the server reads");
    stream
}
