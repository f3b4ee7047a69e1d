//! A listening socket, and a thread that serves routes on it within limits.

mod socket;
mod tls;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, pending, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

use socket::{Accepted, Acceptor, BoundSocket};
pub use tls::TlsIdentity;

/// Limits on what clients use of a server before they have a response. [`HttpListener::serve`] checks it.
///
/// ```
/// let mut limits = unicorn_serve::HttpLimits::default();
/// limits.timeout = std::time::Duration::from_secs(5);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// Open connections; further ones wait in the system's queue until one is closed. Default: 512, half of the descriptors that a
    /// process commonly has.
    pub max_connections: u32,
    /// How long a client may take to send the head of a request, and how long the system's buffer may stay full because the client
    /// reads nothing. Then the connection is closed. A connection without a request is closed after the same time. Default: 30 s.
    pub timeout: Duration,
}

/// Largest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause before the next connection is accepted after the system refused one, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket. Clients can connect at once and wait until [`HttpListener::serve`] is called, so that a program can find out
/// early that an address is taken.
pub struct HttpListener {
    socket: BoundSocket,
    tls: Option<TlsIdentity>,
}

/// Where an [`HttpListener`] listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HttpAddress {
    /// Address and real port.
    Tcp(SocketAddr),
    /// A Unix domain socket.
    Unix(PathBuf),
}

impl HttpLimits {
    /// Whether a client can have a response within them.
    ///
    /// # Errors
    /// An error of kind [`InvalidInput`](io::ErrorKind::InvalidInput) names the field.
    pub fn check(&self) -> io::Result<()> {
        let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if self.max_connections == 0 {
            return refused("open connections are limited to 0, expected at least 1");
        }
        if self.timeout.is_zero() {
            return refused("time for the head of a request is 0, expected more");
        }
        Ok(())
    }
}

impl HttpListener {
    /// Binds an address, or the name of a host, with a port; port 0 is any free one.
    ///
    /// # Errors
    /// When the system refuses, for example because the port is taken.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<HttpListener> {
        Ok(HttpListener { socket: BoundSocket::tcp(address)?, tls: None })
    }

    /// Binds a Unix domain socket, for programs of this machine that may open the file. One that no program listens at is replaced.
    ///
    /// # Errors
    /// When another program listens there, the path is another kind of file, or the system refuses.
    pub fn bind_unix(path: &Path) -> io::Result<HttpListener> {
        Ok(HttpListener { socket: BoundSocket::unix(path)?, tls: None })
    }

    /// The sockets that this process was started with, by systemd's protocol (`LISTEN_FDS`); none without it.
    ///
    /// # Errors
    /// When what was passed is not a listening TCP or Unix socket.
    pub fn inherited() -> io::Result<Vec<HttpListener>> {
        let sockets = BoundSocket::inherited()?.into_iter();
        Ok(sockets.map(|socket| HttpListener { socket, tls: None }).collect())
    }

    /// The same socket, on which clients use TLS.
    #[must_use]
    pub fn with_tls(self, identity: TlsIdentity) -> HttpListener {
        HttpListener { tls: Some(identity), ..self }
    }

    /// Where it listens.
    pub fn address(&self) -> HttpAddress {
        self.socket.address()
    }

    /// Serves `router` on a new thread of this name until it is drained, or the process ends. Does not block.
    ///
    /// # Errors
    /// For limits that do not [`check`](HttpLimits::check), and when the thread or its event loop cannot be created.
    pub fn serve(self, thread_name: &str, router: Router, limits: HttpLimits) -> io::Result<HttpServing> {
        limits.check()?;
        let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = event_loop.enter();
            Acceptor::new(self.socket, self.tls)?
        };
        let (drain, is_draining) = watch::channel(false);
        let (running, ended) = mpsc::channel();
        let serve = move || {
            event_loop.block_on(accept(listener, router, limits, is_draining));
            drop(running);
        };
        thread::Builder::new().name(thread_name.into()).spawn(serve)?;
        Ok(HttpServing { drain, ended })
    }
}

impl HttpAddress {
    /// `None`: it is not a TCP address.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            HttpAddress::Tcp(address) => Some(*address),
            HttpAddress::Unix(_) => None,
        }
    }
}

/// Routes that are being served. Dropping it changes nothing.
pub struct HttpServing {
    drain: watch::Sender<bool>,
    ended: mpsc::Receiver<()>,
}

