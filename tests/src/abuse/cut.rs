//! Artifacts that are cut while a device reads their pages.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use unicorn_artifact::{Lease, MappedFile};

use super::Row;
use crate::http::begin_post;
use crate::server::Server;

/// Either is right: the file is open for writing for a moment.
const EXPECTED: [&str; 2] =
    ["the file ends too early, it was cut while it was in use", "another program has it open for writing"];

/// Cuts the file of a server that streams an answer, `count` times, at different moments: the answer ends with an error that names the
/// file, and once the file is whole again, the server answers as before. Only where the file system has leases: elsewhere a software device
/// does not read a file's pages.
pub fn cut_artifacts(command: Command, artifact: &Path, count: u64) -> Row {
    Row::of("artifacts cut while answering", |row| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cut.unicorn");
        let whole = std::fs::read(artifact).expect("the artifact");
        std::fs::write(&path, &whole).expect("room for another artifact");
        let arguments = ["--parallel", "1", "--ctx", "1024", "--residency", "import"];
        let server = Server::start(command, &path, &arguments);
        let request = json!({"prompt": "The sea", "max_tokens": 4, "temperature": 0});
        let before = server.whole("/v1/completions", &request)["choices"].clone();
        for number in 0..count {
            let endless = json!({"prompt": "The ship", "temperature": 0, "stream": true, "ignore_eos": true});
            let stream = begin_post(&server.address, "/v1/completions", &endless.to_string());
            let mut lines = BufReader::new(stream).lines();
            let _ = lines.nth(number as usize % 20);
            std::thread::sleep(Duration::from_micros(number * 1300 % 50_000));
            let cut = OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(4096));
            cut.expect("it can be cut");
            row.inputs += 1;
            let last = lines.map_while(Result::ok).filter(|line| !line.is_empty()).last().unwrap_or_default();
            if !EXPECTED.iter().any(|expected| last.contains(&format!("cut.unicorn: {expected}"))) {
                row.findings.push(format!("{last}\n{}", server.stderr()));
            }
            // In place, as a careless copy does it.
            std::fs::write(&path, &whole).expect("room for the artifact");
            if server.whole("/v1/completions", &request)["choices"] != before {
                row.findings.push("another answer than before".into());
            }
        }
    })
}

/// Whether the file system of temporary files has leases.
pub fn has_leases(artifact: &Path) -> bool {
    MappedFile::open(artifact).is_ok_and(|file| file.take_lease() == Lease::Held)
}
