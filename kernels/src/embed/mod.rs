//! Embedding lookup: `y[t] = E[token[t]] · scale`, E packed like any matrix (it is often the output head as well).
//!
//! Reads one row a token. A table larger than one binding is cut by rows; each part's kernel writes only the tokens
//! that fall into it. A row of an image (`unicorn_artifact::step::IMAGE_ROW`) is copied from rows that the host wrote.

mod spec;
mod twin;

pub use spec::EmbedSpec;
pub use twin::twin;
