//! Sockets that connections come from: TCP, Unix domain, or those that a service manager has bound.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use listenfd::ListenFd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::HttpAddress;
use super::tls::TlsIdentity;

pub(super) enum BoundSocket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, HttpAddress),
}

impl BoundSocket {
    pub(super) fn tcp(address: impl ToSocketAddrs) -> io::Result<BoundSocket> {
        BoundSocket::of_tcp(TcpListener::bind(address)?)
    }

    pub(super) fn unix(path: &Path) -> io::Result<BoundSocket> {
        match UnixListener::bind(path) {
            // A socket that a killed process left. Other files stay.
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_deserted(path) => {
                std::fs::remove_file(path)?;
                BoundSocket::of_unix(UnixListener::bind(path)?)
            }
            bound => BoundSocket::of_unix(bound?),
        }
    }

    pub(super) fn inherited() -> io::Result<Vec<BoundSocket>> {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            // A socket of the other kind is an error, and stays where it is.
            let socket = match passed.take_tcp_listener(index) {
                Ok(listener) => listener.map(BoundSocket::of_tcp),
                Err(_) => passed.take_unix_listener(index)?.map(BoundSocket::of_unix),
            };
            sockets.extend(socket.transpose()?);
        }
        Ok(sockets)
    }

    pub(super) fn address(&self) -> HttpAddress {
        match self {
            BoundSocket::Tcp(_, address) => HttpAddress::Tcp(*address),
            BoundSocket::Unix(_, address) => address.clone(),
        }
    }

    fn of_tcp(listener: TcpListener) -> io::Result<BoundSocket> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(BoundSocket::Tcp(listener, address))
    }

    fn of_unix(listener: UnixListener) -> io::Result<BoundSocket> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let path = address.as_pathname().unwrap_or(Path::new("")).to_owned();
        Ok(BoundSocket::Unix(listener, HttpAddress::Unix(path)))
    }
}

/// Whether a path is a socket that no program listens at.
fn is_deserted(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// A bound socket within an event loop.
pub(super) struct Acceptor {
    listener: Listener,
    tls: Option<TlsAcceptor>,
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// Both directions of a connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection before its handshake, if it has one.
pub(super) struct Accepted {
    stream: Box<dyn Stream>,
    tls: Option<TlsAcceptor>,
}

impl Acceptor {
    pub(super) fn new(socket: BoundSocket, tls: Option<TlsIdentity>) -> io::Result<Acceptor> {
        let listener = match socket {
            BoundSocket::Tcp(listener, _) => Listener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            BoundSocket::Unix(listener, _) => Listener::Unix(tokio::net::UnixListener::from_std(listener)?),
        };
        Ok(Acceptor { listener, tls: tls.map(|identity| TlsAcceptor::from(Arc::new(identity.config))) })
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        let stream: Box<dyn Stream> = match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small packets are sent at once: a streamed token does not wait until the one before is acknowledged.
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Listener::Unix(listener) => Box::new(listener.accept().await?.0),
        };
        Ok(Accepted { stream, tls: self.tls.clone() })
    }
}

impl Accepted {
    pub(super) async fn handshake(self) -> io::Result<Box<dyn Stream>> {
        match self.tls {
            Some(tls) => Ok(Box::new(tls.accept(self.stream).await?)),
            None => Ok(self.stream),
        }
    }
}
