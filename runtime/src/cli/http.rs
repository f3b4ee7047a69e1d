//! A place in the network, and a thread that answers there.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::thread;

use axum::Router;

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
        let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            reactor.block_on(async { axum::serve(tokio::net::TcpListener::from_std(self.listener)?, routes).await })
        };
        thread::Builder::new().name(thread_name.into()).spawn(serve)?;
        Ok(())
    }
}
