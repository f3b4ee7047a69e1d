//! A model in use: from the request until the end of its response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::pool::Pool;

/// A loaded model, which is not unloaded while this is held.
pub(super) struct Lease {
    pub(super) pool: Arc<Pool>,
    pub(super) model: usize,
    pub(super) router: Router,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.release(self.model);
    }
}

/// A response's body that holds the lease until it has been sent, or its client is gone.
pub(super) struct LeasedBody {
    pub(super) body: Body,
    pub(super) _lease: Lease,
}

impl HttpBody for LeasedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
