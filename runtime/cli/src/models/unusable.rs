//! Paths that are not a model, or not of the kind that a command accepts: what was given, what it is, and what to type instead.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use strsim::osa_distance;
use unicorn_compiler::{CompileError, InputKind, NotAModel, input_kind};
use unicorn_terminal::{
    artifact_of, compile, download_part, folder_of, pull, quoted, quoted_path, requantized, to_safetensors,
};

use crate::args::Args;
use crate::error::CliError;
use crate::explain::compile_error;
use crate::report::text::printable;

/// What a command takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// A model, compiled or not.
    Model,
    Artifact,
}

/// Checks that `path` may be a model that can be compiled. Its content is checked by the compile.
///
/// # Errors
/// When nothing is there, or a file that is not a model.
pub fn check_is_model(path: &Path) -> Result<(), CliError> {
    let InputKind::NotAModel(found) = input_kind(path).map_err(|error| in_words(&error))? else { return Ok(()) };
    match found {
        NotAModel::Missing => Err(missing(path, "an artifact, a GGUF file or a Hugging Face folder")),
        NotAModel::Unknown { start } => Err(CliError::new(format!(
            "{} is not a Unicorn artifact, nor a GGUF file or a Hugging Face folder: it begins with \"{}\"",
            path.display(),
            start.escape_ascii()
        ))),
        found => Err(in_words(&CompileError::NotAModel { path: path.to_owned(), found })),
    }
}

/// Checks that `path` is an artifact, for a command that does not compile.
///
/// # Errors
/// When it is something else.
pub fn check_is_artifact(path: &Path) -> Result<(), CliError> {
    match unicorn_compiler::check_is_artifact(path) {
        Err(CompileError::NotAnArtifact { found: InputKind::NotAModel(NotAModel::Missing), .. }) => {
            Err(missing(path, "an artifact"))
        }
        checked => checked.map_err(|error| in_words(&error)),
    }
}

/// An error of the compiler, with what to type instead.
pub fn in_words(error: &CompileError) -> CliError {
    let next = match error {
        CompileError::NotAModel { path, found } => way_out(path, found, Wanted::Model),
        CompileError::NotAnArtifact { path, found: InputKind::NotAModel(found) } => {
            way_out(path, found, Wanted::Artifact)
        }
        CompileError::NotAnArtifact { path, .. } => Some(format!("compile it first: {}", compile(path))),
        CompileError::MissingPart { path, missing, .. } => {
            let download = download_part(path, missing);
            Some(format!("copy it there, or download it: {download}; then the same command again"))
        }
        CompileError::TensorType { path, .. } => Some(format!(
            "take a GGUF of one of these, or make one: {}; then: {}",
            requantized(path, REQUANTIZED),
            Wanted::Model.command(Path::new(REQUANTIZED))
        )),
        _ => None,
    };
    CliError::new(compile_error(error) + &next.map_or(String::new(), |next| format!("; {next}")))
}

/// The file that the command to requantise a model writes.
const REQUANTIZED: &str = "requantized.gguf";

impl Wanted {
    /// What to type for a model that is not compiled.
    fn command(self, model: &Path) -> String {
        match self {
            Wanted::Model => format!("unicorn-run {}", quoted_path(model)),
            Wanted::Artifact => compile(model),
        }
    }
}

/// How to get what is wanted from `path`, which is something else.
fn way_out(path: &Path, found: &NotAModel, wanted: Wanted) -> Option<String> {
    Some(match found {
        NotAModel::Adapter { .. } => {
            let merged = quoted(&artifact_of(path));
            let merge =
                format!("compile its model with it: unicorn-compile MODEL --lora {} -o {merged}", quoted_path(path));
            match wanted {
                Wanted::Model => format!("{merge}, then: unicorn-run {merged}"),
                Wanted::Artifact => merge,
            }
        }
        NotAModel::PyTorch => {
            let folder = if path.is_file() { folder_of(path) } else { path };
            format!("convert it: {}; then: {}", to_safetensors(folder), wanted.command(folder))
        }
        NotAModel::WeightsAlone => format!("such as: {}", wanted.command(folder_of(path))),
        NotAModel::SeveralGguf { files } => format!("such as: {}", wanted.command(&path.join(files.first()?))),
        NotAModel::HubName { name } if wanted == Wanted::Model => {
            format!("download and run it: unicorn-run hf:{}", quoted(name))
        }
        NotAModel::HubName { name } => format!("download and compile it: {}", pull(name)),
        _ => return None,
    })
}

/// Nothing is at `path`, which is no name on the hub.
fn missing(path: &Path, expected: &str) -> CliError {
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
    let nearby = models_beside(path);
    let nearby =
        if nearby.is_empty() { String::new() } else { format!("; in its folder: {}", printable(&nearby.join(", "))) };
    CliError::new(format!("{shown}: no such file or folder, expected {expected}{nearby}"))
}

/// The command that differs from the text by one letter; a long one may differ by two.
fn similar_command(text: &str) -> Option<String> {
    let may_differ = 1 + text.len() / 6;
    let commands = Args::command();
    let mut names = commands.get_subcommands().map(clap::Command::get_name);
    names.find(|name| text.len() > 2 && osa_distance(name, text) <= may_differ).map(str::to_owned)
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
