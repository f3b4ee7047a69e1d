//! Programs and libraries of other registries with which tests compare or use ours.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for PYTHONPATH with `packages` of PyPI, each with its version, and what they need. It is a folder of `cache`, where the next
/// run finds it.
///
/// # Errors
/// When Python, pip or the registry of packages is missing.
pub fn of_pypi(cache: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    installed(cache, packages, |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target"]);
        pip.arg(folder);
        pip
    })
}

/// A folder whose `node_modules` has `packages` of npm, as [`of_pypi`] has them. Their scripts do not run.
///
/// # Errors
/// When npm or the registry of packages is missing.
pub fn of_npm(cache: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    installed(cache, packages, |folder| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(folder);
        npm
    })
}

/// The folder for `packages`, which the installer fills that `installer` returns for it, if it is not there.
fn installed(cache: &Path, packages: &[&str], installer: impl FnOnce(&Path) -> Command) -> Result<PathBuf, String> {
    // Names of npm have an owner before a slash.
    let folder = cache.join(packages.join("-").replace('/', "+"));
    if folder.exists() {
        return Ok(folder);
    }
    // Under another name until it is whole; another process may install it at the same time.
    let unfinished = tempfile::tempdir_in(cache).map_err(|error| error.to_string())?;
    let mut installer = installer(unfinished.path());
    let output = installer
        .args(packages)
        .output()
        .map_err(|error| format!("{} cannot be started: {error}", installer.get_program().display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    match std::fs::rename(unfinished.path(), &folder) {
        Err(error) if !folder.exists() => Err(error.to_string()),
        _ => Ok(folder),
    }
}
