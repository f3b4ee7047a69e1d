//! A listening TCP socket, and a thread that serves routes on it.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::thread;

use axum::Router;
use axum::serve::ListenerExt;

/// A bound socket. Clients can connect at once and wait until [`HttpListener::serve`] is called, so that a program can find out
/// early that an address is taken.
pub struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpListener {
    /// Binds an address, or the name of a host, with a port; port 0 is any free one.
    ///
    /// # Errors
    /// When the system refuses, for example because the port is taken.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<HttpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(HttpListener { address: listener.local_addr()?, listener })
    }

    /// The address with its real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `router` on a new thread of this name until the process ends. Does not block.
    ///
    /// # Errors
    /// When the thread or its event loop cannot be created.
    pub fn serve(self, thread_name: &str, router: Router) -> io::Result<()> {
        let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            event_loop.block_on(async {
                // Small packets are sent at once: a streamed token does not wait until the one before is acknowledged.
                let listener =
                    tokio::net::TcpListener::from_std(self.listener)?.tap_io(|io| drop(io.set_nodelay(true)));
                axum::serve(listener, router).await
            })
        };
        thread::Builder::new().name(thread_name.into()).spawn(serve)?;
        Ok(())
    }
}
