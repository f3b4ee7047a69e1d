//! Ollama's API: `/api/chat`, `/api/generate`, and what its clients read of models.

pub(crate) mod date;
pub(crate) mod description;
pub(crate) mod request;
pub(crate) mod response;
