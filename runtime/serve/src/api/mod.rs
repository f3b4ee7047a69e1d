//! Requests as they are parsed, whatever their API, and errors.

pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod namespaces;
pub(crate) mod prompt;
pub(crate) mod request;
pub(crate) mod sampling;
mod structure;
pub(crate) mod tools;
