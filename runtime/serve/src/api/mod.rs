//! OpenAI's API as data: requests as they are parsed, responses and errors as they are written.

pub(crate) mod error;
pub(crate) mod request;
pub(crate) mod response;
