//! What the path that somebody gives leads to, by its name and its first bytes: a model, an artifact, or neither.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use unicorn_artifact::MappedFile;
use unicorn_artifact::view::is_artifact;

use super::gguf;
use crate::error::{CompileError, InputKind, NotAModel, Result};

/// Kind of the file or folder at `path`. Whether a model is sound, and of a family that is supported, is not checked.
///
/// # Errors
/// When it cannot be read.
pub fn input_kind(path: &Path) -> Result<InputKind> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let name = hub_name(path).map(|name| NotAModel::HubName { name });
            return Ok(InputKind::NotAModel(name.unwrap_or(NotAModel::Missing)));
        }
        Err(error) => return Err(CompileError::io(path)(error)),
    };
    if found.is_dir() {
        return folder(path);
    }
    if !found.is_file() {
        return Ok(InputKind::NotAModel(NotAModel::Special));
    }
    let start = start_of(path)?;
    // A zip archive, or a pickle of an older version.
    let is_pytorch = start.starts_with(b"PK") || start.starts_with(b"\x80");
    Ok(match () {
        () if ending(path) == "gguf" || start.starts_with(b"GGUF") => {
            InputKind::Gguf { file: path.to_owned(), in_folder: false }
        }
        () if is_artifact(path) => InputKind::NotAModel(NotAModel::Artifact),
        () if ending(path) == "safetensors" => InputKind::NotAModel(NotAModel::WeightsAlone),
        () if is_pickle(path) && is_pytorch => InputKind::NotAModel(NotAModel::PyTorch),
        () => InputKind::NotAModel(NotAModel::Unknown { start }),
    })
}

/// Checks that `path` begins as an artifact does.
///
/// # Errors
/// [`CompileError::NotAnArtifact`] when it is something else.
pub fn check_is_artifact(path: &Path) -> Result<()> {
    match is_artifact(path) {
        true => Ok(()),
        false => Err(CompileError::NotAnArtifact { path: path.to_owned(), found: input_kind(path)? }),
    }
}

/// The artifact at `path`, mapped.
///
/// # Errors
/// Errors of [`check_is_artifact`], and of the file system.
pub fn map_artifact(path: &Path) -> Result<MappedFile> {
    check_is_artifact(path)?;
    MappedFile::open(path).map_err(CompileError::io(path))
}

/// The importer names what is missing in a folder of safetensors.
fn folder(path: &Path) -> Result<InputKind> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(CompileError::io(path))? {
        files.push(entry.map_err(CompileError::io(path))?.path());
    }
    files.sort();
    let named = |name: &str| files.iter().find(|file| file.file_name().is_some_and(|found| found == name));
    let hugging_face = InputKind::Folder { has_config: named("config.json").is_some() };
    if files.iter().any(|file| ending(file) == "safetensors") {
        let adapter = named("adapter_config.json").filter(|_| named("config.json").is_none());
        return Ok(adapter.map_or(hugging_face, |config| InputKind::NotAModel(adapter_of(config))));
    }
    let models: Vec<&PathBuf> = files.iter().filter(|file| is_gguf_model(file)).collect();
    Ok(match models[..] {
        [only] => InputKind::Gguf { file: only.clone(), in_folder: true },
        [_, _, ..] => {
            let name = |file: &&PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            InputKind::NotAModel(NotAModel::SeveralGguf { files: models.iter().map(name).collect() })
        }
        [] => match named("adapter_config.json") {
            Some(config) if named("config.json").is_none() => InputKind::NotAModel(adapter_of(config)),
            _ if files.iter().any(|file| is_pickle(file)) => InputKind::NotAModel(NotAModel::PyTorch),
            _ => hugging_face,
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

/// `owner/name`, as models are called on Hugging Face, also behind `hf:`, with which a name has a revision or the part of a file's name
/// where there is one. The name of a file of a model that is not there is none.
fn hub_name(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    if let Some(name) = text.strip_prefix("hf:") {
        return name.contains('/').then(|| name.to_owned());
    }
    let is_word = |word: &str| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        word.chars().all(letters) && word.starts_with(|letter: char| letter.is_ascii_alphanumeric())
    };
    let (owner, name) = text.split_once('/')?;
    let is_file = ["gguf", "safetensors", "unicorn"].contains(&&*ending(path));
    (is_word(owner) && is_word(name) && !is_file && !Path::new(owner).exists()).then(|| text.to_owned())
}

/// By its name: PyTorch's own format.
fn is_pickle(file: &Path) -> bool {
    ["bin", "pt", "pth", "ckpt"].contains(&&*ending(file))
}

/// In lower case, without the dot.
fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

/// As many bytes as an error can show.
fn start_of(path: &Path) -> Result<Vec<u8>> {
    const SHOWN_BYTES: u64 = 8;
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SHOWN_BYTES).read_to_end(&mut start));
    read.map_err(CompileError::io(path))?;
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &Path) -> NotAModel {
        match input_kind(path).unwrap() {
            InputKind::NotAModel(found) => found,
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
        assert_eq!(found(&folder.join("config.json")), NotAModel::Unknown { start: b"{}".into() });
        for (path, name) in [
            ("owner/name-1.5B", "owner/name-1.5B"),
            ("hf:owner/name", "owner/name"),
            ("hf:owner/name@main:Q8_0", "owner/name@main:Q8_0"),
        ] {
            assert_eq!(found(Path::new(path)), NotAModel::HubName { name: name.into() });
        }
        for path in ["name", "./owner/name", "../name", "owner/name/more", "~/name", "owner/m.gguf", "hf:name"] {
            assert_eq!(found(Path::new(path)), NotAModel::Missing, "{path}");
        }
    }

    #[test]
    fn what_is_no_artifact_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("m.gguf"), b"GGUF").unwrap();
        std::fs::write(path("notes.txt"), b"Dear diary").unwrap();
        std::fs::write(path("empty"), b"").unwrap();
        let refused = |name: &str| {
            let message = check_is_artifact(&path(name)).unwrap_err().to_string();
            message.replace(&path(name).display().to_string(), "it")
        };
        assert_eq!(refused("m.gguf"), "it is a GGUF file, expected an artifact");
        assert_eq!(refused(""), "it is a folder with a GGUF file, expected an artifact");
        assert_eq!(refused("notes.txt"), "it is no model, it begins with \"Dear dia\", expected an artifact");
        assert_eq!(refused("empty"), "it is empty, expected an artifact");
        assert_eq!(refused("nothing"), "it does not exist, expected an artifact");
        std::fs::remove_file(path("m.gguf")).unwrap();
        assert_eq!(refused(""), "it is a folder, expected an artifact");
        std::fs::write(path("config.json"), b"{}").unwrap();
        assert_eq!(refused(""), "it is a Hugging Face folder, expected an artifact");
    }
}
