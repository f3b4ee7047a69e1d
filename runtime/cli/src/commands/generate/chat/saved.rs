//! Conversations that `/save` writes and `/load` reads: JSON files in the user's folder for state, for this user only.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use unicorn_text::Message;

use crate::error::CliError;
use crate::files::state_folder;

/// A saved conversation.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Name of the model that answered.
    pub model: String,
    pub system: Option<String>,
    pub messages: Vec<SavedMessage>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedMessage {
    role: String,
    content: String,
}

impl Saved {
    pub fn new(model: &str, system: Option<&str>, history: &[Message]) -> Saved {
        let messages =
            history.iter().map(|message| SavedMessage { role: message.role.clone(), content: message.text() });
        Saved { model: model.to_owned(), system: system.map(str::to_owned), messages: messages.collect() }
    }

    pub fn history(&self) -> Vec<Message> {
        self.messages.iter().map(|message| Message::new(&message.role, message.content.as_str())).collect()
    }
}

/// Writes a conversation, instead of one of the same name. Returns its file.
///
/// # Errors
/// For a name that is not a file name, and errors of the file system.
pub fn save(name: &str, saved: &Saved) -> Result<PathBuf, CliError> {
    let folder = folder()?;
    let path = path(&folder, name)?;
    let json = serde_json::to_string_pretty(saved).expect("conversations are plain data with text keys");
    write(&folder, &path, &json).map_err(|error| CliError::at(&path, error))?;
    Ok(path)
}

/// Whether a conversation is saved as `name`.
pub fn exists(name: &str) -> bool {
    folder().and_then(|folder| path(&folder, name)).is_ok_and(|path| path.is_file())
}

/// Reads a conversation.
///
/// # Errors
/// When there is none of that name; the error lists the existing names.
pub fn load(name: &str) -> Result<Saved, CliError> {
    let folder = folder()?;
    let path = path(&folder, name)?;
    let json = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let names = names()?;
            let known =
                if names.is_empty() { "none is saved".to_owned() } else { format!("found {}", names.join(", ")) };
            return Err(CliError::new(format!(
                "no conversation is saved as {name:?}: {known}; for a model, give its path"
            )));
        }
        read => read.map_err(|error| CliError::at(&path, error))?,
    };
    serde_json::from_slice(&json).map_err(|error| CliError::at(&path, format!("no saved conversation: {error}")))
}

/// Names of all saved conversations, in alphabetical order.
///
/// # Errors
/// Errors of the file system.
pub fn names() -> Result<Vec<String>, CliError> {
    let folder = folder()?;
    let files = std::fs::read_dir(&folder).map_err(|error| CliError::at(&folder, error))?;
    let name = |path: PathBuf| match path.extension()?.to_str()? {
        "json" => Some(path.file_stem()?.to_str()?.to_owned()),
        _ => None,
    };
    let mut names: Vec<String> = files.filter_map(|file| name(file.ok()?.path())).collect();
    names.sort();
    Ok(names)
}

fn folder() -> Result<PathBuf, CliError> {
    let folder = state_folder::create()?.join("chats");
    std::fs::create_dir_all(&folder).map_err(|error| CliError::at(&folder, error))?;
    Ok(folder)
}

fn path(folder: &Path, name: &str) -> Result<PathBuf, CliError> {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    if name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(CliError::new(format!(
            "name of a conversation: expected letters, digits, - and _, found {name:?}"
        )));
    }
    Ok(folder.join(format!("{name}.json")))
}

/// A file that is never half written, and that no other user may read, as for all temporary files.
fn write(folder: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_conversation_comes_back_as_it_was() {
        let history = [Message::new("user", "Hé\n\"you\""), Message::new("assistant", "Yes?")];
        let saved = Saved::new("tiny", Some("Be brief."), &history);
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), "islands").unwrap();
        write(folder.path(), &path, "an older one").unwrap();
        write(folder.path(), &path, &serde_json::to_string(&saved).unwrap()).unwrap();
        let read: Saved = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((&read, read.history()), (&saved, history.to_vec()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_name_stays_in_its_folder() {
        let folder = Path::new("chats");
        assert_eq!(path(folder, "v1.2").unwrap(), folder.join("v1.2.json"));
        for name in ["../islands", "a/b", ".hidden", "a b", "a\u{1b}[2J"] {
            assert!(path(folder, name).is_err(), "{name:?}");
        }
    }
}
