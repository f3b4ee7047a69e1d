//! Who answers what.

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

use super::desk::{Desk, seconds_since_1970};
use super::refusal::Refusal;
use super::reply::json_response;
use super::request::Kind;

/// More than the longest context takes as text.
const MOST_BODY_BYTES: usize = 32 << 20;

pub fn routes(desk: Desk) -> Router {
    let desk = Arc::new(desk);
    let of = |kind: Kind| {
        let desk = desk.clone();
        post(move |body| answer(desk, kind, body))
    };
    let model = json!({
        "id": desk.model_name, "object": "model", "created": seconds_since_1970(), "owned_by": "unicorn"
    });
    let models = model.clone();
    let named = move |Path(id): Path<String>| async move {
        let unknown = || Refusal::unknown_model(&id, &models["id"]);
        (models["id"] == id.as_str()).then(|| json_response(StatusCode::OK, &models)).ok_or_else(unknown)
    };
    Router::new()
        .route("/v1/chat/completions", of(Kind::Chat))
        .route("/v1/completions", of(Kind::Text))
        .route("/v1/models", always(json!({"object": "list", "data": [model]})))
        .route("/v1/models/{*id}", get(named))
        .route("/health", always(json!({"status": "ok"})))
        .fallback(|| async {
            let paths = "path: expected /v1/chat/completions, /v1/completions, /v1/models or /health";
            Refusal { status: StatusCode::NOT_FOUND, ..Refusal::bad_request(paths) }
        })
        .method_not_allowed_fallback(|| async {
            Refusal { status: StatusCode::METHOD_NOT_ALLOWED, ..Refusal::bad_request("method: this path has another") }
        })
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
}

fn always(value: Value) -> axum::routing::MethodRouter {
    get(move || async move { json_response(StatusCode::OK, &value) })
}

async fn answer(desk: Arc<Desk>, kind: Kind, body: Result<Bytes, BytesRejection>) -> Result<Response, Refusal> {
    let body = body.map_err(|rejection| Refusal {
        status: rejection.status(),
        ..Refusal::bad_request(format!("body: {}", rejection.body_text()))
    })?;
    // A long prompt takes the tokenizer a while, in which others want their tokens.
    let ordered = tokio::task::spawn_blocking(move || desk.order(kind, &body)).await;
    let answer = ordered.map_err(|error| Refusal::failed(format!("request was not understood: {error}")))??;
    if answer.streams {
        let events = answer.chunks().map(|data| Ok::<Event, Infallible>(Event::default().data(data)));
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    Ok(json_response(StatusCode::OK, &answer.whole().await?))
}
