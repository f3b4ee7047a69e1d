//! Programs from PyPI with which tests compare ours.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for PYTHONPATH with `packages`, each with its version, and what they need. It is a folder of `cache`, where the next run finds it.
///
/// # Errors
/// When Python, pip or the registry of packages is missing.
pub fn installed(cache: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = cache.join(packages.join("-"));
    if folder.exists() {
        return Ok(folder);
    }
    // Under another name until it is whole; another process may install it at the same time.
    let unfinished = tempfile::tempdir_in(cache).map_err(|error| error.to_string())?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
    let output = pip.arg(unfinished.path()).args(packages).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    match std::fs::rename(unfinished.path(), &folder) {
        Err(error) if !folder.exists() => Err(error.to_string()),
        _ => Ok(folder),
    }
}
