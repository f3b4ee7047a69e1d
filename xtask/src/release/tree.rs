//! Files of a package before it is packed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Makes an empty folder.
///
/// # Errors
/// Errors of the file system.
pub fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("folder cannot be made: {}", folder.display()))
}

/// Writes a file that every user can read, and makes its folders.
///
/// # Errors
/// Errors of the file system.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    write_with(path, content, 0o644)
}

/// Writes a program, as [`write()`] does, which every user can run.
///
/// # Errors
/// Errors of the file system.
pub fn write_program(path: &Path, content: &[u8]) -> Result<()> {
    write_with(path, content, 0o755)
}

/// Copies a file to a path that is written as by [`write()`].
///
/// # Errors
/// Errors of the file system.
pub fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    write(to, &read(from)?)?;
    Ok(to.to_owned())
}

/// Reads a file.
///
/// # Errors
/// Errors of the file system.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Files of a folder, by name.
///
/// # Errors
/// Errors of the file system.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn write_with(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let write = || {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(path, content)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
