//! The HTTP routes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::api::error::ApiError;
use crate::api::request::Endpoint;
use crate::api::response::json_response;
use crate::handler::{RequestHandler, seconds_since_1970};

/// More than the longest context takes as text.
const MAX_BODY_BYTES: usize = 32 << 20;

pub(crate) fn routes(handler: Arc<RequestHandler>) -> Router {
    let generate = |endpoint: Endpoint| {
        let handler = handler.clone();
        post(move |body| respond(handler, endpoint, body))
    };
    let name = handler.model_name.clone();
    let model = json!({
        "id": name, "object": "model", "created": seconds_since_1970(), "owned_by": "unicorn"
    });
    let only_model = model.clone();
    let named_model = move |Path(id): Path<String>| async move {
        match id == name {
            true => Ok(json_response(StatusCode::OK, &only_model)),
            false => Err(ApiError::unknown_model(&id, &name)),
        }
    };
    Router::new()
        .route("/v1/chat/completions", generate(Endpoint::ChatCompletions))
        .route("/v1/completions", generate(Endpoint::Completions))
        .route("/v1/models", constant(json!({"object": "list", "data": [model]})))
        .route("/v1/models/{*id}", get(named_model))
        .route("/health", constant(json!({"status": "ok"})))
        .fallback(|| async {
            let paths = "path: expected /v1/chat/completions, /v1/completions, /v1/models or /health";
            ApiError { status: StatusCode::NOT_FOUND, ..ApiError::bad_request(paths) }
        })
        .method_not_allowed_fallback(|| async {
            ApiError {
                status: StatusCode::METHOD_NOT_ALLOWED,
                ..ApiError::bad_request("method: expected the other one of GET and POST")
            }
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}

fn constant(value: Value) -> axum::routing::MethodRouter {
    get(move || async move { json_response(StatusCode::OK, &value) })
}

async fn respond(
    handler: Arc<RequestHandler>,
    endpoint: Endpoint,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = body.map_err(|rejection| ApiError {
        status: rejection.status(),
        ..ApiError::bad_request(format!("body: {}", rejection.body_text()))
    })?;
    // Tokenizing a long prompt takes a while, in which other responses are to be sent.
    let handled = tokio::task::spawn_blocking(move || handler.handle(endpoint, &body)).await;
    let response = handled.map_err(|error| ApiError::failed(format!("request was not handled: {error}")))??;
    if response.stream {
        let events = response.chunks().map(|data| Ok::<Event, Infallible>(Event::default().data(data)));
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    Ok(json_response(StatusCode::OK, &response.collect().await?))
}
