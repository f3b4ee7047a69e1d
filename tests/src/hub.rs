//! A local hub that answers as the Hugging Face Hub does: descriptions, redirects of large files to another host, ranges, errors by
//! code, and faults of a bad connection. Its files have the hashes that `git` and `sha256sum` compute.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

/// Larger files are LFS's on the hub.
const LARGE_BYTES: u64 = 1 << 20;

/// A running hub with one repository, named draft, of the owner tests.
pub struct Hub {
    pub address: String,
    state: Arc<Mutex<State>>,
}

/// State of the hub, which a test may change.
pub struct State {
    /// Commit of the revision `main`.
    pub commit: String,
    folder: PathBuf,
    files: Vec<File>,
    /// Token without which every request is refused.
    pub token: Option<String>,
    /// Connections end after this number of bytes of a file.
    pub cut_bytes: Option<u64>,
    /// Name of a file whose last byte is wrong.
    pub damaged: Option<String>,
    /// Whether the hub ignores ranges.
    pub no_ranges: bool,
    /// Head of each request that came, with the address that it came to.
    pub requests: Vec<String>,
    cdn: String,
}

struct File {
    name: String,
    size: u64,
    git: String,
    /// SHA-256 of a large file.
    sha256: Option<String>,
}

impl Hub {
    /// Starts a hub with the files of a folder.
    ///
    /// # Panics
    /// If it cannot listen, or cannot read them.
    pub fn start(folder: &Path) -> Hub {
        let (listener, cdn) = (listen(), listen());
        let address = |listener: &TcpListener| listener.local_addr().expect("a port").to_string();
        let state = State {
            commit: "0123456789abcdef0123456789abcdef01234567".into(),
            folder: folder.to_owned(),
            files: files(folder),
            token: None,
            cut_bytes: None,
            damaged: None,
            no_ranges: false,
            requests: Vec::new(),
            cdn: address(&cdn),
        };
        let hub = Hub { address: address(&listener), state: Arc::new(Mutex::new(state)) };
        for listener in [listener, cdn] {
            let state = hub.state.clone();
            std::thread::spawn(move || {
                let own = listener.local_addr().expect("a port").to_string();
                for client in listener.incoming().flatten() {
                    let (state, own) = (state.clone(), own.clone());
                    // A client that disconnects is not an error of the hub.
                    std::thread::spawn(move || drop(serve(client, &state, &own)));
                }
            });
        }
        hub
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What HF_ENDPOINT is set to.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Reads the files of its folder again, as another commit.
    pub fn commit(&self, commit: &str) {
        let mut state = self.state();
        (state.files, state.commit) = (files(&state.folder), commit.into());
    }
}

impl State {
    /// Heads of the requests for files, since the last call.
    pub fn take_requests(&mut self) -> Vec<String> {
        std::mem::take(&mut self.requests)
    }

    /// Head and body of an answer.
    fn answer(&self, target: &str, head: &str, is_cdn: bool) -> (String, Vec<u8>) {
        if is_cdn {
            return self.content(target.trim_start_matches('/'), head);
        }
        let authorization = header(head, "authorization");
        if self.token.as_ref().is_some_and(|token| authorization != Some(&format!("Bearer {token}"))) {
            return error("401 Unauthorized", "");
        }
        let path = target.split('?').next().unwrap_or_default();
        if let Some(revision) = path.strip_prefix("/api/models/tests/draft/revision/") {
            return match revision == "main" || revision == "refs%2Fpr%2F1" || revision == self.commit {
                true => ("200 OK\r\nContent-Type: application/json".into(), self.description().to_string().into()),
                false => error("404 Not Found", "RevisionNotFound"),
            };
        }
        if path == format!("/api/models/tests/draft/tree/{}", self.commit) {
            return ("200 OK\r\nContent-Type: application/json".into(), self.tree().to_string().into());
        }
        let Some(name) = path.strip_prefix(&format!("/tests/draft/resolve/{}/", self.commit)) else {
            return error("404 Not Found", "RepoNotFound");
        };
        match self.files.iter().find(|file| file.name == name) {
            Some(file) => {
                let etag = format!("X-Repo-Commit: {}\r\n{}", self.commit, file.etag());
                let (status, body) = match file.sha256.is_some() {
                    true => (format!("302 Found\r\nLocation: http://{}/{name}", self.cdn), Vec::new()),
                    false => self.content(name, head),
                };
                (format!("{status}\r\n{etag}"), body)
            }
            None => error("404 Not Found", "EntryNotFound"),
        }
    }

