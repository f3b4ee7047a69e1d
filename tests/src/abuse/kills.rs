//! Servers that are killed while they answer. The next one answers as the first did.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::Row;
use crate::http::begin_post;
use crate::programs::send_signal;
use crate::server::Server;

/// Kills `count` servers, which `command` starts, at different moments of a stream.
pub fn kills(command: impl Fn() -> Command, artifact: &Path, count: u64) -> Row {
    Row::of("kills while answering", |row| {
        let arguments = ["--parallel", "1", "--ctx", "1024"];
        let request = json!({"prompt": "The sea", "max_tokens": 8, "temperature": 0});
        let mut expected = None;
        for number in 0..=count {
            let mut server = Server::start(command(), artifact, &arguments);
            let answer = server.whole("/v1/completions", &request)["choices"][0]["text"].clone();
            if *expected.get_or_insert_with(|| answer.clone()) != answer {
                row.findings.push(format!("after a kill: {answer}"));
            }
            if number == count {
                return;
            }
            row.inputs += 1;
            let endless = json!({"prompt": "The ship", "temperature": 0, "stream": true}).to_string();
            let mut lines = BufReader::new(begin_post(&server.address, "/v1/completions", &endless)).lines();
            let _ = lines.nth(number as usize % 20);
            std::thread::sleep(Duration::from_millis(number * 13 % 50));
            send_signal(&server.child, Signal::KILL);
            let status = server.child.wait().expect("it was started");
            if status.success() {
                row.findings.push(format!("ended before it was killed: {}", server.stderr()));
            }
        }
    })
}
