//! llama-server's own API, which its user interfaces and editors use.

pub(crate) mod completion;
pub(crate) mod infill;
pub(crate) mod settings;
