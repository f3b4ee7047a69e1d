//! Why an artifact is refused: what, expected, found, at which offset.

use crate::printable::printable;

/// Every reason why bytes are not an artifact of a version that this reader supports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "fields are the nouns of the messages")]
#[non_exhaustive]
pub enum ParseError {
    /// The magic bytes differ.
    #[error("file is not a Unicorn artifact: expected the magic bytes \"UNICORN\\0\" at offset 0, found {found:02x?}")]
    Magic { found: Vec<u8> },
    /// Another major version.
    #[error(
        "artifact has format version {found_major}.{found_minor}, this program reads {supported_major}.x; use one \
         of that version or compile the model again"
    )]
    Version { found_major: u16, found_minor: u16, supported_major: u16 },
    /// A part is missing.
    #[error("artifact is cut: expected {expected} bytes of {what} at offset {offset}, found {found}")]
    Cut { what: &'static str, offset: u64, expected: u64, found: u64 },
    /// A hash differs: bits changed since the file was written.
    #[error("artifact is damaged: {what} at offset {offset} has hash {found}, expected {expected}")]
    Hash { what: String, offset: u64, expected: String, found: String },
    /// A number that the format does not allow.
    #[error("artifact is damaged: {what}: expected {expected}, found {found}")]
    Invalid { what: String, expected: String, found: String },
    /// A record or frame that does not decode.
    #[error("artifact section {what} does not decode: {detail}")]
    Decode { what: &'static str, detail: String },
    /// What is wrong with the draft that is packed into the artifact; offsets are those in the draft.
    #[error("draft in the artifact: {0}")]
    Draft(Box<ParseError>),
}

impl ParseError {
    pub(crate) fn invalid(
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> ParseError {
        // The names in it are the file's.
        let what = printable(&what.into()).into_owned();
        ParseError::Invalid { what, expected: expected.to_string(), found: found.to_string() }
    }
}
