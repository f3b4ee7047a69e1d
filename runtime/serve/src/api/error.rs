//! Errors that a client gets, in the form of its API.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Why a request is not answered, and which of its parameters is the cause.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ApiError {
    /// Status of the response.
    pub status: StatusCode,
    /// What, expected, found, in one line.
    pub message: String,
    /// The parameter that is wrong, if it is one.
    pub parameter: Option<String>,
    /// OpenAI's code for it, if there is one, which client libraries check.
    pub code: Option<&'static str>,
    /// Seconds after which the same request may succeed.
    pub retry_after_s: Option<u32>,
    /// When the prompt is too long: its tokens, as far as they were counted, and those of the context.
    pub tokens: Option<(usize, u32)>,
}

/// Seconds after which a client may try again that found the server busy: about the time until a sequence ends.
pub(crate) const RETRY_AFTER_S: u32 = 2;

impl ApiError {
    /// An error of the client.
    pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
        let (status, message) = (StatusCode::BAD_REQUEST, message.into());
        ApiError { status, message, parameter: None, code: None, retry_after_s: None, tokens: None }
    }

    /// A host or an origin without access.
    pub(crate) fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError { status: StatusCode::FORBIDDEN, ..ApiError::bad_request(message) }
    }

    /// A limit of the server that is reached only temporarily.
    pub(crate) fn busy(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, retry_after_s: Some(RETRY_AFTER_S), ..ApiError::bad_request(message) }
    }

    /// A parameter that is not what it should be.
    pub(crate) fn parameter(name: &str, message: impl std::fmt::Display) -> ApiError {
        let parameter = Some(name.to_owned());
        ApiError { parameter, ..ApiError::bad_request(format!("{name}: {message}")) }
    }

    /// A prompt of more tokens than the context has. Clients check the code, and shorten their history.
    pub(crate) fn context_length(name: &str, message: impl std::fmt::Display) -> ApiError {
        ApiError { code: Some("context_length_exceeded"), ..ApiError::parameter(name, message) }
    }

    /// A model's name other than that of the model that is served.
    pub(crate) fn unknown_model(requested: &str, served: &str) -> ApiError {
        let message = format!("expected {served:?}, found {requested:?}");
        ApiError {
            status: StatusCode::NOT_FOUND,
            code: Some("model_not_found"),
            ..ApiError::parameter("model", message)
        }
    }

    /// The server is shutting down: a client may try again.
    pub(crate) fn stopping() -> ApiError {
        ApiError::busy(StatusCode::SERVICE_UNAVAILABLE, "server is stopping")
    }

    /// A failure of the server itself.
    pub(crate) fn failed(message: impl Into<String>) -> ApiError {
        ApiError { status: StatusCode::INTERNAL_SERVER_ERROR, ..ApiError::bad_request(message) }
    }

    /// A key that is missing or wrong.
    pub(crate) fn unauthorized() -> ApiError {
        let message = "api key: expected one of the server's in Authorization: Bearer KEY, or in X-Api-Key";
        ApiError { status: StatusCode::UNAUTHORIZED, code: Some("invalid_api_key"), ..ApiError::bad_request(message) }
    }

    /// An endpoint that the server was started without.
    pub(crate) fn disabled(message: &str) -> ApiError {
        ApiError { status: StatusCode::NOT_IMPLEMENTED, ..ApiError::bad_request(message) }
    }

    /// The body of the response: OpenAI's `error` object.
    pub fn json(&self) -> Value {
        let (message, param, code) = (&self.message, &self.parameter, self.code);
        let mut error = json!({"message": message, "type": self.kind(), "param": param, "code": code});
        if let Some((n_prompt_tokens, n_ctx)) = self.tokens {
            error["n_prompt_tokens"] = n_prompt_tokens.into();
            error["n_ctx"] = n_ctx.into();
        }
        json!({"error": error})
    }

    /// OpenAI's name of the kind of error, or llama-server's where OpenAI has none.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_IMPLEMENTED => "not_supported_error",
            // llama-server's; OpenAI's clients read the code.
            _ if self.tokens.is_some() => "exceed_context_size_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Anthropic's form.
    pub(crate) fn anthropic(&self) -> Value {
        let kind = match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::INTERNAL_SERVER_ERROR => "api_error",
            StatusCode::BAD_REQUEST => "invalid_request_error",
            _ => self.kind(),
        };
        // Claude Code searches for these words, and shortens its history.
        let message = match self.tokens {
            Some((n_prompt, n_context)) => format!("prompt is too long: {n_prompt} tokens > {n_context} maximum"),
            None => self.message.clone(),
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }

    /// Ollama's form.
    pub(crate) fn ollama(&self) -> Value {
        json!({"error": self.message})
    }

    /// The response with this body.
    pub(crate) fn response(&self, body: &Value) -> Response {
        let mut response = json_response(self.status, body);
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.response(&self.json())
    }
}

/// A response with a body of JSON.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
