//! The folder of compiled models in the user's cache.
//!
//! ```text
//! ~/.cache/unicorn/models/NAME.TARGET.PLACE.VERSION.unicorn
//! ```
//!
//! Artifacts appear whole, by a rename. One process at a time compiles into the folder: a lock on the folder itself, which ends with
//! the process, leaves no file behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use unicorn_artifact::ArtifactView;

use super::identity::Identity;
use crate::error::CliError;
use crate::files::tuning_file;

/// A place in the folder of compiled models.
#[derive(Debug)]
pub struct CachedModel {
    folder: PathBuf,
    /// Prefix of the names of all versions.
    prefix: String,
    path: PathBuf,
}

impl CachedModel {
    /// The place of the model called `name` with kernels for `target`.
    pub fn new(folder: PathBuf, name: &str, target: &str, identity: &Identity) -> CachedModel {
        let prefix = format!("{name}.{target}.{}.", identity.place);
        let path = folder.join(format!("{prefix}{}.unicorn", identity.version));
        CachedModel { folder, prefix, path }
    }

    /// Where the artifact is, or will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the artifact has a tokenizer; `None`: there is no artifact of the format that this program reads.
    pub fn has_tokenizer(&self) -> Option<bool> {
        let artifact = ArtifactView::read(&File::open(&self.path).ok()?).ok()?;
        Some(!artifact.tokenizer.tokenizer_json.is_empty())
    }

    /// Makes the folder, and waits until no other process compiles into it. `on_wait` is called before a wait. The lock ends when
    /// the file is dropped.
    ///
    /// # Errors
    /// When the folder cannot be made or locked.
    pub fn lock(&self, on_wait: impl FnOnce()) -> Result<File, CliError> {
        let lock = || {
            fs::create_dir_all(&self.folder)?;
            let folder = File::open(&self.folder)?;
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    on_wait();
                    flock(&folder, FlockOperation::LockExclusive)?;
                }
                other => other?,
            }
            Ok(folder)
        };
        lock().map_err(|error: std::io::Error| CliError::at(&self.folder, error))
    }

    /// Removes artifacts of the same source from before it changed, or of another version of the compiler. A process that
    /// runs one keeps it: the file is mapped.
    pub fn remove_older(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_version = entry.file_name().to_str().is_some_and(|name| {
                name.strip_prefix(&self.prefix).is_some_and(|version| version.ends_with(".unicorn"))
            });
            if is_version && path != self.path {
                // A file that cannot be removed only takes space.
                let _ = fs::remove_file(tuning_file::path_for(&path));
                let _ = fs::remove_file(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(folder: &Path, version: &str) -> CachedModel {
        let identity = Identity { place: "01ab".into(), version: version.into() };
        CachedModel::new(folder.to_owned(), "smol", "llvmpipe", &identity)
    }

    #[test]
    fn only_older_versions_of_the_same_source_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (cached(folder.path(), "1"), cached(folder.path(), "2"));
        let others = ["smol.llvmpipe.02.1.unicorn", "smol.rdna3.01ab.1.unicorn", "smol.llvmpipe.01ab.1.txt"];
        let tuning = tuning_file::path_for(old.path());
        for path in others.iter().map(|name| folder.path().join(name)).chain([old.path().into(), new.path().into()]) {
            fs::write(path, "").unwrap();
        }
        fs::write(&tuning, "").unwrap();
        new.remove_older();
        assert!(!old.path().exists() && !tuning.exists() && new.path().exists());
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
    }

    #[test]
    fn a_file_that_is_no_artifact_is_compiled_again() {
        let folder = tempfile::tempdir().unwrap();
        let cached = cached(folder.path(), "1");
        assert_eq!(cached.has_tokenizer(), None);
        fs::write(cached.path(), "cut").unwrap();
        assert_eq!(cached.has_tokenizer(), None);
    }

    #[test]
    fn a_second_process_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let cached = cached(&folder.path().join("models"), "1");
        let first = cached.lock(|| panic!("no other process has it")).unwrap();
        std::thread::scope(|scope| {
            let (waits, waiting) = std::sync::mpsc::channel();
            let second = scope.spawn(|| cached.lock(move || waits.send(()).unwrap()).is_ok());
            waiting.recv().unwrap();
            assert!(!second.is_finished());
            drop(first);
            assert!(second.join().unwrap());
        });
    }
}
