//! Which model answers a request.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::pool::{Lease, LeasedBody, Pool};
use super::residency::State;
use crate::access::expect_json;
use crate::admission::{Admission, ReadBody};
use crate::api::endpoint::Api;
use crate::api::error::{ApiError, json_response};
use crate::handler::seconds_since_1970;
use crate::ollama::{self, description::tag_of_unloaded};
use crate::options::ServeOptions;
use crate::page;
use crate::routes::{Shown, constant};

/// More than a full context of most models; each model also has a limit of its own.
const MAX_BODY_BYTES: usize = 32 << 20;

/// A request's field that names its model.
#[derive(Deserialize)]
struct Named {
    model: Option<String>,
}

struct ModelRouter {
    pool: Arc<Pool>,
    admission: Admission,
    shown: Shown,
    any_name: bool,
    /// Further names of the only model, and words that lists show with it.
    aliases: Vec<String>,
    tags: Vec<String>,
    /// Seconds since 1970.
    created: u64,
}

pub(super) fn routes(pool: Arc<Pool>, options: &ServeOptions, any_name: bool) -> Router {
    let models = Arc::new(ModelRouter {
        pool,
        admission: Admission::new(MAX_BODY_BYTES, options.timeout, 0, options.tokenizing.clone()),
        shown: Shown::of(options),
        any_name,
        aliases: options.aliases.clone(),
        tags: options.tags.clone(),
        created: seconds_since_1970(),
    });
    let listed = || {
        let models = models.clone();
        get(move || async move { json_response(StatusCode::OK, &models.list()) })
    };
    let (one, load, unload, others) = (models.clone(), models.clone(), models.clone(), models.clone());
    let running = models.clone();
    let health = || {
        let models = models.clone();
        get(move || async move { models.pool.health().response() })
    };
    let named = move |Path(name): Path<String>| async move {
        let model = one.index(Some(&name))?;
        Ok::<Response, ApiError>(json_response(StatusCode::OK, &one.entry(model)))
    };
    let load = move |request| async move {
        let model = load.named_in(request).await?;
        drop(load.pool.lease(model).await?);
        Ok::<Response, ApiError>(json_response(StatusCode::OK, &json!({"success": true})))
    };
    let unload = move |request| async move {
        let model = unload.named_in(request).await?;
        unload.pool.unload(model);
        Ok::<Response, ApiError>(json_response(StatusCode::OK, &json!({"success": true})))
    };
    Router::new()
        .route("/v1/models", listed())
        .route("/models", listed())
        .route("/v1/models/{*name}", get(named))
        .route("/models/load", post(load))
        .route("/models/unload", post(unload))
        .route("/api/tags", listed())
        .route("/api/ps", get(move || async move { json_response(StatusCode::OK, &running.running()) }))
        .route("/api/version", constant(ollama::version()))
        .route("/health", health())
        .route("/v1/health", health())
        .route("/ping", health())
        .route("/version", constant(json!({"version": env!("CARGO_PKG_VERSION")})))
        .merge(if options.page { page::routes() } else { Router::new() })
        .fallback(move |request: Request| async move {
            let api = Api::of(request.uri().path());
            others.forward(request).await.unwrap_or_else(|error| api.error(&error))
        })
}

impl ModelRouter {
    /// Sends a request to the model that it names, loaded.
    async fn forward(&self, request: Request) -> Result<Response, ApiError> {
        if request.method() == Method::POST {
            expect_json(request.headers())?;
            let (head, body) = request.into_parts();
            let ReadBody { bytes, memory: _memory } = self.admission.read_body(Request::new(body)).await?;
            let model = self.index(name_in(&bytes)?.as_deref())?;
            let lease = self.pool.lease(model).await?;
            // Until the answer begins, this body counts among those of all models, too.
            return Ok(answer(lease, Request::from_parts(head, Body::from(bytes))).await);
        }
        let named = Query::<Named>::try_from_uri(request.uri()).ok();
        let model = self.index(named.and_then(|named| named.0.model).as_deref())?;
        // A request that only reads neither loads a model nor keeps one loaded.
        if let Some(router) = self.pool.router(model) {
            let Ok(response) = router.oneshot(request).await;
            return Ok(response);
        }
        let path = request.uri().path();
        if let Some(answer) = self.pool.unloaded(model).and_then(|unloaded| unloaded.answer(path, self.shown)) {
            return Ok(answer);
        }
        if ["/metrics", "/slots"].contains(&path) {
            let message = format!("model {:?} is not loaded: a request that names it loads it", self.pool.names[model]);
            return Err(ApiError::busy(StatusCode::SERVICE_UNAVAILABLE, message));
        }
        Ok(answer(self.pool.lease(model).await?, request).await)
    }

    /// The model that a body names.
    async fn named_in(&self, request: Request) -> Result<usize, ApiError> {
        expect_json(request.headers())?;
        let body = self.admission.read_body(request).await?;
        match name_in(&body.bytes)? {
            Some(name) => self.index(Some(&name)),
            None => Err(ApiError::parameter("model", "expected the name of a model, found none")),
        }
    }

    /// Index of the model called `name`; the first without a name.
    fn index(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let Some(name) = name else { return Ok(0) };
        let names = &self.pool.names;
        // Ollama's clients add the tag that is the default.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let found = names.iter().position(|known| known == name || known == plain);
        found.or(self.any_name.then_some(0)).ok_or_else(|| ApiError::unknown_model(name, &names.join(", ")))
    }

    /// The answer with OpenAI's and Ollama's lists of models.
    fn list(&self) -> Value {
        let all: Vec<Value> = (0..self.pool.names.len()).map(|model| self.entry(model)).collect();
        let tag = |(model, name): (usize, &String)| match self.pool.ollama(model) {
            Some(description) => description.tag.clone(),
            None => tag_of_unloaded(name, self.created),
        };
        let tags: Vec<Value> = self.pool.names.iter().enumerate().map(tag).collect();
        json!({"object": "list", "data": all, "models": tags})
    }

    /// Ollama's list of loaded models.
    fn running(&self) -> Value {
        let loaded = (0..self.pool.names.len()).filter_map(|model| self.pool.ollama(model));
        json!({"models": loaded.map(|description| description.running.clone()).collect::<Vec<_>>()})
    }

    /// One of OpenAI's list, with llama-server's `status`.
    fn entry(&self, model: usize) -> Value {
        let status = match self.pool.state(model) {
            State::Unloaded => "unloaded",
            State::Loading => "loading",
            State::Loaded | State::Closing => "loaded",
            State::Unloading => "unloading",
        };
        let name = &self.pool.names[model];
        let aliases = if self.aliases.is_empty() { std::slice::from_ref(name) } else { &self.aliases };
        json!({
            "id": name, "object": "model", "created": self.created, "owned_by": "unicorn", "aliases": aliases, "tags": self.tags,
            "status": {"value": status},
        })
    }
}

/// Reads no more of a body than its model's name: the model reports what else is wrong.
fn name_in(body: &[u8]) -> Result<Option<String>, ApiError> {
    let named: Result<Named, _> = serde_json::from_slice(body);
    named
        .map(|named| named.model)
        .map_err(|error| ApiError::bad_request(format!("body: expected a JSON object: {error}")))
}

/// The model's response, which holds the lease until its end.
async fn answer(lease: Lease, request: Request) -> Response {
    let Ok(response) = lease.router.clone().oneshot(request).await;
    let (head, body) = response.into_parts();
    Response::from_parts(head, Body::new(LeasedBody { body, _lease: lease })).into_response()
}
