//! A request that is not answered, told in OpenAI's form.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::reply::json_response;

/// Why, and which of its parameters is to blame.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
    pub parameter: Option<String>,
}

impl Refusal {
    /// The client's mistake.
    pub fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal { status: StatusCode::BAD_REQUEST, message: message.into(), parameter: None }
    }

    /// A parameter that is not what it should be.
    pub fn parameter(name: &str, message: impl std::fmt::Display) -> Refusal {
        let parameter = Some(name.to_owned());
        Refusal { parameter, ..Refusal::bad_request(format!("{name}: {message}")) }
    }

    /// Ours.
    pub fn failed(message: impl Into<String>) -> Refusal {
        Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, ..Refusal::bad_request(message) }
    }

    pub fn json(&self) -> Value {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({"error": {"message": self.message, "type": kind, "param": self.parameter, "code": self.status.as_u16()}})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        json_response(self.status, &self.json())
    }
}
