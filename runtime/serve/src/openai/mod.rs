//! OpenAI's API: chat completions, completions and responses.

pub(crate) mod completions;
pub(crate) mod responses;
