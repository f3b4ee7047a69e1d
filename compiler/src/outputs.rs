//! Checks of a compile's outputs before it begins: minutes of work should not end at a missing folder, and no output may replace
//! the model that it is made from.

use std::path::{Path, PathBuf};

use unicorn_artifact::ArtifactWriter;
use unicorn_artifact::view::is_artifact;

use crate::Source;
use crate::error::{CompileError, Result};
use crate::import::is_license_file;

/// Checks that an artifact can be written to `output`, without leaving anything there.
///
/// # Errors
/// When no file can be made in its folder, when its name belongs to something other than a file; errors of [`check_replaced`].
pub fn check_artifact(source: Source, output: &Path) -> Result<()> {
    check_replaced(source, output)?;
    ArtifactWriter::check(output).map_err(|source| CompileError::Unwritable { path: output.into(), source })
}

/// Checks that an artifact at `output` replaces at most another artifact, or an empty file: a mistyped name must not
/// overwrite another file. [`compile`](crate::compile) itself replaces any file but the model's.
///
/// # Errors
/// [`CompileError::Exists`].
pub fn check_kind(output: &Path) -> Result<()> {
    let is_other =
        std::fs::metadata(output).is_ok_and(|found| found.is_file() && found.len() > 0) && !is_artifact(output);
    if is_other { Err(CompileError::Exists { path: output.into() }) } else { Ok(()) }
}

/// Checks that `output`, whatever it will be, replaces no file of the model.
///
/// # Errors
/// When it would, naming both.
pub fn check_replaced(source: Source, output: &Path) -> Result<()> {
    let (Source::Model(model) | Source::Synthetic(model)) = source;
    // A link may be replaced itself, or what it leads to may be written over.
    let replaced = [place(output), std::fs::canonicalize(output).ok()];
    let of_model = replaced.iter().flatten().any(|replaced| {
        if model.is_dir() {
            let inside = replaced.parent().map(Path::to_owned) == std::fs::canonicalize(model).ok();
            inside && is_model_file(replaced) && replaced.exists() && !is_artifact(replaced)
        } else {
            [place(model), std::fs::canonicalize(model).ok()].iter().flatten().any(|model| model == replaced)
        }
    });
    match of_model {
        true => Err(in_the_way("file", output, model)),
        false => Ok(()),
    }
}

/// Checks that `folder` can hold an exported model.
///
/// # Errors
/// When it is a file, or the folder of the model itself, whose weights would be replaced.
pub fn check_export(model: &Path, folder: &Path) -> Result<()> {
    let Ok(found) = std::fs::canonicalize(folder) else { return Ok(()) };
    if !found.is_dir() {
        return Err(CompileError::malformed(folder, "not a folder, expected one to write the weights to"));
    }
    match std::fs::canonicalize(model).is_ok_and(|model| model == found) {
        true => Err(in_the_way("folder", folder, model)),
        false => Ok(()),
    }
}

/// Writes `text` to `path`, where nothing is left if that fails.
///
/// # Errors
/// Errors of the file system.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_bytes(path, text.as_bytes())
}

/// Writes any bytes, as [`write_text`] does.
///
/// # Errors
/// Errors of the file system.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    let named = match std::fs::metadata(path) {
        // A device or a pipe can only be written to.
        Ok(found) if !found.is_file() => std::fs::write(path, bytes),
        _ => unicorn_artifact::write::write_whole(path, bytes),
    };
    named.map_err(CompileError::io(path))
}

fn in_the_way(what: &str, output: &Path, model: &Path) -> CompileError {
    let same = format!("{what} belongs to the model {}, expected another name for the output", model.display());
    CompileError::malformed(output, same)
}

/// The real folder of `path` with the name in `path`: where a rename to `path` puts a file.
fn place(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(std::fs::canonicalize(folder).ok()?.join(path.file_name()?))
}

/// What `import` reads of a Hugging Face folder, by name.
fn is_model_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let weights = [".safetensors", ".safetensors.index.json", ".gguf"];
    let is_small = SMALL_MODEL_FILES.contains(&&*name) || is_license_file(&name);
    is_small || weights.iter().any(|ending| name.ends_with(ending))
}

const SMALL_MODEL_FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
];
