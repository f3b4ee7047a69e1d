//! Files and folders.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Entries of a folder, by name.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("folder cannot be read: {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The file itself, where `from` is a link.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("cannot be copied: {} to {}", from.display(), to.display()))?;
    Ok(())
}
