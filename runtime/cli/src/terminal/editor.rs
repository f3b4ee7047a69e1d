//! The user's editor, for a text.

use std::io::Write;
use std::process::Command;

use tempfile::Builder;

use crate::error::CliError;

/// Opens `text` in $VISUAL, $EDITOR or vi, and returns it as it was saved, without spaces around it.
///
/// # Errors
/// When the editor cannot be started or fails, which is how a user keeps the old text.
pub fn edit(text: &str) -> Result<String, CliError> {
    let failed = |error: std::io::Error| CliError::new(format!("text for the editor: {error}"));
    let mut file = Builder::new().prefix("unicorn-").suffix(".md").tempfile().map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.flush()).map_err(failed)?;
    let set = |variable: &str| std::env::var(variable).ok().filter(|editor| !editor.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    // Run by the shell, because the variable may contain options, too.
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{editor} \"$1\"")).arg("editor").arg(file.path());
    let status =
        command.status().map_err(|error| CliError::new(format!("editor {editor:?} does not start: {error}")))?;
    if !status.success() {
        return Err(CliError::new(format!("editor {editor:?} ended with {status}; set EDITOR to one that works")));
    }
    // Many editors write a new file of that name, which the open one is not.
    Ok(std::fs::read_to_string(file.path()).map_err(failed)?.trim().to_owned())
}
