//! Why a compile stops: the stage, what went wrong, what was expected, what was found, and where.

use std::fmt;
use std::path::{Path, PathBuf};

use unicorn_artifact::Tier;
use unicorn_artifact::account::size;
use unicorn_artifact::machine::MachineError;
use unicorn_artifact::printable::printable;
use unicorn_kernels::KvFormat;

use crate::format_policy::FormatPolicy;

/// Every reason why a compile can fail. Messages lead with the noun that went wrong and end without a full stop; none names an option
/// of a command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder that was read or written.
        path: PathBuf,
        /// The system's message.
        source: std::io::Error,
    },
    /// No file can be made where the output should be.
    #[error("{}: file cannot be written: {source}", path.display())]
    Unwritable {
        /// The output.
        path: PathBuf,
        /// The system's message.
        source: std::io::Error,
    },
    /// The output would replace a file of another kind.
    #[error("{}: file exists and is no artifact, expected a new name or an artifact to replace", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The disk has less space than the artifact needs.
    #[error(
        "{}: disk is too full, artifact needs about {}, found {} free; {} are missing",
        path.display(), size(*needed_bytes), size(*free_bytes), size(needed_bytes - free_bytes)
    )]
    DiskFull {
        /// The file that would have been written.
        path: PathBuf,
        /// Its predicted length.
        needed_bytes: u64,
        /// Less than `needed_bytes`.
        free_bytes: u64,
    },
    /// A file does not contain what its name stands for: cut, wrong header, bad JSON.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what was expected.
        what: String,
    },
    /// A part of an artifact is not what this compiler makes from its metadata, or from the model.
    #[error("{}: {what}", path.display())]
    Differs {
        /// The artifact.
        path: PathBuf,
        /// The part, what was expected and what was found.
        what: String,
        /// The version of the compiler that made it, where that is another one.
        other_version: Option<String>,
    },
    /// The input is not a model.
    #[error("{}: {found}", path.display())]
    NotAModel {
        /// Path of the input.
        path: PathBuf,
        /// Kind of the input.
        found: NotAModel,
    },
    /// The input is not an artifact.
    #[error("{} {found}, expected an artifact", path.display())]
    NotAnArtifact {
        /// Path of the input.
        path: PathBuf,
        /// Kind of the input.
        found: InputKind,
    },
    /// A GGUF file is one part of a model, and another part is not in its folder.
    #[error("{}: file is one of {parts} parts of a model, {missing} is missing beside it", path.display())]
    MissingPart {
        /// The file.
        path: PathBuf,
        /// Number of all parts.
        parts: usize,
        /// Name of the first part that is missing.
        missing: String,
    },
    /// A GGUF file has tensors of a type that is not read.
    #[error("{}: tensor {tensor} has GGUF type {found}, supported are: {supported}", path.display())]
    TensorType {
        /// The file.
        path: PathBuf,
        /// Its first tensor of such a type.
        tensor: String,
        /// ggml's name of the type.
        found: String,
        /// All that are read, separated by commas.
        supported: &'static str,
    },
    /// The model's architecture is unknown.
    #[error("architecture {} is not supported; supported are:{}", printable(found), indented_lines(supported))]
    UnsupportedArchitecture {
        /// The model's name for it. The message has lines, so control characters of the name are escaped in it.
        found: String,
        /// All that are known.
        supported: Vec<&'static str>,
    },
    /// A known architecture requires something that is not supported.
    #[error("{what} is not supported: {detail}")]
    Unsupported {
        /// What it requires.
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
    /// A tensor has another size than the config requires.
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
        /// What it needs, what there is, and each remedy with what it saves.
        what: String,
        /// Remedies of which each is enough alone.
        remedies: Vec<Remedy>,
    },
    /// The weights packed for an NPU have a layout that this version does not use. What the NPU has in the artifact can be taken out.
    #[error("{}: NPU weights have a layout that this version of the compiler does not use; compile the model again", path.display())]
    OtherNpuWeights {
        /// The artifact.
        path: PathBuf,
    },
    /// This build of the compiler cannot write NPU programs as MLIR.
    #[error("compiler was built without MLIR of NPU programs, expected the feature npu of unicorn-compiler")]
    NoMlir,
    /// A kernel needs more than a target has.
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

/// What an input is, by its name and its first bytes. `Display` continues a sentence that begins with its path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputKind {
    /// A folder, of a model of Hugging Face if anything.
    Folder {
        /// Whether it has a config.json, as such a model has.
        has_config: bool,
    },
    /// A GGUF file.
    Gguf {
        /// The file.
        file: PathBuf,
        /// Whether it is alone in the folder that was given.
        in_folder: bool,
    },
    /// Neither.
    NotAModel(NotAModel),
}