impl HttpServing {
    /// Closes the socket, so that new connections are refused, and each connection after the response that it is waiting for. Blocks
    /// until all are closed or `timeout` has passed, and returns whether they are.
    pub fn drain(&self, timeout: Duration) -> bool {
        // It is not received where the thread has ended.
        let _ = self.drain.send(true);
        self.ended.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Disconnected)
    }
}

/// Waits until the server is drained.
async fn draining(mut is_draining: watch::Receiver<bool>) {
    if is_draining.wait_for(|is_draining| *is_draining).await.is_err() {
        // Its handle was dropped, so it cannot be drained.
        pending::<()>().await;
    }
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits { max_connections: 512, timeout: Duration::from_secs(30) }
    }
}

/// Returns once the server is drained.
async fn accept(listener: Acceptor, router: Router, limits: HttpLimits, is_draining: watch::Receiver<bool>) {
    let open = Arc::new(Semaphore::new(limits.max_connections as usize));
    loop {
        let next = pin!(async {
            let permit = open.clone().acquire_owned().await.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        });
        let Either::Right((next, _)) = select(pin!(draining(is_draining.clone())), next).await else { break };
        match next {
            (permit, Ok(accepted)) => {
                drop(tokio::spawn(serve_connection(accepted, router.clone(), limits, permit, is_draining.clone())));
            }
            // One client that went away, or the process is out of descriptors.
            (_, Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
    drop(listener);
    let _all = open.acquire_many(limits.max_connections).await;
}

async fn serve_connection(
    accepted: Accepted,
    router: Router,
    limits: HttpLimits,
    _open: OwnedSemaphorePermit,
    is_draining: watch::Receiver<bool>,
) {
    // A client that does not finish its handshake, or fails in it.
    let Ok(Ok(stream)) = timeout(limits.timeout, accepted.handshake()).await else { return };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.timeout));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            // Names of headers have no case, but some programs look for them as llama-server writes them.
            .title_case_headers(true)
            .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router))
    );
    // An error that ends a connection early is the client's.
    if let Either::Left(_) = select(pin!(draining(is_draining)), connection.as_mut()).await {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Instant;

    use axum::routing::get;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(400);

    fn serve(max_connections: u32) -> SocketAddr {
        let listener = HttpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.address().tcp().unwrap();
        let body = "x".repeat(64 << 20);
        let router = Router::new().route("/", get(|| async { "here" })).route("/large", get(|| async { body }));
        listener.serve("test", router, HttpLimits { max_connections, timeout: TIMEOUT }).unwrap();
        address
    }

    fn connect(address: SocketAddr, request: &str) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn read_to_end(mut stream: std::net::TcpStream) -> String {
        let mut answer = Vec::new();
        // A reset ends the answer as a close does.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn limits_under_which_nobody_is_answered_are_refused() {
        let (none, no_time) = (HttpLimits { max_connections: 0, ..HttpLimits::default() }, Duration::ZERO);
        for (limits, expected) in [
            (none, "open connections are limited to 0, expected at least 1"),
            (
                HttpLimits { timeout: no_time, ..HttpLimits::default() },
                "time for the head of a request is 0, expected more",
            ),
        ] {
            let listener = HttpListener::bind("127.0.0.1:0").unwrap();
            let refused = listener.serve("test", Router::new(), limits).err().expect("refused");
            assert_eq!((refused.kind(), &refused.to_string()[..]), (io::ErrorKind::InvalidInput, expected));
        }
    }

    /// What the manual promises of slow clients.
    #[test]
    fn heads_have_half_a_minute_by_default() {
        let HttpLimits { max_connections, timeout } = HttpLimits::default();
        assert_eq!((max_connections, timeout), (512, Duration::from_secs(30)));
    }

    #[test]
    fn connections_without_a_whole_head_are_closed_in_time() {
        let address = serve(8);
        let begun = Instant::now();
        let [silent, half] = ["", "GET / HTTP/1.1\r\nHost: her"].map(|request| connect(address, request));
        // A head that grows by a byte at a time has the same time limit.
        let mut dripping = connect(address, "GET / HTTP/1.1\r\nX: ");
        while begun.elapsed() < 20 * TIMEOUT && dripping.write_all(b"x").is_ok() {
            thread::sleep(TIMEOUT / 8);
        }
        let idle = connect(address, "GET / HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(read_to_end(idle).ends_with("\r\n\r\nhere"));
        assert_eq!([silent, half].map(read_to_end), ["", ""]);
        let taken = begun.elapsed();
        assert!(taken > TIMEOUT && taken < 20 * TIMEOUT, "{taken:?}");
    }

    #[test]
    fn connections_above_the_limit_wait_until_others_are_closed() {
        let address = serve(4);
        let _idle: Vec<_> = (0..20).map(|_| connect(address, "")).collect();
        let begun = Instant::now();
        let answer = read_to_end(connect(address, "GET / HTTP/1.0\r\n\r\n"));
        assert!(answer.ends_with("\r\n\r\nhere"), "{answer}");
        // Five times four of them had their time first.
        assert!(begun.elapsed() > 4 * TIMEOUT, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_client_that_reads_nothing_is_left() {
        let address = serve(1);
        let _deaf = connect(address, "GET /large HTTP/1.0\r\n\r\n");
        let answer = read_to_end(connect(address, "GET / HTTP/1.0\r\n\r\n"));
        assert!(answer.ends_with("\r\n\r\nhere"), "{answer}");
    }

    #[test]
    fn a_drained_server_ends_responses_and_refuses_connections() {
        let listener = HttpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.address().tcp().unwrap();
        let slow = || async {
            tokio::time::sleep(TIMEOUT).await;
            "whole"
        };
        let limits = HttpLimits { max_connections: 4, timeout: 50 * TIMEOUT };
        let serving = listener.serve("test", Router::new().route("/", get(slow)), limits).unwrap();
        let [idle, asked] = ["", "GET / HTTP/1.1\r\nHost: here\r\n\r\n"].map(|request| connect(address, request));
        // Long enough that it was accepted and asked, not that it was answered.
        thread::sleep(TIMEOUT / 4);
        assert!(!serving.drain(Duration::from_millis(1)), "a response is missing");
        // The thread that accepts closes its socket when it runs next; a connection before that is not answered.
        let begun = Instant::now();
        while std::net::TcpStream::connect(address).is_ok() {
            assert!(begun.elapsed() < 10 * TIMEOUT, "connections are refused");
        }
        assert!(serving.drain(50 * TIMEOUT));
        assert!(read_to_end(asked).ends_with("\r\n\r\nwhole") && read_to_end(idle).is_empty());
    }

    /// By a client that trusts this certificate alone; one without TLS gets no answer, and the next client is served.
    #[test]
    fn tls_is_spoken_with_the_certificate_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let identity = TlsIdentity::read(&certificate, &key).unwrap();
        let listener = HttpListener::bind("127.0.0.1:0").unwrap().with_tls(identity);
        let address = listener.address().tcp().unwrap();
        let router = Router::new().route("/", get(|| async { "here" }));
        listener.serve("test", router, HttpLimits { max_connections: 1, timeout: TIMEOUT }).unwrap();

        let plain = read_to_end(connect(address, "GET / HTTP/1.0\r\n\r\n"));
        assert!(!plain.contains("here"), "{plain}");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let session = rustls::ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap();
        let mut stream = rustls::StreamOwned::new(session, std::net::TcpStream::connect(address).unwrap());
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.ends_with(b"\r\n\r\nhere"), "{}", String::from_utf8_lossy(&answer));

        for (files, expected) in [
            ([&certificate, &certificate], "certificate.pem"),
            ([&key, &key], "found none"),
            ([&certificate, &folder.path().join("absent.pem")], "absent.pem"),
        ] {
            let error = TlsIdentity::read(files[0], files[1]).err().unwrap();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_unix_socket_is_served_and_a_deserted_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unicorn.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = HttpListener::bind_unix(&path).unwrap();
        assert_eq!(listener.address(), HttpAddress::Unix(path.clone()));
        assert_eq!(HttpListener::bind_unix(&path).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        let router = Router::new().route("/", get(|| async { "here" }));
        listener.serve("test", router, HttpLimits { max_connections: 1, timeout: TIMEOUT }).unwrap();
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\nhere"), "{answer}");
        let file = folder.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(HttpListener::bind_unix(&file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }

    #[test]
    fn a_head_beyond_the_limit_is_refused() {
        let answer = read_to_end(connect(serve(1), &format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(MAX_HEAD_BYTES))));
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}
