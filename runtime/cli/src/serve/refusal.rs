//! A request that is not answered, told in OpenAI's form.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::reply::json_response;

/// Why, and which of its parameters is to blame.
#[derive(Debug, PartialEq)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
    pub parameter: Option<String>,
    /// By which OpenAI's clients know it.
    pub code: Option<&'static str>,
}

impl Refusal {
    /// The client's mistake.
    pub fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal { status: StatusCode::BAD_REQUEST, message: message.into(), parameter: None, code: None }
    }

    /// A parameter that is not what it should be.
    pub fn parameter(name: &str, message: impl std::fmt::Display) -> Refusal {
        let parameter = Some(name.to_owned());
        Refusal { parameter, ..Refusal::bad_request(format!("{name}: {message}")) }
    }

    /// A prompt that has more tokens than a sequence has room for; clients know the code, and shorten their history.
    pub fn too_long(name: &str, message: impl std::fmt::Display) -> Refusal {
        Refusal { code: Some("context_length_exceeded"), ..Refusal::parameter(name, message) }
    }

    pub fn unknown_model(asked: &str, served: &Value) -> Refusal {
        let message = format!("expected {served}, found {asked:?}");
        Refusal { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..Refusal::parameter("model", message) }
    }

    /// Nobody answers any more: clients may try again.
    pub fn stopping() -> Refusal {
        Refusal { status: StatusCode::SERVICE_UNAVAILABLE, ..Refusal::bad_request("server is stopping") }
    }

    /// Ours.
    pub fn failed(message: impl Into<String>) -> Refusal {
        Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, ..Refusal::bad_request(message) }
    }

    pub fn json(&self) -> Value {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({"error": {"message": self.message, "type": kind, "param": self.parameter, "code": self.code}})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        json_response(self.status, &self.json())
    }
}
