//! A place in the network, and a thread that answers there.

use std::future;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::thread;

use axum::Router;
use axum::serve::ListenerExt;

/// Taken, but nobody is answered yet: whoever asks waits.
pub struct Place {
    listener: TcpListener,
    address: SocketAddr,
}

impl Place {
    /// An address or a host's name with a port; port 0 is one that is free.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn take(place: impl ToSocketAddrs) -> io::Result<Place> {
        let listener = TcpListener::bind(place)?;
        listener.set_nonblocking(true)?;
        Ok(Place { address: listener.local_addr()?, listener })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers by `routes` until the process ends, on a thread of this name.
    ///
    /// # Errors
    /// When there is no thread, or nothing to wait with.
    pub fn answer(self, thread_name: &str, routes: Router) -> io::Result<()> {
        self.answer_beside(thread_name, routes, future::pending())
    }

    /// The same, and does `beside` there, too.
    ///
    /// # Errors
    /// As `answer`.
    pub fn answer_beside(
        self,
        thread_name: &str,
        routes: Router,
        beside: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            reactor.block_on(async {
                tokio::spawn(beside);
                // Small pieces go at once: a streamed token does not wait until the one before is acknowledged.
                let listener =
                    tokio::net::TcpListener::from_std(self.listener)?.tap_io(|io| drop(io.set_nodelay(true)));
                axum::serve(listener, routes).await
            })
        };
        thread::Builder::new().name(thread_name.into()).spawn(serve)?;
        Ok(())
    }
}
