//! What a user reads when a compile stops: the stage, what went wrong, what was expected, what was found, and where.

use std::path::{Path, PathBuf};

/// Every way a compile can fail. Messages lead with the noun that went wrong and end without a full stop.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A file is not what its name says: cut, lying header, bad JSON.
    #[error("{}: {what}", path.display())]
    Malformed { path: PathBuf, what: String },
    #[error("architecture {found} is not supported; supported are: {supported}")]
    UnsupportedArchitecture { found: String, supported: String },
    /// A known architecture asks for something that we do not do.
    #[error("{what} is not supported: {detail}")]
    Unsupported { what: String, detail: String },
    #[error("tensor {name} is missing{hint}")]
    MissingTensor { name: String, hint: String },
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    TensorShape { name: String, expected: Vec<usize>, found: Vec<usize> },
    /// The model does not fit the memory that it was planned for.
    #[error("{0}")]
    Plan(String),
    #[error("kernel {kernel} for target {target}: {what}")]
    Kernel { kernel: String, target: String, what: String },
}

pub type Result<T> = std::result::Result<T, CompileError>;

impl CompileError {
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> CompileError + '_ {
        move |source| CompileError::Io { path: path.to_owned(), source }
    }

    pub fn malformed(path: &Path, what: impl Into<String>) -> CompileError {
        CompileError::Malformed { path: path.to_owned(), what: what.into() }
    }
}
