//! Paths that are not a model, or not of the kind that a command accepts: what was given, what it is, and what to type instead.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use clap::CommandFactory;
use strsim::osa_distance;
use unicorn_artifact::view::is_artifact;
use unicorn_compiler::NotAModel;

use crate::args::Args;
use crate::error::CliError;
use crate::explain::quoted;
use crate::report::text::printable;

/// Checks that `path` may be a model that can be compiled. Its content is checked by the compile.
///
/// # Errors
/// When nothing is there, or a file that is not a model.
pub fn check_is_model(path: &Path) -> Result<(), CliError> {
    match Kind::of(path)? {
        Kind::Folder | Kind::Gguf => Ok(()),
        Kind::Tensors => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Err(CliError::new(format!(
                "{} holds tensors only, expected the folder that also has config.json and tokenizer.json: unicorn-run {}",
                path.display(),
                typed(folder)
            )))
        }
        Kind::PyTorch => Err(CliError::new(format!(
            "{} is a PyTorch checkpoint, expected an artifact, a GGUF file or a folder with safetensors; {TO_SAFETENSORS}",
            path.display()
        ))),
        Kind::Other(start) => Err(CliError::new(format!(
            "{} is not a Unicorn artifact, nor a GGUF file or a Hugging Face folder: it begins with \"{}\"",
            path.display(),
            start.escape_ascii()
        ))),
    }
}

/// How to get a model from `path`, which the compiler found to be something else.
pub fn way_out(path: &Path, found: &NotAModel) -> Option<String> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    Some(match found {
        NotAModel::Adapter { .. } => {
            let merged = quoted(&format!("{name}.unicorn"));
            format!(
                "compile its model with it: unicorn-compile MODEL --lora {} -o {merged}, then: unicorn-run {merged}",
                typed(path)
            )
        }
        NotAModel::PyTorch => TO_SAFETENSORS.into(),
        NotAModel::SeveralGguf { files } => format!("such as: unicorn-run {}", typed(&path.join(files.first()?))),
        _ => return None,
    })
}

const TO_SAFETENSORS: &str =
    "convert it with transformers: model.save_pretrained(FOLDER, safe_serialization=True), then: unicorn-run FOLDER";

/// Checks that `path` is an artifact, for a command that does not compile.
///
/// # Errors
/// When it is something else.
pub fn check_is_artifact(path: &Path) -> Result<(), CliError> {
    if is_artifact(path) {
        return Ok(());
    }
    check_is_model(path)?;
    let kind = if path.is_dir() { "a folder" } else { "a GGUF file" };
    let name = path.file_stem().map_or("model".into(), |stem| stem.to_string_lossy());
    let artifact = format!("{name}.unicorn");
    Err(CliError::new(format!(
        "{} is {kind}, expected an artifact; compile it first: unicorn-compile {} -o {}",
        path.display(),
        typed(path),
        quoted(&artifact)
    )))
}

/// What a path refers to that is not an artifact.
enum Kind {
    Folder,
    Gguf,
    /// Safetensors.
    Tensors,
    PyTorch,
    /// A file that begins with these bytes.
    Other(Vec<u8>),
}

impl Kind {
    fn of(path: &Path) -> Result<Kind, CliError> {
        let found = fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => missing(path),
            _ => CliError::at(path, error),
        })?;
        if found.is_dir() {
            return Ok(Kind::Folder);
        }
        if !found.is_file() {
            return Err(CliError::at(path, "not a regular file, expected a model"));
        }
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(8).read_to_end(&mut start));
        read.map_err(|error| CliError::at(path, error))?;
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        // torch.save writes a zip file, or earlier a pickle.
        let is_pytorch = start.starts_with(b"PK\x03\x04") || start.starts_with(b"\x80\x02");
        Ok(match extension {
            _ if start.starts_with(b"GGUF") => Kind::Gguf,
            "gguf" => Kind::Gguf,
            "safetensors" => Kind::Tensors,
            "bin" | "pt" | "pth" | "ckpt" if is_pytorch => Kind::PyTorch,
            _ => Kind::Other(start),
        })
    }
}

/// Nothing is at `path`.
fn missing(path: &Path) -> CliError {
    let shown = path.display();
    let text = path.to_string_lossy();
    if Args::command().find_subcommand(&*text).is_some() {
        return CliError::new(format!(
            "{shown} is a command, and there is no file of that name; options come after a command: unicorn-run {shown} …"
        ));
    }
    if let Some(command) = similar_command(&text) {
        return CliError::new(format!("{shown}: no such file or folder; did you mean the command {command}?"));
    }
    if is_hub_name(&text) {
        return CliError::new(format!(
            "{shown}: no such file or folder; if it is a model on the Hugging Face Hub, download and run it: unicorn-run hf:{text}"
        ));
    }
    let nearby = models_beside(path);
    let nearby =
        if nearby.is_empty() { String::new() } else { format!("; in its folder: {}", printable(&nearby.join(", "))) };
    CliError::new(format!(
        "{shown}: no such file or folder, expected an artifact, a GGUF file or a Hugging Face folder{nearby}"
    ))
}

/// The command that differs from the text by one letter; a long one may differ by two.
fn similar_command(text: &str) -> Option<String> {
    let may_differ = 1 + text.len() / 6;
    let commands = Args::command();
    let mut names = commands.get_subcommands().map(clap::Command::get_name);
    names.find(|name| text.len() > 2 && osa_distance(name, text) <= may_differ).map(str::to_owned)
}

/// Whether the text looks like `owner/name`, and not like a path.
fn is_hub_name(text: &str) -> bool {
    let Some((owner, name)) = text.split_once('/') else { return false };
    let is_part = |part: &str| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    let is_file = [".gguf", ".unicorn", ".safetensors"].iter().any(|ending| name.ends_with(ending));
    is_part(owner) && is_part(name) && !is_file && !Path::new(owner).exists()
}

/// Up to three names of models in the folder of `path`.
fn models_beside(path: &Path) -> Vec<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut models: Vec<String> =
        names.filter(|name| [".gguf", ".unicorn"].iter().any(|ending| name.ends_with(ending))).collect();
    models.sort();
    models.truncate(3);
    models
}

/// A path as one word of a shell command.
fn typed(path: &Path) -> String {
    quoted(&path.display().to_string())
}
