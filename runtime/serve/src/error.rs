//! Why a server could not start.

use std::error::Error;
use std::path::PathBuf;
use std::{fmt, io};

use unicorn_text::TextError;
use unicorn_text::unicorn_runtime::RunError;
use unicorn_text::unicorn_runtime::unicorn_artifact::printable;

/// Why a server could not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A field of the options has a value that no server can have.
    Option {
        /// The field, such as `max_tokens`.
        option: &'static str,
        /// The value found, and what was expected.
        what: String,
    },
    /// The artifact's weights are random: they are for measuring time, and their text means nothing.
    SyntheticWeights {
        /// The model's name.
        model: String,
    },
    /// Embeddings are requested of an artifact without programs for them.
    NoHiddenRows {
        /// The model's name.
        model: String,
    },
    /// The folder for KV caches cannot be used.
    KvCache {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Several models that cannot be served together.
    Models {
        /// What, expected, found.
        what: String,
    },
    /// The artifact's tokenizer or chat template is missing or not usable.
    Text(TextError),
    /// The model has no sessions left, or no program for as many sequences as it was loaded for; or a default of sampling is out
    /// of its range.
    Run(RunError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::SyntheticWeights { model } => write!(
                f,
                "weights of {model} are synthetic, good for timing and not for text: a server expects those of a trained model"
            ),
            ServeError::NoHiddenRows { model } => write!(
                f,
                "embeddings: expected an artifact of format 8.3, whose programs write hidden rows, found {model} without; compile it again"
            ),
            ServeError::Option { what, .. } | ServeError::Models { what } => f.write_str(what),
            ServeError::KvCache { folder, source } => {
                let folder = folder.display().to_string();
                write!(f, "KV cache in {}: {source}", printable(&folder))
            }
            ServeError::Text(error) => error.fmt(f),
            ServeError::Run(error) => error.fmt(f),
        }
    }
}

impl Error for ServeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ServeError::Option { .. }
            | ServeError::SyntheticWeights { .. }
            | ServeError::NoHiddenRows { .. }
            | ServeError::Models { .. } => None,
            ServeError::KvCache { source, .. } => Some(source),
            ServeError::Text(error) => error.source(),
            ServeError::Run(error) => error.source(),
        }
    }
}

impl From<TextError> for ServeError {
    fn from(error: TextError) -> ServeError {
        ServeError::Text(error)
    }
}

impl From<RunError> for ServeError {
    fn from(error: RunError) -> ServeError {
        ServeError::Run(error)
    }
}
