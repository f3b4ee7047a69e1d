//! What a program may learn of each request that has ended, such as for a trace.
//!
//! ```text
//! request ─► observe: an Observation among the request's extensions ─► handlers note what they learn ─► response, or its stream
//!                                                  │ the last of its holders is dropped
//!                                                  └─► RequestObserver::ended
//! ```

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use serde_json::{Map, Value};

use crate::log;
use crate::reply::Usage;

/// Learns of each request that has ended, except those for `/health` and `/metrics`, which other programs send every few seconds.
pub trait RequestObserver: Debug + Send + Sync {
    /// A request has ended. Is called on a thread that answers requests, and should return quickly.
    fn ended(&self, request: EndedRequest);
}

/// A request that has ended: its response was made, its stream has ended, or its client has left.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndedRequest {
    /// The id that is also in the response's `X-Request-Id`, cut to 128 bytes.
    pub id: String,
    /// Method, such as `POST`.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Path of the endpoint, with a name in the place of each part that clients choose; `None`: there is no such endpoint, or access
    /// was refused.
    pub route: Option<String>,
    /// The headers `traceparent` and `tracestate`, by which the client's trace continues (W3C Trace Context).
    pub traceparent: Option<String>,
    /// See [`EndedRequest::traceparent`].
    pub tracestate: Option<String>,
    /// When the head of the request had arrived.
    pub begun: SystemTime,
    /// Time until it ended.
    pub duration: Duration,
    /// Status of the response; `None`: the client left before.
    pub status: Option<u16>,
    /// Why it was not answered as a whole.
    pub failure: Option<RequestFailure>,
    /// What it asked of the model; `None`: nothing.
    pub operation: Option<Operation>,
    /// The model that it names, cut to 128 characters.
    pub requested_model: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// Tokens of its prompts, with those that were in the cache.
    pub input_tokens: Option<u32>,
    /// Those that were in the cache.
    pub cached_tokens: Option<u32>,
    /// Tokens that were sampled, of all choices together.
    pub output_tokens: Option<u32>,
    /// Time in the queue until the first of its sequences began.
    pub queue_time: Option<Duration>,
    /// Time until the first token.
    pub time_to_first_token: Option<Duration>,
}

/// What a request asks of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Answer a conversation.
    Chat,
    /// Continue or fill in a text.
    Completion,
    /// Embed texts.
    Embeddings,
    /// Rank documents.
    Rerank,
}

/// Why a request was not answered as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFailure {
    /// An error of this status, as the response or in its stream.
    Status(u16),
    /// The client left.
    ClientLeft,
}

/// Paths that other programs ask for every few seconds.
const POLLED: [&str; 3] = ["/health", "/v1/health", "/metrics"];
/// Characters of a model's name that are kept at most.
const MAX_NAME_CHARACTERS: usize = 128;

/// What is known of a request until now. A clone is the same request; without an observer nothing is noted.
#[derive(Clone, Default)]
pub(crate) struct Observation(Option<Arc<Ongoing>>);

struct Ongoing {
    observer: Arc<dyn RequestObserver>,
    begun: Instant,
    request: Mutex<EndedRequest>,
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let request = self.request.get_mut().unwrap_or_else(PoisonError::into_inner);
        request.duration = self.begun.elapsed();
        if request.status.is_none() {
            request.failure = Some(RequestFailure::ClientLeft);
        }
        self.observer.ended(request.clone());
    }
}

/// `routes`, of whose requests an observer learns, if there is one.
pub(crate) fn observed(routes: Router, observer: Option<Arc<dyn RequestObserver>>) -> Router {
    match observer {
        Some(observer) => routes.layer(middleware::from_fn_with_state(observer, observe)),
        None => routes,
    }
}

