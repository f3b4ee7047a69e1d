//! The HTTP routes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::middleware;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;

use crate::access::{Access, expect_json};
use crate::api::error::ApiError;
use crate::api::request::Endpoint;
use crate::api::response::json_response;
use crate::handler::{RequestHandler, seconds_since_1970};

pub(crate) fn routes(handler: Arc<RequestHandler>, access: Access) -> Router {
    let generate = |endpoint: Endpoint| {
        let handler = handler.clone();
        post(move |request| respond(handler, endpoint, request))
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
    let routes = Router::new()
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
        });
    let routes = match access.cors() {
        Some(cors) => routes.layer(cors),
        None => routes,
    };
    routes
        .layer(middleware::from_fn_with_state(Arc::new(access), Access::check))
        .layer(CatchPanicLayer::custom(|_| ApiError::failed("request was not handled: a panic").into_response()))
}

fn constant(value: Value) -> axum::routing::MethodRouter {
    get(move || async move { json_response(StatusCode::OK, &value) })
}

async fn respond(handler: Arc<RequestHandler>, endpoint: Endpoint, request: Request) -> Result<Response, ApiError> {
    expect_json(request.headers())?;
    let response = handler.handle(endpoint, request).await?;
    if response.stream {
        let events = response.chunks().map(|data| Ok::<Event, Infallible>(Event::default().data(data)));
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    Ok(json_response(StatusCode::OK, &response.collect().await?))
}