    fn content(&self, name: &str, head: &str) -> (String, Vec<u8>) {
        let mut bytes = std::fs::read(self.folder.join(name)).expect("a file of the hub");
        if self.damaged.as_deref() == Some(name) {
            *bytes.last_mut().expect("it is not empty") ^= 1;
        }
        let from =
            header(head, "range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        match from.filter(|_| !self.no_ranges) {
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                (format!("206 Partial Content\r\nContent-Range: {range}"), bytes.split_off(from))
            }
            None => ("200 OK".into(), bytes),
        }
    }

    fn description(&self) -> Value {
        let file = |file: &File| {
            let mut one = json!({"rfilename": file.name, "size": file.size, "blobId": file.git});
            if let Some(sha256) = &file.sha256 {
                one["lfs"] = json!({"sha256": sha256, "size": file.size, "pointerSize": 134});
            }
            one
        };
        let files: Vec<Value> = self.files.iter().map(file).collect();
        json!({"id": "tests/draft", "modelId": "tests/draft", "sha": self.commit, "private": false, "siblings": files})
    }

    /// The same files as the hub's call for a folder names them.
    fn tree(&self) -> Value {
        let file = |file: &File| {
            let mut one = json!({"type": "file", "path": file.name, "size": file.size, "oid": file.git});
            if let Some(sha256) = &file.sha256 {
                one["lfs"] = json!({"oid": sha256, "size": file.size, "pointerSize": 134});
            }
            one
        };
        self.files.iter().map(file).collect()
    }
}

impl File {
    /// The entity tag by which the hub's own programs name the file; a redirect has that of its destination.
    fn etag(&self) -> String {
        match &self.sha256 {
            Some(sha256) => format!("X-Linked-Etag: \"{sha256}\"\r\nX-Linked-Size: {}", self.size),
            None => format!("ETag: \"{}\"", self.git),
        }
    }
}

fn serve(client: TcpStream, state: &Mutex<State>, own: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut client = client;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, body, cut) = {
        let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.requests.push(format!("{own} {head}"));
        let is_cdn = own == state.cdn;
        let (status, body) = state.answer(&target, &head, is_cdn);
        (status, body, state.cut_bytes.filter(|_| !target.starts_with("/api/")))
    };
    let body_bytes = if head.starts_with("HEAD ") { 0 } else { body.len() };
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    let most = cut.map_or(body_bytes, |most| body_bytes.min(most as usize));
    client.write_all(&body[..most])?;
    client.flush()?;
    client.shutdown(std::net::Shutdown::Both)
}

fn error(status: &str, code: &str) -> (String, Vec<u8>) {
    (format!("{status}\r\nX-Error-Code: {code}\r\nX-Error-Message: no"), br#"{"error":"no"}"#.to_vec())
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn files(folder: &Path) -> Vec<File> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let first_word = |command: &mut Command| {
        let output = command.output().expect("git and coreutils are installed");
        String::from_utf8_lossy(&output.stdout).split_whitespace().next().expect("a hash").to_owned()
    };
    let file = |path: &PathBuf| {
        let size = std::fs::metadata(path).expect("a file").len();
        File {
            name: path.file_name().expect("a name").to_string_lossy().into_owned(),
            size,
            git: first_word(Command::new("git").args(["hash-object", "--no-filters"]).arg(path)),
            sha256: (size > LARGE_BYTES).then(|| first_word(Command::new("sha256sum").arg(path))),
        }
    };
    paths.iter().map(file).collect()
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}