async fn observe(State(observer): State<Arc<dyn RequestObserver>>, mut request: Request, next: Next) -> Response {
    if POLLED.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let observation = Observation::begin(&request, observer);
    request.extensions_mut().insert(observation.clone());
    let response = next.run(request).await;
    observation.note(|ended| {
        ended.status = Some(response.status().as_u16());
        if response.status().as_u16() >= 400 {
            ended.failure = Some(RequestFailure::Status(response.status().as_u16()));
        }
    });
    response
}

impl Observation {
    fn begin(request: &Request, observer: Arc<dyn RequestObserver>) -> Observation {
        let header = |name: &str| Some(request.headers().get(name)?.to_str().ok()?.to_owned());
        let ended = EndedRequest {
            id: log::id(request.headers()).to_owned(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            route: matched(request),
            traceparent: header("traceparent"),
            tracestate: joined(request.headers(), "tracestate"),
            begun: SystemTime::now(),
            duration: Duration::ZERO,
            status: None,
            failure: None,
            operation: None,
            requested_model: None,
            model: None,
            input_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            queue_time: None,
            time_to_first_token: None,
        };
        Observation(Some(Arc::new(Ongoing { observer, begun: Instant::now(), request: Mutex::new(ended) })))
    }

    /// Of a request that a handler has got.
    pub(crate) fn of(request: &Request) -> Observation {
        let observation = request.extensions().get::<Observation>().cloned().unwrap_or_default();
        observation.note(|ended| ended.route = ended.route.take().or_else(|| matched(request)));
        observation
    }

    /// It was answered at a path that is no route.
    pub(crate) fn is_at(&self, path: &str) {
        self.note(|ended| ended.route = Some(path.to_owned()));
    }

    fn note(&self, note: impl FnOnce(&mut EndedRequest)) {
        if let Some(ongoing) = &self.0 {
            note(&mut ongoing.request.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// What it asks of the model.
    pub(crate) fn asks_for(&self, operation: Operation) {
        self.note(|ended| ended.operation = Some(operation));
    }

    /// The body's `fields` reached the model called `model`.
    pub(crate) fn reaches(&self, model: &str, fields: &Map<String, Value>) {
        self.note(|ended| {
            let requested = fields.get("model").and_then(Value::as_str);
            ended.requested_model = requested.map(|name| name.chars().take(MAX_NAME_CHARACTERS).collect());
            ended.model = Some(model.to_owned());
        });
    }

    /// A sequence of it began after this time in the queue.
    pub(crate) fn begins_after(&self, waited: Duration) {
        self.note(|ended| ended.queue_time = ended.queue_time.or(Some(waited)));
    }

    /// A choice of it had its first token this long ago.
    pub(crate) fn has_token_since(&self, since: Duration) {
        let Some(ongoing) = &self.0 else { return };
        let time = ongoing.begun.elapsed().saturating_sub(since);
        self.note(|ended| ended.time_to_first_token = ended.time_to_first_token.or(Some(time)));
    }

    /// Tokens of a part of it: it may consist of several requests.
    pub(crate) fn uses(&self, usage: &Usage) {
        let add = |sum: &mut Option<u32>, tokens: u32| *sum = Some(sum.unwrap_or(0).saturating_add(tokens));
        self.note(|ended| {
            add(&mut ended.input_tokens, usage.prompt_tokens);
            add(&mut ended.cached_tokens, usage.cached_tokens);
            add(&mut ended.output_tokens, usage.completion_tokens);
        });
    }

    /// The response failed after it began; the first failure counts.
    pub(crate) fn fails(&self, failure: RequestFailure) {
        self.note(|ended| ended.failure = ended.failure.or(Some(failure)));
    }
}

impl From<StatusCode> for RequestFailure {
    fn from(status: StatusCode) -> RequestFailure {
        RequestFailure::Status(status.as_u16())
    }
}

fn matched(request: &Request) -> Option<String> {
    request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned())
}

/// All headers of this name as one list.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let all: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!all.is_empty()).then(|| all.join(","))
}
