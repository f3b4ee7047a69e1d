//! Output files: checked before the work starts, and written whole or not at all.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;
use unicorn_artifact::view::is_artifact;

use crate::error::CliError;

/// Checks that writing `what` (a page, a trace, logits) to `path` destroys neither an artifact nor one of `inputs`.
///
/// # Errors
/// When it would, or when there is no such folder.
pub fn check_output(path: &Path, what: &str, inputs: &[&Path]) -> Result<(), CliError> {
    if is_artifact(path) {
        return Err(CliError::at(path, format!("file is an artifact, expected a name for {what}")));
    }
    let found = fs::canonicalize(path).ok();
    if found.is_some() && inputs.iter().any(|input| fs::canonicalize(input).ok() == found) {
        return Err(CliError::at(path, format!("file is read by this command, expected another name for {what}")));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(CliError::at(path, format!("{} is not a folder", folder.display()))),
        Err(error) => Err(CliError::at(path, error)),
    }
}

/// Checks the same for a file that will be renamed to `path`: a device or a pipe would be replaced.
///
/// # Errors
/// Errors of [`check_output`], and when `path` is not a regular file.
pub fn check_replaced(path: &Path, what: &str, inputs: &[&Path]) -> Result<(), CliError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(CliError::at(path, format!("not a regular file, expected a name for {what}")));
    }
    check_output(path, what, inputs)
}

/// Checks that `what`, an artifact, can be renamed to `path`: only an artifact may be replaced.
///
/// # Errors
/// When something else is there, or when there is no such folder.
pub fn check_kept(path: &Path, what: &str) -> Result<(), CliError> {
    match fs::metadata(path) {
        Ok(_) if is_artifact(path) => Ok(()),
        Ok(_) => Err(CliError::at(path, format!("file exists and is no artifact, expected a new name for {what}"))),
        Err(_) => check_output(path, what, &[]),
    }
}

/// Writes `text` to `path`: all of it, or nothing if that fails.
///
/// # Errors
/// Errors of the file system.
pub fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    let named = match fs::metadata(path) {
        // A device or a pipe can only be written to.
        Ok(found) if !found.is_file() => fs::write(path, text),
        _ => {
            // A link stays a link: its target is replaced.
            let path = fs::canonicalize(path).unwrap_or(path.to_owned());
            partial_beside(&path).and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.persist(path).map(drop).map_err(|error| error.error)
            })
        }
    };
    named.map_err(|error| CliError::at(path, error))
}

/// A temporary file in the folder of `path`, with the permissions of any new file of the user.
pub fn partial_beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}
