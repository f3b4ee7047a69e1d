//! Which importer opens a model.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::checkpoint::Checkpoint;
use super::{gguf, huggingface};
use crate::Source;
use crate::error::{CompileError, Result};

/// Opens what a compile starts from.
///
/// # Errors
/// As of [`open_model`] and [`open_config`].
pub fn open(source: Source) -> Result<Checkpoint> {
    match source {
        Source::Model(path) => open_model(path),
        Source::Synthetic(config) => open_config(config),
    }
}

/// Opens a Hugging Face folder or a GGUF file; which of the two is seen from the path itself. Tensors are mapped, not read.
///
/// # Errors
/// When it is neither, and when it is not a model that is supported.
pub fn open_model(path: &Path) -> Result<Checkpoint> {
    let file_kind = std::fs::metadata(path).map_err(CompileError::io(path))?;
    if file_kind.is_dir() {
        return huggingface::open(path);
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) || has_gguf_magic(path)? {
        return gguf::open(path);
    }
    Err(CompileError::malformed(
        path,
        "model is neither a folder with config.json and model.safetensors nor a GGUF file (magic GGUF)",
    ))
}

/// No weights: only the shape that the config.json at `path` describes, for random weights.
///
/// # Errors
/// As of [`open_model`] for the config.
pub fn open_config(path: &Path) -> Result<Checkpoint> {
    huggingface::of_config(path)
}

fn has_gguf_magic(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    File::open(path)
        .map_err(CompileError::io(path))?
        .take(4)
        .read_to_end(&mut start)
        .map_err(CompileError::io(path))?;
    Ok(start == b"GGUF")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_model_says_what_was_expected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let message = open_model(file.path()).err().unwrap().to_string();
        assert!(message.contains("neither a folder with config.json"), "{message}");
    }
}
