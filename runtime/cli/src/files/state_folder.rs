//! The user's folder for what this program keeps from one start to the next.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use crate::error::CliError;

/// `unicorn` in $XDG_STATE_HOME or else in ~/.local/state, made for this user only. A relative path is ignored, as the XDG
/// specification requires.
///
/// # Errors
/// When there is no such folder, or it cannot be made.
pub fn create() -> Result<PathBuf, CliError> {
    let absolute = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let states = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let folder = states.ok_or_else(|| CliError::new("no folder for it: set HOME or XDG_STATE_HOME"))?.join("unicorn");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| CliError::at(&folder, error))?;
    Ok(folder)
}
