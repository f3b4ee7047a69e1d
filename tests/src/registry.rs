//! A real registry, Debian's docker-registry, on a port of its own, and a proxy in front of it that can cut connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Maximum wait: longer than it takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running registry with nothing in it; ended, and its data deleted, when the value is dropped.
pub struct Registry {
    child: Child,
    folder: TempDir,
    port: u16,
}

impl Registry {
    /// `None` where docker-registry is not installed.
    pub fn start() -> Option<Registry> {
        Registry::start_with("", "")
    }

    /// The same with further settings: of its HTTP server, and at the top of its file.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(http: &str, top: &str) -> Option<Registry> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let root = folder.path().join("root");
        let settings = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
             http:\n  addr: 127.0.0.1:{port}\n{http}{top}",
            root.display()
        );
        let file = folder.path().join("config.yml");
        std::fs::write(&file, settings).expect("a file of the folder");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().ok()?;
        let registry = Registry { child, folder, port };
        let begun = Instant::now();
        while TcpStream::connect(registry.address()).is_err() {
            assert!(begun.elapsed() < PATIENCE, "docker-registry does not listen at {}", registry.address());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(registry)
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// `oci://` and a name in this registry.
    pub fn reference(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.address())
    }

    /// The file that holds the content with this digest.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let digits = digest.strip_prefix("sha256:").expect("a digest");
        let blobs = self.folder.path().join("root/docker/registry/v2/blobs/sha256");
        blobs.join(&digits[..2]).join(digits).join("data")
    }

    /// Digest and content of the manifest that a name leads to.
    pub fn manifest(&self, name: &str, tag: &str) -> (String, serde_json::Value) {
        let link = format!("root/docker/registry/v2/repositories/{name}/_manifests/tags/{tag}/current/link");
        let digest = std::fs::read_to_string(self.folder.path().join(link)).expect("the tag is there");
        let text = std::fs::read(self.blob(&digest)).expect("its manifest is there");
        (digest, serde_json::from_slice(&text).expect("a manifest is JSON"))
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fault of the connection for bytes that come from the registry.
#[derive(Clone, Copy, Debug)]
pub enum Line {
    /// Ends each connection after this number of bytes.
    Cuts(u64),
    /// Sends this number of bytes in all, and then nothing, without an end.
    Stalls(u64),
}

/// A port that leads to a registry over such a line.
pub struct Proxy {
    pub address: SocketAddr,
    passed: Arc<AtomicU64>,
}

impl Proxy {
    /// # Panics
    /// If it cannot listen.
    pub fn to(target: SocketAddr, line: Line) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a port");
        let passed = Arc::new(AtomicU64::new(0));
        let counter = passed.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target) else { continue };
                let (Ok(mut to_server), Ok(mut from_client)) = (server.try_clone(), client.try_clone()) else {
                    continue;
                };
                std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
                let counter = counter.clone();
                std::thread::spawn(move || pass(server, client, line, &counter));
            }
        });
        Proxy { address, passed }
    }

    /// Bytes that came from the registry so far.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

fn pass(mut server: TcpStream, mut client: TcpStream, line: Line, counter: &AtomicU64) {
    let mut buffer = [0; 4096];
    let mut own = 0;
    while let Ok(bytes @ 1..) = server.read(&mut buffer) {
        let all = counter.fetch_add(bytes as u64, Ordering::Relaxed);
        own += bytes as u64;
        if matches!(line, Line::Stalls(most) if all > most) {
            std::thread::park();
        }
        if client.write_all(&buffer[..bytes]).is_err() || matches!(line, Line::Cuts(most) if own > most) {
            break;
        }
    }
    for stream in [server, client] {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a port").port()
}
