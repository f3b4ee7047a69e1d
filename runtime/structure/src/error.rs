//! What is wrong with a structure.

use std::error::Error;
use std::fmt;

/// A schema, an expression or a grammar that is wrong, or too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructureError {
    /// What was expected and found, in one line.
    pub message: String,
}

impl StructureError {
    pub(crate) fn new(message: impl Into<String>) -> StructureError {
        StructureError { message: message.into() }
    }
}

impl fmt::Display for StructureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl Error for StructureError {}
