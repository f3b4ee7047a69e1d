//! Which importer opens a model, and errors for inputs that are not models.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use unicorn_artifact::view::is_artifact;

use super::checkpoint::Checkpoint;
use super::{gguf, huggingface};
use crate::Source;
use crate::error::{CompileError, NotAModel, Result};

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
    let not_a_model = |found| Err(CompileError::NotAModel { path: path.into(), found });
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && is_hub_name(path) => not_a_model(NotAModel::HubName),
        Err(error) if error.kind() == ErrorKind::NotFound => not_a_model(NotAModel::Missing),
        Err(error) => Err(CompileError::io(path)(error)),
        Ok(found) if found.is_dir() => match folder(path)? {
            Folder::HuggingFace => huggingface::open(path),
            Folder::Gguf(file) => gguf::open(&file),
            Folder::Other(found) => not_a_model(found),
        },
        Ok(_) if ending(path) == "gguf" || begins_with(path, b"GGUF")? => gguf::open(path),
        Ok(_) if is_artifact(path) => not_a_model(NotAModel::Artifact),
        Ok(_) if ending(path) == "safetensors" => not_a_model(NotAModel::WeightsAlone),
        // A zip archive, or a pickle of an older version.
        Ok(_) if is_pickle(path) && (begins_with(path, b"PK")? || begins_with(path, b"\x80")?) => {
            not_a_model(NotAModel::PyTorch)
        }
        Ok(_) => not_a_model(NotAModel::Unknown),
    }
}

/// Opens only the shape that the config.json at `path` describes, for random weights.
///
/// # Errors
/// Errors of [`open_model`] that concern the config.
pub fn open_config(path: &Path) -> Result<Checkpoint> {
    huggingface::of_config(path)
}

/// What a folder holds.
enum Folder {
    HuggingFace,
    Gguf(PathBuf),
    Other(NotAModel),
}

/// Its importer names what is missing in a folder of safetensors.
fn folder(path: &Path) -> Result<Folder> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(CompileError::io(path))? {
        files.push(entry.map_err(CompileError::io(path))?.path());
    }
    files.sort();
    let named = |name: &str| files.iter().find(|file| file.file_name().is_some_and(|found| found == name));
    if files.iter().any(|file| ending(file) == "safetensors") {
        let adapter = named("adapter_config.json").filter(|_| named("config.json").is_none());
        return Ok(adapter.map_or(Folder::HuggingFace, |config| Folder::Other(adapter_of(config))));
    }
    let models: Vec<&PathBuf> = files.iter().filter(|file| is_gguf_model(file)).collect();
    Ok(match models[..] {
        [only] => Folder::Gguf(only.clone()),
        [_, _, ..] => {
            let name = |file: &&PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Folder::Other(NotAModel::SeveralGguf { files: models.iter().map(name).collect() })
        }
        [] => match named("adapter_config.json") {
            Some(config) if named("config.json").is_none() => Folder::Other(adapter_of(config)),
            _ if files.iter().any(|file| is_pickle(file)) => Folder::Other(NotAModel::PyTorch),
            _ => Folder::HuggingFace,
        },
    })
}

/// Whether the file is a model, or the first part of a split one; an image projector's file is not.
fn is_gguf_model(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    ending(file) == "gguf" && !stem.starts_with("mmproj") && gguf::part_of(&stem).is_none_or(|(_, part, _)| part == 1)
}

fn adapter_of(config: &Path) -> NotAModel {
    let config: Option<serde_json::Value> =
        std::fs::read(config).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let base = config.as_ref().and_then(|config| config.get("base_model_name_or_path")?.as_str());
    NotAModel::Adapter { base: base.map(str::to_owned) }
}

/// `owner/name`, as models are called on Hugging Face.
fn is_hub_name(path: &Path) -> bool {
    let is_word = |word: &str| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        word.chars().all(letters) && word.starts_with(|letter: char| letter.is_ascii_alphanumeric())
    };
    let words = path.to_str().and_then(|path| path.split_once('/'));
    words.is_some_and(|(owner, name)| is_word(owner) && is_word(name) && !Path::new(owner).exists())
}

/// By its name: PyTorch's own format.
fn is_pickle(file: &Path) -> bool {
    ["bin", "pt", "pth", "ckpt"].contains(&&*ending(file))
}

/// In lower case, without the dot.
fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

fn begins_with(path: &Path, magic: &[u8]) -> Result<bool> {
    let mut start = Vec::new();
    File::open(path)
        .map_err(CompileError::io(path))?
        .take(magic.len() as u64)
        .read_to_end(&mut start)
        .map_err(CompileError::io(path))?;
    Ok(start == magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &Path) -> NotAModel {
        match open_model(path).err() {
            Some(CompileError::NotAModel { found, .. }) => found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_model_is_called_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
        let remove = |name: &str| std::fs::remove_file(folder.join(name)).unwrap();
        write("adapter_config.json", br#"{ "base_model_name_or_path": "org/base" }"#);
        write("adapter_model.safetensors", b"");
        assert_eq!(found(folder), NotAModel::Adapter { base: Some("org/base".into()) });
        assert_eq!(found(&folder.join("adapter_model.safetensors")), NotAModel::WeightsAlone);
        remove("adapter_model.safetensors");
        write("adapter_model.bin", b"PK\x03\x04");
        assert_eq!(found(folder), NotAModel::Adapter { base: Some("org/base".into()) });
        remove("adapter_config.json");
        write("config.json", b"{}");
        assert_eq!(found(folder), NotAModel::PyTorch);
        assert_eq!(found(&folder.join("adapter_model.bin")), NotAModel::PyTorch);
        for name in ["b.gguf", "mmproj-b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"] {
            write(name, b"GGUF");
        }
        assert_eq!(
            found(folder),
            NotAModel::SeveralGguf { files: vec!["a-00001-of-00002.gguf".into(), "b.gguf".into()] }
        );
        assert_eq!(found(&folder.join("config.json")), NotAModel::Unknown);
        assert_eq!(found(Path::new("owner/name-1.5B")), NotAModel::HubName);
        for path in ["name", "./owner/name", "../name", "owner/name/more", "~/name"] {
            assert_eq!(found(Path::new(path)), NotAModel::Missing, "{path}");
        }
    }

    #[test]
    fn a_folder_with_one_gguf_is_that_model() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("model.gguf"), "GGUF, cut").unwrap();
        let message = open_model(folder.path()).err().unwrap().to_string();
        assert!(message.contains("model.gguf: "), "{message}");
    }
}
