//! The folder that the hub's programs share.
//!
//! ```text
//! $HF_HUB_CACHE/models--OWNER--NAME/
//!   refs/REVISION              the commit that a branch or tag led to
//!   blobs/HASH                 a file, under the hash by which the hub names it
//!   blobs/HASH.incomplete      the part of it that was received
//!   snapshots/COMMIT/FILE      a link to its blob
//! $HF_HUB_CACHE/.locks/models--OWNER--NAME/HASH.lock    of the process that fetches it
//! ```

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use unicorn_artifact::account::size;

use crate::error::RegistryError;
use crate::hub::client::HubFile;
use crate::hub::reference::HubReference;
use crate::hub::select::{INDEX, Kind, Selection, parts_of};
use crate::hub::settings::HubSettings;

/// Most folders in a path of a model's file.
const MAX_DEPTH: usize = 4;
/// More bytes than any index of weights has.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// The part of the cache for one repository.
pub struct Cache {
    folder: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub fn of(reference: &HubReference, settings: &HubSettings) -> Cache {
        let name = format!("models--{}--{}", reference.owner(), reference.name());
        Cache { folder: settings.cache.join(&name), locks: settings.cache.join(".locks").join(name) }
    }

    /// The commit that a revision led to when it was fetched.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        let is_commit = |text: &str| text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let found = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(found.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    pub fn set_commit(&self, revision: &str, commit: &str) -> Result<(), RegistryError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        let folder = parent(&path);
        let write = || {
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(commit.as_bytes())?;
            file.persist(&path).map_err(|error| error.error)
        };
        write().map(drop).map_err(RegistryError::io(&path))
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Existing files of a snapshot, as paths within it.
    pub fn names(&self, commit: &str) -> Vec<String> {
        let mut names = Vec::new();
        collect(&self.snapshot(commit), "", MAX_DEPTH, &mut names);
        names.sort();
        names
    }

    /// Whether a snapshot has all of a model; another program may have fetched only some of its files.
    pub fn is_complete(&self, commit: &str, selection: &Selection) -> bool {
        let has = |name: &str| selection.files.contains(name);
        match selection.kind {
            Kind::Artifact => true,
            Kind::Gguf => selection.files.len() == parts_of(&selection.main),
            Kind::Safetensors => {
                let weights = weights_of(&self.snapshot(commit).join(INDEX));
                has("tokenizer.json") && weights.map_or(!has(INDEX), |names| names.iter().all(|name| has(name)))
            }
        }
    }

    pub fn blob(&self, file: &HubFile) -> PathBuf {
        self.folder.join("blobs").join(file.hash.digits())
    }

    /// Whether a file is there; it gets its name only when its hash is correct.
    pub fn has(&self, file: &HubFile) -> bool {
        fs::metadata(self.blob(file)).is_ok_and(|found| found.is_file() && found.len() == file.size)
    }

    /// The part of a file that was received before, locked for this process until the lock is dropped.
    pub fn incomplete(&self, file: &HubFile, on_wait: &dyn Fn()) -> Result<(PathBuf, File, File), RegistryError> {
        let lock_path = self.locks.join(format!("{}.lock", file.hash.digits()));
        let lock = || {
            fs::create_dir_all(&self.locks)?;
            let lock = File::options().write(true).create(true).truncate(false).open(&lock_path)?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                on_wait();
                flock(&lock, FlockOperation::LockExclusive)?;
            }
            Ok(lock)
        };
        let lock = lock().map_err(RegistryError::io(&lock_path))?;
        let mut path = self.blob(file).into_os_string();
        path.push(".incomplete");
        let path = PathBuf::from(path);
        let open = || {
            fs::create_dir_all(parent(&path))?;
            File::options().read(true).write(true).create(true).truncate(false).open(&path)
        };
        let opened = open().map_err(RegistryError::io(&path))?;
        Ok((path, opened, lock))
    }

    /// Gives a file its name in a snapshot.
    pub fn link(&self, commit: &str, file: &HubFile) -> Result<(), RegistryError> {
        let path = self.snapshot(commit).join(&file.name);
        let up = "../".repeat(2 + file.name.matches('/').count());
        let target = format!("{up}blobs/{}", file.hash.digits());
        let link = || {
            fs::create_dir_all(parent(&path))?;
            if fs::read_link(&path).is_ok_and(|found| found == Path::new(&target)) {
                return Ok(());
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            match std::os::unix::fs::symlink(&target, &path) {
                // Another process made it meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                other => other,
            }
        };
        link().map_err(RegistryError::io(&path))
    }

    pub fn check_space(&self, files: &[&HubFile]) -> Result<(), RegistryError> {
        fs::create_dir_all(&self.folder).map_err(RegistryError::io(&self.folder))?;
        let needed: u64 = files.iter().filter(|file| !self.has(file)).map(|file| file.size).sum();
        let Ok(found) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if found.f_blocks == 0 || free >= needed {
            return Ok(());
        }
        let folder = self.folder.clone();
        Err(RegistryError::HubSpace { folder, needed: size(needed), free: size(free) })
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

fn collect(folder: &Path, begin: &str, depth: usize, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_dir() && depth > 1 {
            collect(&path, &format!("{begin}{name}/"), depth - 1, names);
        } else if path.is_file() {
            names.push(format!("{begin}{name}"));
        }
    }
}

/// Files that an index of weights names; `None`: there is no index that can be read.
fn weights_of(index: &Path) -> Option<Vec<String>> {
    let bytes =
        fs::metadata(index).ok().filter(|found| found.len() <= MAX_INDEX_BYTES).and_then(|_| fs::read(index).ok())?;
    let index: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    let names = index.get("weight_map")?.as_object()?.values();
    names.map(|name| name.as_str().map(str::to_owned)).collect()
}
