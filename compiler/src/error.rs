//! Why a compile stops: the stage, what went wrong, what was expected, what was found, and where.

use std::path::{Path, PathBuf};

use unicorn_artifact::Tier;
use unicorn_artifact::machine::MachineError;
use unicorn_kernels::KvFormat;

use crate::weights::FormatPolicy;

/// Every way a compile can fail. Messages lead with the noun that went wrong and end without a full stop; none names an option
/// of a command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its name says: cut, lying header, bad JSON.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what was expected.
        what: String,
    },
    /// The model's architecture is none that is known.
    #[error("architecture {found} is not supported; supported are: {supported}")]
    UnsupportedArchitecture {
        /// As the model names it.
        found: String,
        /// All that are known, separated by commas.
        supported: String,
    },
    /// A known architecture asks for something that we do not do.
    #[error("{what} is not supported: {detail}")]
    Unsupported {
        /// What it asks for.
        what: String,
        /// What is done instead, or why not.
        detail: String,
    },
    /// The model lacks a tensor that its config calls for.
    #[error("tensor {name} is missing{hint}")]
    MissingTensor {
        /// By canonical name, or as the source would name it.
        name: String,
        /// Where it was looked for.
        hint: String,
    },
    /// A tensor is not as large as the config says.
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// Canonical name, name in the source, and file.
        name: String,
        /// Outermost axis first.
        expected: Vec<usize>,
        /// Outermost axis first.
        found: Vec<usize>,
    },
    /// A field of the options has a value that no compile can be made with.
    #[error("{what}")]
    Option {
        /// The field, such as `group` or `context_tokens`.
        option: &'static str,
        /// What it is, and what was expected.
        what: String,
    },
    /// The model does not fit the memory that it was planned for.
    #[error("{what}")]
    DoesNotFit {
        /// What it needs, what there is, and each way out with what it saves.
        what: String,
        /// Those ways that are enough, by themselves.
        remedies: Vec<Remedy>,
    },
    /// A kernel is more than a target can do.
    #[error("kernel {kernel} for target {target}: {what}")]
    Kernel {
        /// Family and shape.
        kernel: String,
        /// The target's name.
        target: String,
        /// What it lacks.
        what: String,
    },
    /// A target's kernels cannot be compressed: there is not enough memory.
    #[error("kernels of target {target} cannot be compressed: {source}")]
    Compression {
        /// The target's name.
        target: String,
        /// What zstd reported.
        source: std::io::Error,
    },
    /// [`Progress`](crate::Progress) returned `Break`. Nothing half-written is left.
    #[error("compile was cancelled")]
    Cancelled,
}

/// A change that would make a model fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Plan for a context of so many tokens.
    Context(u32),
    /// Keep the KV cache in this format.
    Kv(KvFormat),
    /// Keep the weights in these formats.
    Weights(FormatPolicy),
    /// Give a tier so many bytes.
    Memory {
        /// The tier that is filled last.
        tier: Tier,
        /// Its new size.
        bytes: u64,
    },
}

/// What the compiler returns.
pub type Result<T> = std::result::Result<T, CompileError>;

impl CompileError {
    /// The error of a machine that cannot be planned for.
    pub fn of_machine(error: MachineError) -> CompileError {
        let what = error.to_string();
        match error {
            MachineError::Unknown { .. } => CompileError::Option { option: "machine", what },
            MachineError::NoTier { .. } => CompileError::Option { option: "budget", what },
            MachineError::Io { path, source } => CompileError::Io { path, source },
            MachineError::Malformed { path, what } => CompileError::Malformed { path, what },
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> CompileError + '_ {
        move |source| CompileError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> CompileError {
        CompileError::Malformed { path: path.to_owned(), what: what.into() }
    }
}
