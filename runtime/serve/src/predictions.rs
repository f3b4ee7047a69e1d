//! Vertex AI's form of requests, for a server in one of its containers
//! (<https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements>): several requests in one body, each for the
//! endpoint that its `@requestFormat` names, as llama-server has it.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use crate::api::error::{ApiError, json_response};
use crate::api::fields::{Fields, unexpected};
use crate::api::request::MAX_CHOICES;
use crate::observer::Observation;

const FORMAT: &str = "@requestFormat";
const INSTANCES: &str = "a list of objects, each with a @requestFormat such as chatCompletions";

/// The answers to all instances of a request's `fields`, in order, each by the endpoint of `routes` that it names. `paths`: those of the
/// endpoints. What they use counts as of the observed request.
///
/// # Errors
/// For a body without a list of instances; an error of one of them is the answer to that one.
pub(crate) async fn predict(
    routes: &Router,
    paths: impl Iterator<Item = &'static str> + Clone,
    fields: Map<String, Value>,
    observation: &Observation,
) -> Result<Response, ApiError> {
    let instances: Vec<Value> = Fields(fields).require("instances", INSTANCES)?;
    if instances.len() > MAX_CHOICES {
        let found = format!("expected at most {MAX_CHOICES}, found {}", instances.len());
        return Err(ApiError::parameter("instances", found));
    }
    let all = instances.into_iter().enumerate().map(|(number, instance)| {
        let (routes, paths) = (routes.clone(), paths.clone());
        async move {
            match request_of(instance, &format!("instances[{number}]"), paths) {
                Ok(mut request) => {
                    request.extensions_mut().insert(observation.clone());
                    let Ok(response) = routes.oneshot(request).await;
                    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
                    serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into())
                }
                Err(error) => error.json(),
            }
        }
    });
    Ok(json_response(StatusCode::OK, &json!({"predictions": join_all(all).await})))
}

/// The request that an instance, the parameter `name`, contains.
fn request_of(
    mut instance: Value,
    name: &str,
    mut paths: impl Iterator<Item = &'static str>,
) -> Result<Request, ApiError> {
    let format = instance.as_object_mut().and_then(|fields| fields.remove(FORMAT));
    let Some(format) = format.as_ref().and_then(Value::as_str) else {
        return Err(unexpected(name, "an object with a @requestFormat, a text", &instance));
    };
    let Some(path) = paths.find(|path| *path == format || format_of(path) == format) else {
        let expected = "the path of an endpoint, or its words in camel case, such as chatCompletions";
        return Err(unexpected(&format!("{name}.{FORMAT}"), expected, &format.into()));
    };
    // A prediction is one piece.
    instance["stream"] = false.into();
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(instance.to_string()));
    Ok(request.expect("a path of this server"))
}

/// `/v1/chat/completions` is `chatCompletions`.
fn format_of(path: &str) -> String {
    let words = path.trim_start_matches("/v1").split(['/', '-', '_']).filter(|word| !word.is_empty());
    let capital = |(number, word): (usize, &str)| match number {
        0 => word.to_owned(),
        _ => word[..1].to_uppercase() + &word[1..],
    };
    words.enumerate().map(capital).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_names_its_endpoint_by_path_or_words() {
        let paths = || ["/v1/chat/completions", "/apply-template"].into_iter();
        let path = |instance: Value| {
            request_of(instance, "instances[0]", paths())
                .map(|request| request.uri().path().to_owned())
                .map_err(|error| error.message)
        };
        for format in ["chatCompletions", "/v1/chat/completions"] {
            assert_eq!(path(json!({FORMAT: format, "stream": true})), Ok("/v1/chat/completions".to_owned()));
        }
        assert_eq!(path(json!({FORMAT: "applyTemplate"})), Ok("/apply-template".to_owned()));
        for wrong in [json!(1), json!({}), json!({FORMAT: 1}), json!({FORMAT: "slots"})] {
            assert!(path(wrong.clone()).unwrap_err().starts_with("instances[0]"), "{wrong}");
        }
    }
}
