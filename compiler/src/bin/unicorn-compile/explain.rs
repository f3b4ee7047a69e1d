//! Errors on the terminal: the library's message and the command to type next, which only the program knows.

use std::io;
use std::path::Path;

use unicorn_artifact::amount;
use unicorn_artifact::printable::{printable, printable_lines};
use unicorn_compiler::{CompileError, FormatPolicy, NotAModel, Remedy};

/// The message, without a leading `error:`. Only lists of remedies and of architectures have several lines.
pub fn explain(error: &CompileError) -> String {
    let message = match error {
        CompileError::DoesNotFit { what, .. } => printable_lines(what),
        CompileError::UnsupportedArchitecture { .. } => printable_lines(&error.to_string()),
        other => printable(&other.to_string()).into_owned(),
    };
    match next(error) {
        Some(next) => message + &next,
        None => message,
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
        CompileError::TensorType { path, .. } => Some(format!(
            "; take a GGUF of one of these, or make one: llama-quantize --allow-requantize {} requantized.gguf Q8_0",
            quoted(path)
        )),
        CompileError::OtherNpuWeights { path } => {
            Some(format!(", or take the NPU's part out: unicorn-compile replan {} --no-npu", quoted(path)))
        }
        CompileError::NoMlir => Some(
            "; with LLVM and MLIR 19 installed (docs/npu.md lists the packages): cargo build --release -p unicorn-compiler \
             --features npu"
                .into(),
        ),
        CompileError::Exists { path } => {
            Some(format!("; replace it with --force, or write elsewhere: -o {}", quoted(&beside(path))))
        }
        CompileError::DiskFull { path, .. } => {
            let name = path.file_name().unwrap_or_default();
            Some(format!("; write to another disk: -o {}", quoted(&Path::new("/DISK").join(name))))
        }
        CompileError::Differs { other_version: Some(version), .. } => {
            let this = env!("CARGO_PKG_VERSION");
            Some(format!("; it was made by version {version}, this is {this}: verify it with that version"))
        }
        CompileError::Unwritable { path, source } if source.kind() == io::ErrorKind::NotFound => {
            path.parent().map(|folder| format!("; make its folder: mkdir -p {}", quoted(folder)))
        }
        CompileError::Unwritable { path, .. } => {
            let name = path.file_name().unwrap_or_default();
            Some(format!("; write where you may: -o {}", quoted(&Path::new("~").join(name))))
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

/// The command that makes a model from what was given.
fn next_model(path: &Path, found: &NotAModel) -> Option<String> {
    let (given, name) = (quoted(path), path.file_name().unwrap_or_default().to_string_lossy());
    let out = |ending: &str| quoted(Path::new(&format!("{name}{ending}")));
    Some(match found {
        NotAModel::Artifact => format!("run it: unicorn-run {given}"),
        NotAModel::HubName => {
            format!(
                "fetch it: hf download {given} --local-dir {}; then: unicorn-compile {} -o {}",
                out(""),
                out(""),
                out(".unicorn")
            )
        }
        NotAModel::Adapter { .. } => {
            format!("compile its model with it: unicorn-compile MODEL --lora {given} -o {}", out(".unicorn"))
        }
        NotAModel::PyTorch => {
            let folder =
                if path.is_file() { path.parent().filter(|one| !one.as_os_str().is_empty()) } else { Some(path) };
            let folder = folder.unwrap_or(Path::new("."));
            format!(
                "convert it: python -c \"from transformers import AutoModelForCausalLM as M; \
                 M.from_pretrained({folder}).save_pretrained({folder}, safe_serialization=True)\"; then the same command \
                 again",
                folder = python(folder),
            )
        }
        NotAModel::WeightsAlone => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            format!("unicorn-compile {} -o {}", quoted(folder), quoted(&path.with_extension("unicorn")))
        }
        NotAModel::SeveralGguf { files } => {
            let first = path.join(files.first()?);
            format!("such as: unicorn-compile {} -o {}", quoted(&first), quoted(&first.with_extension("unicorn")))
        }
        NotAModel::Missing => {
            let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
            format!("see what is there: ls{}", folder.map_or(String::new(), |folder| format!(" {}", quoted(folder))))
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

/// Quoted so that a shell reads it as one word.
pub fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%=~".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    printable(&format!("'{}'", text.replace('\'', r"'\''"))).into_owned()
}

/// Quoted as a Python string within a shell's double quotes.
fn python(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut escaped = String::from("'");
    for letter in text.chars() {
        if "'\"\\$`".contains(letter) {
            escaped += &format!(r"\\x{:02x}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    printable(&(escaped + "'")).into_owned()
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

    #[test]
    fn names_are_one_word_of_a_shell() {
        assert_eq!(quoted(Path::new("models/a-1.5B_q4.gguf")), "models/a-1.5B_q4.gguf");
        assert_eq!(quoted(Path::new("my model's.gguf")), r"'my model'\''s.gguf'");
        assert_eq!(python(Path::new("it's $HOME")), r"'it\\x27s \\x24HOME'");
    }
}
