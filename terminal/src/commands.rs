//! Commands to type next: words of a shell, and commands of other programs that make a model of what was given.

use std::path::Path;

/// `text` as one word of a shell's command.
pub fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%=".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// A path as one word of a shell's command.
pub fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Converts the PyTorch checkpoint in `folder` to safetensors, in the same folder.
pub fn to_safetensors(folder: &Path) -> String {
    let folder = python(folder);
    format!(
        "python -c \"from transformers import AutoModelForCausalLM as M; \
         M.from_pretrained({folder}).save_pretrained({folder}, safe_serialization=True)\""
    )
}

/// Makes `output`, whose number formats are read, of a GGUF file whose are not.
pub fn requantized(gguf: &Path, output: &str) -> String {
    format!("llama-quantize --allow-requantize {} {output} Q8_0", quoted_path(gguf))
}

/// Fetches a part of a model that is missing beside the part at `path`.
pub fn download_part(path: &Path, missing: &str) -> String {
    format!("hf download OWNER/NAME {} --local-dir {}", quoted(missing), quoted_path(folder_of(path)))
}

/// Compiles `model`, into an artifact of its name in the current folder.
pub fn compile(model: &Path) -> String {
    format!("unicorn-compile {} -o {}", quoted_path(model), quoted(&artifact_of(model)))
}

/// Fetches and compiles a model of the hub: `name` is `OWNER/NAME`, behind which a revision and a part of a file's name may stand.
pub fn pull(name: &str) -> String {
    let own = name.rsplit('/').next().and_then(|own| own.split(['@', ':']).next()).unwrap_or(name);
    format!("unicorn-run pull hf:{} -o {}", quoted(name), quoted(&artifact_of(Path::new(own))))
}

/// Name of an artifact of the model at `path`: `m.gguf`, `org/m` → `m.unicorn`.
pub fn artifact_of(path: &Path) -> String {
    // The last part of a path such as `.` is not a name; a point in a folder's name begins no extension.
    let name = path.file_name().map_or("model".into(), |name| name.to_string_lossy());
    format!("{}.unicorn", name.strip_suffix(".gguf").unwrap_or(&name))
}

/// Folder of a file, as it is typed.
pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
    escaped + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_word_of_a_shell() {
        assert_eq!(quoted("models/a-1.5B_q4.gguf"), "models/a-1.5B_q4.gguf");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
        assert_eq!(python(Path::new("it's $HOME")), r"'it\\x27s \\x24HOME'");
    }

    #[test]
    fn an_artifact_has_the_name_of_its_model() {
        let compiled = |model: &str| compile(Path::new(model));
        assert_eq!(compiled("models/m-1.5B.gguf"), "unicorn-compile models/m-1.5B.gguf -o m-1.5B.unicorn");
        assert_eq!(compiled("org/SmolLM2-1.7B"), "unicorn-compile org/SmolLM2-1.7B -o SmolLM2-1.7B.unicorn");
        assert_eq!(compiled("."), "unicorn-compile . -o model.unicorn");
        assert_eq!(pull("org/m-GGUF@main:Q8_0"), "unicorn-run pull hf:org/m-GGUF@main:Q8_0 -o m-GGUF.unicorn");
    }
}
