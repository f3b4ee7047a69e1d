//! Ollama's API: `/api/chat`, `/api/generate`, and what its clients read of models.

pub(crate) mod date;
pub(crate) mod description;
pub(crate) mod request;
pub(crate) mod response;

use serde_json::{Value, json};

/// The answer of `/api/version`: the first version of Ollama with the endpoints that are here, of which `/v1/messages` came last. Clients
/// refuse older ones; Codex does before 0.13.4.
pub(crate) fn version() -> Value {
    json!({"version": "0.14.0"})
}