impl fmt::Display for InputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputKind::Folder { has_config: true } => write!(f, "is a Hugging Face folder"),
            InputKind::Folder { has_config: false } => write!(f, "is a folder"),
            InputKind::Gguf { in_folder: false, .. } => write!(f, "is a GGUF file"),
            InputKind::Gguf { in_folder: true, .. } => write!(f, "is a folder with a GGUF file"),
            InputKind::NotAModel(found) => match found {
                NotAModel::Artifact => write!(f, "is an artifact"),
                NotAModel::Adapter { .. } => write!(f, "is a LoRA adapter"),
                NotAModel::PyTorch => write!(f, "is a PyTorch checkpoint"),
                NotAModel::WeightsAlone => write!(f, "is a file of weights alone"),
                NotAModel::SeveralGguf { files } => write!(f, "is a folder with {} models", files.len()),
                NotAModel::HubName { .. } => write!(f, "is no file here, it reads like a model's name on Hugging Face"),
                NotAModel::Missing => write!(f, "does not exist"),
                NotAModel::Special => write!(f, "is not a regular file"),
                NotAModel::Unknown { start } if start.is_empty() => write!(f, "is empty"),
                NotAModel::Unknown { start } => write!(f, "is no model, it begins with \"{}\"", start.escape_ascii()),
            },
        }
    }
}

/// Inputs to a compile that are not models.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAModel {
    /// An artifact.
    #[error("file is an artifact, which is compiled already")]
    Artifact,
    /// A LoRA folder: what it adds to another model.
    #[error("folder is a LoRA adapter{}, expected a whole model", base.as_ref().map_or(String::new(), |base| format!(" of {base}")))]
    Adapter {
        /// The model that it changes, as it is named there.
        base: Option<String>,
    },
    /// Weights as PyTorch saves them, which are programs to be run.
    #[error("weights are a PyTorch checkpoint, expected safetensors or GGUF")]
    PyTorch,
    /// A safetensors file without the files beside it.
    #[error("file has weights alone, expected the folder with config.json that it lies in")]
    WeightsAlone,
    /// A folder with several models.
    #[error("folder has {} models, expected one of {}", files.len(), files.join(", "))]
    SeveralGguf {
        /// Their names; of a split model, the first part.
        files: Vec<String>,
    },
    /// Nothing on this machine; it reads like the name of a model on Hugging Face.
    #[error(
        "no such file or folder; it reads like a model's name on Hugging Face, expected a folder or a file on this machine"
    )]
    HubName {
        /// Its owner and name, such as `owner/name`; a revision and the part of a file's name may follow.
        name: String,
    },
    /// Nothing on this machine.
    #[error("no such file or folder, expected a Hugging Face folder or a GGUF file")]
    Missing,
    /// A device, a pipe or a socket.
    #[error("not a regular file or a folder, expected a Hugging Face folder or a GGUF file")]
    Special,
    /// None of these.
    #[error(
        "file is neither a folder with config.json and model.safetensors nor a GGUF file (magic GGUF){}",
        beginning(start)
    )]
    Unknown {
        /// Its first bytes.
        start: Vec<u8>,
    },
}

/// The end of a message on a file that begins with these bytes.
fn beginning(start: &[u8]) -> String {
    if start.is_empty() { "; it is empty".into() } else { format!("; it begins with \"{}\"", start.escape_ascii()) }
}

/// A change that would make a model fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Plan for a context of this number of tokens.
    Context(u32),
    /// Keep the KV cache in this format.
    Kv(KvFormat),
    /// Keep the weights in these formats.
    Weights(FormatPolicy),
    /// Leave an NPU out, and what it has in system memory.
    NoNpu,
    /// Give a tier this number of bytes.
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

    /// An error of an artifact, as that of the draft in it.
    pub(crate) fn of_draft(self) -> CompileError {
        let named = |what: String| format!("draft in the artifact: {what}");
        match self {
            CompileError::DoesNotFit { what, remedies } => CompileError::DoesNotFit { what: named(what), remedies },
            CompileError::Differs { path, what, other_version } => {
                CompileError::Differs { path, what: named(what), other_version }
            }
            CompileError::Malformed { path, what } => CompileError::Malformed { path, what: named(what) },
            other => other,
        }
    }

    pub(crate) fn malformed(path: &Path, what: impl Into<String>) -> CompileError {
        CompileError::Malformed { path: path.to_owned(), what: what.into() }
    }
}

/// Columns of the longest line of names.
const LIST_COLUMNS: usize = 100;

/// `names` separated by commas, on indented lines of their own of at most [`LIST_COLUMNS`] columns. Names are ASCII.
fn indented_lines(names: &[&str]) -> String {
    let mut lines = String::new();
    let mut column = LIST_COLUMNS;
    for (index, name) in names.iter().enumerate() {
        let comma = if index + 1 < names.len() { "," } else { "" };
        // The space before the name, the name and its comma.
        let width = 1 + name.len() + comma.len();
        if column + width > LIST_COLUMNS {
            lines += "\n ";
            column = 1;
        }
        lines += &format!(" {name}{comma}");
        column += width;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_on_lines_of_at_most_100_columns() {
        // The first line: an indent of 2, 48 letters, a comma, a space, 47 letters, a comma.
        let names = ["a".repeat(48), "b".repeat(47), "c".repeat(3)];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let expected = format!("\n  {}, {},\n  ccc", names[0], names[1]);
        assert_eq!(indented_lines(&names), expected);
        assert_eq!(expected.lines().map(str::len).max(), Some(100));
    }

    #[test]
    fn a_name_begins_no_line_of_an_error() {
        let error = CompileError::UnsupportedArchitecture { found: "a\nerror: b".to_owned(), supported: vec!["llama"] };
        assert_eq!(error.to_string(), "architecture a\\nerror: b is not supported; supported are:\n  llama");
    }
}
