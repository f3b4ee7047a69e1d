//! `unicorn-run serve` as tests start it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::http::post;

/// Maximum wait: longer than a small model takes to load on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that accepts requests. It is killed when the value is dropped.
pub struct Server {
    /// The process.
    pub child: Child,
    /// Host and port.
    pub address: String,
    stderr: Arc<Mutex<String>>,
}

impl Server {
    /// Adds `serve`, the artifact and a free port to `command`, then `arguments`, and waits until it accepts requests.
    ///
    /// # Panics
    /// When it ends, or takes too long.
    pub fn start(mut command: Command, artifact: &Path, arguments: &[&str]) -> Server {
        command.arg("serve").arg(artifact).args(arguments);
        Server::begin(command)
    }

    /// Starts a command that ends with `serve` and its arguments, adds a free port, and waits until it accepts requests.
    ///
    /// # Panics
    /// When it ends, or takes too long.
    pub fn begin(mut command: Command) -> Server {
        command.args(["--port", "0"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let lines = BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (sender, addresses) = mpsc::channel();
        let written = stderr.clone();
        // Until the process ends, so that it never waits for a reader.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once(" at http://") {
                    let _ = sender.send(rest.split_once("/v1: ").map(|(address, _)| address.to_owned()));
                }
                *written.lock().expect("no thread panics here") += &(line + "\n");
            }
        });
        let address = addresses.recv_timeout(PATIENCE).ok().flatten();
        let Some(address) = address else {
            let _ = child.kill();
            panic!("server did not start: {}", stderr.lock().expect("no thread panics here"));
        };
        Server { child, address, stderr }
    }

    /// What it has written to stderr until now.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("no thread panics here").clone()
    }

    /// The whole answer to a request, as JSON.
    ///
    /// # Panics
    /// When the status is not 200.
    pub fn whole(&self, path: &str, request: &Value) -> Value {
        let (head, body) = post(&self.address, path, &request.to_string());
        assert!(head.starts_with("HTTP/1.0 200 ") && head.contains("application/json"), "{head}\n{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// A figure of the process in bytes or as a count, such as `VmHWM` or `Threads`.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn figure(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server runs");
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).expect("a known figure");
        let mut words = line.split_whitespace().skip(1);
        let number: u64 = words.next().and_then(|word| word.parse().ok()).expect("a number");
        if words.next() == Some("kB") { number << 10 } else { number }
    }

    /// Descriptors that the process has open.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("the server runs").count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
