//! The HTTP routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde_json::{Map, Value, json};

use crate::access::expect_json;
use crate::admission::ClientGone;
use crate::api::endpoint::{Api, GENERATE};
use crate::api::error::{ApiError, json_response};
use crate::handler::{RequestHandler, seconds_since_1970};
use crate::metrics::Metrics;
use crate::observer::Observation;
use crate::ollama;
use crate::options::{LeftOut, ServeOptions};
use crate::page;
use crate::pooling::EmbeddingsApi;
use crate::predictions::predict;

/// Which of the endpoints that are not part of an API are served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) page: bool,
    pub(crate) metrics: bool,
    pub(crate) slots: bool,
}

impl Shown {
    pub(crate) fn of(options: &ServeOptions) -> Shown {
        Shown { page: options.page, metrics: options.metrics, slots: options.slots }
    }
}

/// Paths of embeddings, and the API whose form they have.
const EMBED: [(&str, EmbeddingsApi); 5] = [
    ("/v1/embeddings", EmbeddingsApi::OpenAi),
    ("/embeddings", EmbeddingsApi::Llama),
    ("/embedding", EmbeddingsApi::Llama),
    ("/api/embed", EmbeddingsApi::Ollama),
    ("/api/embeddings", EmbeddingsApi::OllamaSingle),
];

/// Paths of ranks.
const RERANK: [&str; 5] = ["/v1/rerank", "/v2/rerank", "/v1/reranking", "/rerank", "/reranking"];

/// Paths of scores.
const SCORE: [&str; 2] = ["/v1/score", "/score"];

/// Paths of operations on text without the model, except counts of tokens.
const TEXT: [&str; 3] = ["/tokenize", "/detokenize", "/apply-template"];

/// All routes of one model, without [`Access`].
pub(crate) fn routes(handler: Arc<RequestHandler>, shown: Shown) -> Router {
    let routes = GENERATE.iter().fold(Router::new(), |routes, &(path, api)| {
        let handler = handler.clone();
        routes.route(path, post(move |request| generate(handler, api, request)))
    });
    let routes = routes
        .merge(about_text(&handler))
        .merge(about_documents(&handler))
        .merge(about_models(&handler))
        .merge(about_the_server(&handler, shown))
        .merge(if shown.page { page::routes() } else { Router::new() });
    let endpoints = routes.clone();
    let other = move |status, why| {
        let (handler, endpoints) = (handler.clone(), endpoints.clone());
        move |request: Request| async move {
            let api = Api::of(request.uri().path());
            let neither = ApiError { status, ..ApiError::bad_request(why) };
            at_other_path(handler, endpoints, request, neither).await.unwrap_or_else(|error| api.error(&error))
        }
    };
    let no_endpoint = "path: no endpoint is here; docs/serve.md lists them, from /v1/chat/completions on";
    routes.fallback(other(StatusCode::NOT_FOUND, no_endpoint)).method_not_allowed_fallback(other(
        StatusCode::METHOD_NOT_ALLOWED,
        "method: expected the other one of GET and POST",
    ))
}

/// Vertex AI's paths are the operator's choice, also where a GET has another meaning. `neither`: the answer to other requests.
async fn at_other_path(
    handler: Arc<RequestHandler>,
    endpoints: Router,
    request: Request,
    neither: ApiError,
) -> Result<Response, ApiError> {
    let path = request.uri().path();
    match handler.options.vertex.clone() {
        Some(vertex) if path == vertex.predict && request.method() == Method::POST => {
            expect_json(request.headers())?;
            let observation = Observation::of(&request);
            observation.is_at(path);
            let fields = handler.with_body(request, |_, fields, _| Ok(fields)).await?;
            let generate = GENERATE.iter().map(|(path, _)| *path);
            let paths = generate.chain(EMBED.iter().map(|(path, _)| *path)).chain(RERANK).chain(SCORE).chain(TEXT);
            predict(&endpoints, paths, fields, &observation).await
        }
        Some(vertex) if vertex.health.as_deref() == Some(path) => Ok(handler.metrics.health.state().response()),
        _ => Err(neither),
    }
}

async fn generate(handler: Arc<RequestHandler>, api: Api, request: Request) -> Response {
    let responded = async {
        expect_json(request.headers())?;
        handler.handle(api, request).await
    };
    responded.await.unwrap_or_else(|error: ApiError| api.error(&error))
}

/// Routes of operations on text without the model.
fn about_text(handler: &Arc<RequestHandler>) -> Router {
    let tokenize = || answer(handler, Api::Llama, |handler, fields, client| handler.tokenize(fields, client));
    let detokenize = || answer(handler, Api::Llama, |handler, fields, _| handler.detokenize(fields));
    let apply_template =
        || answer(handler, Api::Llama, |handler, fields, _| Ok(json!({"prompt": handler.rendered(fields)?})));
    let count_tokens = || {
        answer(handler, Api::Messages, |handler, fields, client| {
            Ok(json!({"input_tokens": handler.count_tokens(Api::Messages, fields, client)?}))
        })
    };
    let count_of = |api: Api| {
        answer(handler, api, move |handler, fields, client| {
            Ok(json!({"object": "response.input_tokens", "input_tokens": handler.count_tokens(api, fields, client)?}))
        })
    };
    Router::new()
        .route("/v1/chat/completions/input_tokens", count_of(Api::Chat))
        .route("/chat/completions/input_tokens", count_of(Api::Chat))
        .route("/v1/responses/input_tokens", count_of(Api::Responses))
        .route("/responses/input_tokens", count_of(Api::Responses))
        .route("/tokenize", tokenize())
        .route("/v1/tokenize", tokenize())
        .route("/detokenize", detokenize())
        .route("/v1/detokenize", detokenize())
        .route("/apply-template", apply_template())
        .route("/v1/messages/count_tokens", count_tokens())
        .route("/messages/count_tokens", count_tokens())
}

