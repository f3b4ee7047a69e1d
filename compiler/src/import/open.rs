//! Which importer opens a model.

use std::path::Path;

use super::checkpoint::Checkpoint;
use super::kind::input_kind;
use super::{gguf, huggingface};
use crate::Source;
use crate::error::{CompileError, InputKind, Result};

/// Opens the source of a compile.
///
/// # Errors
/// Errors of [`open_model`] and [`open_config`].
pub fn open(source: Source) -> Result<Checkpoint> {
    match source {
        Source::Model(path) => open_model(path),
        Source::Synthetic(config) => open_config(config),
    }
}

/// Opens a Hugging Face folder or a GGUF file, which may be alone in a folder; the content of the path decides which. Tensors are
/// mapped, not read.
///
/// # Errors
/// When it is neither, with what it is, and when the model is not supported.
pub fn open_model(path: &Path) -> Result<Checkpoint> {
    match input_kind(path)? {
        InputKind::Folder { .. } => huggingface::open(path),
        InputKind::Gguf { file, .. } => gguf::open(&file),
        InputKind::NotAModel(found) => Err(CompileError::NotAModel { path: path.into(), found }),
    }
}

/// Opens only the shape that the config.json at `path` describes, for random weights.
///
/// # Errors
/// Errors of [`open_model`] that concern the config.
pub fn open_config(path: &Path) -> Result<Checkpoint> {
    huggingface::of_config(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_one_gguf_is_that_model() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("model.gguf"), "GGUF, cut").unwrap();
        let message = open_model(folder.path()).err().unwrap().to_string();
        assert!(message.contains("model.gguf: "), "{message}");
    }
}
