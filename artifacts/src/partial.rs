//! A file that is being written. Where the file system supports it, it has no name until it is whole, so that a killed process
//! leaves no file; elsewhere it has a temporary name.
//!
//! ```text
//! unnamed ── written, flushed ──► .unicorn-….partial ──► its own name, in place of an older file
//!                               (link)               (rename)
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, linkat};
use tempfile::NamedTempFile;

/// A file, private to this user, that may become `path` by [`into_place`]. Its own path is the temporary name that it has or
/// will have for a moment. If it is dropped, it is removed.
///
/// # Errors
/// When no file can be made in the folder of `path`.
pub fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = folder_of(path);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(".unicorn-").suffix(".partial");
    let unnamed = || builder.make_in(folder, |_| unnamed_in(folder));
    // Some file systems make files without a name and then cannot give them one: tried with an empty file before the work begins.
    match unnamed().and_then(|trial| give_name(&trial)) {
        Ok(()) => unnamed(),
        Err(_) => builder.tempfile_in(folder),
    }
}

/// The folder of a file of this path.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Path by which the file can be opened again, named or not.
///
/// # Errors
/// Errors of the file system.
pub fn readable_at(file: &NamedTempFile) -> io::Result<PathBuf> {
    Ok(if has_name(file)? { file.path().to_owned() } else { open_file(file) })
}

/// Renames the file to `path`.
///
/// # Errors
/// Errors of the file system; the file that was at `path` is then unchanged.
pub fn into_place(file: NamedTempFile, path: &Path) -> io::Result<()> {
    if !has_name(&file)? {
        give_name(&file)?;
    }
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Permission bits that the user's new files do not have. Reading them by `umask(2)` would change them for a moment.
pub fn umask() -> u32 {
    const USUAL: u32 = 0o022;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    value.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(USUAL)
}

fn unnamed_in(folder: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(folder)
}

/// A link cannot replace another file, as a rename can: so the temporary name comes first.
fn give_name(file: &NamedTempFile) -> io::Result<()> {
    Ok(linkat(CWD, open_file(file), CWD, file.path(), AtFlags::SYMLINK_FOLLOW)?)
}

fn has_name(file: &NamedTempFile) -> io::Result<bool> {
    Ok(file.as_file().metadata()?.nlink() > 0)
}

fn open_file(file: &NamedTempFile) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_file().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_file_has_no_name_before_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whole");
        std::fs::write(&path, "earlier").unwrap();
        let mut file = beside(&path).unwrap();
        file.write_all(b"later").unwrap();
        assert_eq!(std::fs::read(readable_at(&file).unwrap()).unwrap(), b"later");
        // Both kinds of file are correct; the file system of the temporary folder decides which one it is.
        assert_eq!(names(folder.path()).len(), if has_name(&file).unwrap() { 2 } else { 1 });
        into_place(file, &path).unwrap();
        assert_eq!((names(folder.path()), std::fs::read(&path).unwrap()), (vec!["whole".into()], b"later".to_vec()));
    }

    #[test]
    fn an_abandoned_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        drop(beside(&folder.path().join("never")).unwrap());
        assert!(names(folder.path()).is_empty());
        assert!(beside(&folder.path().join("missing/never")).is_err());
    }
}
