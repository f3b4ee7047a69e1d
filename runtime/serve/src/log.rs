//! An id and a log event for each request.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use axum::response::Response;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::trace::TraceLayer;
use tracing::{Span, info, info_span};

/// The client's own id of a request, or a random one; also in the response.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bytes of a client's id that are logged at most.
const MAX_ID_BYTES: usize = 128;

/// The id of a request, cut to a length that is safe to log.
pub(crate) fn id(headers: &HeaderMap) -> &str {
    let id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
    // Its characters are of ASCII.
    &id[..id.len().min(MAX_ID_BYTES)]
}

/// Answers each request with its id, and logs it with status and milliseconds once its response begins.
pub(crate) fn requests(routes: Router) -> Router {
    let log = TraceLayer::new_for_http()
        .make_span_with(|request: &Request| {
            info_span!("request", id = id(request.headers()), method = %request.method(), path = request.uri().path())
        })
        .on_request(())
        .on_response(|response: &Response, latency: Duration, _: &Span| {
            info!(status = response.status().as_u16(), ms = latency.as_millis() as u64, "answered");
        })
        .on_failure(());
    routes
        .layer(PropagateRequestIdLayer::new(REQUEST_ID))
        .layer(log)
        .layer(SetRequestIdLayer::new(REQUEST_ID, MakeRequestUuid))
}
