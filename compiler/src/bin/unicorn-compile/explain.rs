//! Errors on the terminal: the library's message and the command to type next, which only the program knows.

use std::io;
use std::path::Path;

use unicorn_artifact::amount;
use unicorn_artifact::printable::{printable, printable_lines};
use unicorn_compiler::{CompileError, FormatPolicy, InputKind, NotAModel, Remedy};
use unicorn_terminal::{
    artifact_of, compile, download_part, folder_of, pull, quoted, quoted_path, requantized, to_safetensors,
};

/// The message, without a leading `error:`. Only lists of remedies and of architectures have several lines.
pub fn explain(error: &CompileError) -> String {
    let message = match error {
        CompileError::DoesNotFit { what, .. } => printable_lines(what),
        CompileError::UnsupportedArchitecture { .. } => printable_lines(&error.to_string()),
        other => printable(&other.to_string()).into_owned(),
    };
    match (next(error), error) {
        (Some(next), CompileError::DoesNotFit { .. }) => message + &next,
        (Some(next), _) => message + &printable(&next),
        (None, _) => message,
    }
}

/// The command to type next, with the text that joins it to the message.
fn next(error: &CompileError) -> Option<String> {
    match error {
        CompileError::Option { option, .. } => option_flag(option).map(|flag| format!(" ({flag})")),
        CompileError::DoesNotFit { remedies, .. } if !remedies.is_empty() => {
            let flags: Vec<String> = remedies.iter().map(remedy_flags).collect();
            Some(format!("\n  try {}", flags.join(" or ")))
        }
        CompileError::NotAModel { path, found } => next_model(path, found).map(|next| format!("; {next}")),
        CompileError::NotAnArtifact { path, found: InputKind::NotAModel(found) } => {
            next_model(path, found).map(|next| format!("; {next}"))
        }
        CompileError::NotAnArtifact { path, .. } => Some(format!("; compile it first: {}", compile(path))),
        CompileError::MissingPart { path, missing, .. } => Some(format!(
            "; copy it there, or download it: {}; then the same command again",
            download_part(path, missing)
        )),
        CompileError::TensorType { path, .. } => Some(format!(
            "; take a GGUF of one of these, or make one: {}; then: {}",
            requantized(path, REQUANTIZED),
            compile(Path::new(REQUANTIZED))
        )),
        CompileError::OtherNpuWeights { path } => {
            Some(format!(", or take the NPU's part out: unicorn-compile replan {} --no-npu", quoted_path(path)))
        }
        CompileError::NoMlir => Some(
            "; with LLVM and MLIR 19 installed (docs/npu.md lists the packages): cargo build --release -p unicorn-compiler \
             --features npu"
                .into(),
        ),
        CompileError::Exists { path } => {
            Some(format!("; replace it with --force, or write elsewhere: -o {}", quoted_path(&beside(path))))
        }
        CompileError::DiskFull { path, .. } => {
            let name = path.file_name().unwrap_or_default();
            Some(format!("; write to another disk: -o {}", quoted_path(&Path::new("/DISK").join(name))))
        }
        CompileError::Differs { other_version: Some(version), .. } => {
            let this = env!("CARGO_PKG_VERSION");
            Some(format!("; it was made by version {version}, this is {this}: verify it with that version"))
        }
        CompileError::Unwritable { path, source } if source.kind() == io::ErrorKind::NotFound => {
            path.parent().map(|folder| format!("; make its folder: mkdir -p {}", quoted_path(folder)))
        }
        CompileError::Unwritable { path, .. } => {
            let name = path.file_name().unwrap_or_default();
            Some(format!("; write where you may: -o ~/{}", quoted(&name.to_string_lossy())))
        }
        _ => None,
    }
}

fn option_flag(option: &str) -> Option<&'static str> {
    Some(match option {
        "group" => "--group",
        "targets" => "--target",
        "context_tokens" => "--context",
        "machine" => "--machine",
        "budget" => "--budget",
        "draft" => "--draft",
        "npu_for" => "--npu-for",
        "npu_control" => "--npu-control",
        "npu_peano" => "--npu-peano",
        _ => return None,
    })
}

fn remedy_flags(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Context(tokens) => format!("--context {tokens}"),
        Remedy::Kv(format) => format!("--kv {}", format.name()),
        Remedy::Weights(FormatPolicy { weights, group }) => format!("--weights {} --group {group}", weights.name()),
        Remedy::NoNpu => "--no-npu".into(),
        Remedy::Memory { tier, bytes } => format!("--budget {}={}", tier.name(), amount::at_least(*bytes)),
        other => format!("{other:?}"),
    }
}

/// The file that the command to requantise a model writes.
const REQUANTIZED: &str = "requantized.gguf";

/// The command that makes an artifact of what was given, which is no model; or runs it, if it is one.
fn next_model(path: &Path, found: &NotAModel) -> Option<String> {
    let given = quoted_path(path);
    Some(match found {
        NotAModel::Artifact => format!("run it: unicorn-run {given}"),
        NotAModel::HubName { name } => format!("fetch it, and compile it for this machine's device: {}", pull(name)),
        NotAModel::Adapter { .. } => {
            format!("compile its model with it: unicorn-compile MODEL --lora {given} -o {}", quoted(&artifact_of(path)))
        }
        NotAModel::PyTorch => {
            let folder = if path.is_file() { folder_of(path) } else { path };
            format!("convert it: {}; then: {}", to_safetensors(folder), compile(folder))
        }
        NotAModel::WeightsAlone => format!("compile that: {}", compile(folder_of(path))),
        NotAModel::SeveralGguf { files } => format!("such as: {}", compile(&path.join(files.first()?))),
        NotAModel::Missing => {
            let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
            format!(
                "see what is there: ls{}",
                folder.map_or(String::new(), |folder| format!(" {}", quoted_path(folder)))
            )
        }
        _ => return None,
    })
}

/// Another name in the same folder: `model.txt` → `model.txt.unicorn`.
fn beside(path: &Path) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".unicorn");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_name_are_escaped() {
        let what = "tensor \x1b[2J\nerror: none".into();
        let message = explain(&CompileError::Malformed { path: "a\x07b".into(), what });
        assert_eq!(message, "a\\u{7}b: tensor \\u{1b}[2J\\nerror: none");
    }
}