/// Routes that read texts and generate none.
fn about_documents(handler: &Arc<RequestHandler>) -> Router {
    let routes = EMBED.iter().fold(Router::new(), |routes, &(path, api)| {
        let handler = handler.clone();
        let embed = move |request: Request| async move {
            let embedded = async {
                expect_json(request.headers())?;
                handler.embed(api, request).await
            };
            embedded.await.unwrap_or_else(|error: ApiError| Api::of(path).error(&error))
        };
        routes.route(path, post(embed))
    });
    let routes = SCORE.iter().fold(routes, |routes, path| {
        let handler = handler.clone();
        let score = move |request: Request| async move {
            expect_json(request.headers())?;
            handler.score(request).await
        };
        routes.route(path, post(score))
    });
    RERANK.iter().fold(routes, |routes, path| {
        let handler = handler.clone();
        let rerank = move |request: Request| async move {
            expect_json(request.headers())?;
            handler.rerank(request).await
        };
        routes.route(path, post(rerank))
    })
}

fn answer(
    handler: &Arc<RequestHandler>,
    api: Api,
    work: impl Fn(&RequestHandler, Map<String, Value>, &ClientGone) -> Result<Value, ApiError>
    + Copy
    + Send
    + Sync
    + 'static,
) -> MethodRouter {
    let handler = handler.clone();
    post(move |request: Request| async move {
        let answered = async {
            expect_json(request.headers())?;
            Ok(json_response(StatusCode::OK, &handler.with_body(request, work).await?))
        };
        answered.await.unwrap_or_else(|error: ApiError| api.error(&error))
    })
}

/// Routes that list the model, in the form of each API.
fn about_models(handler: &Arc<RequestHandler>) -> Router {
    let (name, created) = (handler.model_name.clone(), seconds_since_1970());
    let model = json!({
        "id": name, "object": "model", "created": created, "owned_by": "unicorn", "aliases": handler.aliases, "tags": handler.options.tags,
        "max_model_len": handler.context_tokens(),
    });
    let ollama = handler.ollama.clone();
    let list = json!({"object": "list", "data": [model], "models": [ollama.tag]});
    let aliases = handler.aliases.clone();
    let named_model = move |Path(id): Path<String>| async move {
        match aliases.contains(&id) {
            true => Ok(json_response(StatusCode::OK, &model)),
            false => Err(ApiError::unknown_model(&id, &name)),
        }
    };
    Router::new()
        .route("/v1/models", constant(list.clone()))
        .route("/models", constant(list))
        .route("/v1/models/{*id}", get(named_model))
        .route("/api/tags", constant(json!({"models": [ollama.tag]})))
        .route("/api/ps", constant(json!({"models": [ollama.running]})))
        .route("/api/show", post(move || async move { json_response(StatusCode::OK, &ollama.show) }))
        .route("/api/version", constant(ollama::version()))
}

/// Routes that report what the server is doing.
fn about_the_server(handler: &Arc<RequestHandler>, shown: Shown) -> Router {
    let (props, slots, metrics) = (handler.clone(), handler.clone(), handler.clone());
    let health = || {
        let metrics = handler.metrics.clone();
        get(move || async move { metrics.health.state().response() })
    };
    let adapters = constant(json!([])).post(|| async {
        ApiError::disabled("lora-adapters: this server has none; they are merged into the model before it is compiled")
    });
    let routes = Router::new()
        .route("/health", health())
        .route("/v1/health", health())
        .route("/ping", health())
        .route("/version", constant(json!({"version": env!("CARGO_PKG_VERSION")})))
        .route("/props", get(move || async move { json_response(StatusCode::OK, &props.props()) }))
        .route("/lora-adapters", adapters);
    let slots = get(move || async move {
        match shown.slots {
            true => Ok(json_response(StatusCode::OK, &slots.slot_list())),
            false => {
                let how = (slots.options.how_to_enable)(LeftOut::Slots);
                Err(ApiError::disabled(&format!("slots: this server lists none{how}")))
            }
        }
    });
    let metrics = get(move || async move {
        if !shown.metrics {
            let how = (metrics.options.how_to_enable)(LeftOut::Metrics);
            return Err(ApiError::disabled(&format!("metrics: this server publishes none{how}")));
        }
        Ok(metrics_response(&metrics.metrics))
    });
    routes.route("/slots", slots).route("/metrics", metrics)
}

/// A response with the metrics in Prometheus' text format.
pub(crate) fn metrics_response(metrics: &Metrics) -> Response {
    let begun = metrics.begun.to_string();
    let headers = [(CONTENT_TYPE.as_str(), "text/plain; version=0.0.4"), ("process-start-time-unix", begun.as_str())];
    (headers, metrics.text()).into_response()
}

pub(crate) fn constant(value: Value) -> MethodRouter {
    get(move || async move { json_response(StatusCode::OK, &value) })
}
