//! The artifacts that were pulled, shared by all programs of a user.
//!
//! ```text
//! $XDG_DATA_HOME/unicorn/
//!   names/HASH.json        a reference and the artifact that it leads to
//!   artifacts/ID.unicorn   an artifact under the hash of its header, which covers all of its content
//!   artifacts/ID.json      its origin, and the place of each layer in it, from which a later pull copies equal layers
//!   partial/KEY.unicorn    an artifact that is being pulled, or whose pull was interrupted
//! ```
//!
//! Every file gets its name when it is whole, by a rename, under a lock on the folder that is held briefly. A process that runs an
//! artifact keeps it, even if it is removed meanwhile: the file is mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use unicorn_artifact::write::new_file_permissions;

use crate::error::RegistryError;
use crate::sha256;

const ARTIFACTS: &str = "artifacts";
const NAMES: &str = "names";
const PARTIAL: &str = "partial";
/// More bytes than any record has.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// A folder of artifacts.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// An artifact under one of its names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// Reference by which it was pulled.
    pub reference: String,
    /// Hash of its header: equal for equal bytes.
    pub id: String,
    /// The file.
    pub path: PathBuf,
    /// Length of the file.
    pub bytes: u64,
    /// Targets that it has kernels for.
    pub targets: Vec<String>,
    /// Digest of the manifest that it was assembled from.
    pub manifest: String,
    /// File of its signature, of the file with the kernels of all targets.
    pub signature: Option<PathBuf>,
}

/// Result of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Number of removed artifacts, whole or partial.
    pub artifacts: usize,
    /// Bytes that become free, unless a process has the files open.
    pub bytes: u64,
}

/// A reference, and the artifact that it names.
#[derive(Serialize, Deserialize)]
struct Name {
    reference: String,
    artifact: String,
}

/// The record of a stored artifact.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub manifest: String,
    pub targets: Vec<String>,
    pub layers: Vec<StoredLayer>,
}

/// Place of a layer in a stored artifact.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredLayer {
    pub digest: String,
    pub offset_bytes: u64,
    pub size: u64,
}

impl Store {
    /// The user's store: `unicorn` in $XDG_DATA_HOME, or else in ~/.local/share; `None` without both. A relative path is ignored,
    /// as the XDG specification requires.
    pub fn of_user() -> Option<Store> {
        let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = folder("XDG_DATA_HOME").or_else(|| Some(folder("HOME")?.join(".local/share")))?;
        Some(Store::at(data.join("unicorn")))
    }

    /// A store in a folder, which is made when something is stored.
    pub fn at(folder: PathBuf) -> Store {
        Store { folder }
    }

    /// All named artifacts, by name. Records that cannot be read are skipped; `gc` removes their artifacts.
    pub fn list(&self) -> Vec<Stored> {
        let mut all: Vec<Stored> = self.names().into_iter().filter_map(|(_, name)| self.stored(name)).collect();
        all.sort_by(|one, other| one.reference.cmp(&other.reference));
        all
    }

    /// The artifact of a reference.
    pub fn find(&self, reference: &str) -> Option<Stored> {
        self.stored(read(&self.name_path(reference))?)
    }

    /// Removes a name, and the artifact if it has no other.
    ///
    /// # Errors
    /// When nothing has this name, or it cannot be removed.
    pub fn remove(&self, reference: &str) -> Result<Removed, RegistryError> {
        let _lock = self.lock()?;
        let path = self.name_path(reference);
        let name: Name = read(&path).ok_or_else(|| RegistryError::NotStored(reference.into()))?;
        fs::remove_file(&path).map_err(RegistryError::io(&path))?;
        let is_named = self.names().iter().any(|(_, other)| other.artifact == name.artifact);
        if is_named { Ok(Removed::default()) } else { self.remove_artifact(&name.artifact) }
    }

    /// Removes artifacts without a name and files of interrupted pulls. Files of a running pull are kept.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn gc(&self) -> Result<Removed, RegistryError> {
        let mut removed = Removed::default();
        if !self.folder.exists() {
            return Ok(removed);
        }
        let _lock = self.lock()?;
        let mut named = BTreeSet::new();
        for (path, name) in self.names() {
            if self.artifact_path(&name.artifact).is_file() {
                named.insert(name.artifact);
            } else {
                fs::remove_file(&path).map_err(RegistryError::io(&path))?;
            }
        }
        let id = |path: &Path| Some(path.file_name()?.to_str()?.split('.').next()?.to_owned());
        let unnamed: BTreeSet<String> =
            entries(&self.folder.join(ARTIFACTS)).iter().filter_map(|path| id(path)).collect();
        for id in unnamed.difference(&named) {
            removed.add(self.remove_artifact(id)?);
        }
        for path in entries(&self.folder.join(PARTIAL)) {
            let is_idle =
                File::open(&path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok());
            if is_idle {
                removed.add(Removed { artifacts: 1, bytes: allocated(&path) });
                fs::remove_file(&path).map_err(RegistryError::io(&path))?;
            }
        }
        Ok(removed)
    }

    /// Path of the artifact with this ID.
    pub(crate) fn artifact_path(&self, id: &str) -> PathBuf {
        self.folder.join(ARTIFACTS).join(format!("{id}.unicorn"))
    }

    /// A stored artifact that was assembled from a manifest for these targets.
    pub(crate) fn assembled(&self, manifest: &str, targets: &[String]) -> Option<String> {
        let mut records = self.records().into_iter();
        let is_it = |record: &Record| record.manifest == manifest && record.targets == targets;
        records.find_map(|(id, record)| (is_it(&record) && self.artifact_path(&id).is_file()).then_some(id))
    }

    /// Place of each layer in the store's artifacts, by digest.
    pub(crate) fn layers(&self) -> BTreeMap<String, (PathBuf, StoredLayer)> {
        let mut found = BTreeMap::new();
        for (id, record) in self.records() {
            let path = self.artifact_path(&id);
            found.extend(record.layers.into_iter().map(|layer| (layer.digest.clone(), (path.clone(), layer))));
        }
        found
    }

    /// A file for an artifact that is being assembled, locked for this process: that of an interrupted pull with the same key, or a
    /// new one. `on_wait` is called before a wait for another process.
    pub(crate) fn partial(&self, key: &str, on_wait: &dyn Fn()) -> Result<(PathBuf, File), RegistryError> {
        let folder = self.folder.join(PARTIAL);
        make(&folder)?;
        let path = folder.join(format!("{key}.unicorn"));
        let lock = || loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                on_wait();
                flock(&file, FlockOperation::LockExclusive)?;
            }
            // The other process may have given it its final name meanwhile.
            if fs::metadata(&path).is_ok_and(|found| is_same(&found, &file)) {
                return Ok(file);
            }
        };
        let file = lock().map_err(RegistryError::io(&path))?;
        Ok((path, file))
    }

    /// Moves an assembled artifact from `partial` to its place (`None`: it is there), and gives it its name.
    pub(crate) fn keep(
        &self,
        partial: Option<&Path>,
        signature: Option<&[u8]>,
        id: &str,
        reference: &str,
        record: &Record,
    ) -> Result<Stored, RegistryError> {
        make(&self.folder.join(ARTIFACTS))?;
        make(&self.folder.join(NAMES))?;
        let _lock = self.lock()?;
        let path = self.artifact_path(id);
        if let Some(partial) = partial {
            write(&self.record_path(id), record)?;
            signature.map_or(Ok(()), |bundle| write_bytes(&signature_of(&path), bundle))?;
            fs::rename(partial, &path).map_err(RegistryError::io(&path))?;
        }
        let name = Name { reference: reference.into(), artifact: id.into() };
        write(&self.name_path(reference), &name)?;
        self.stored(name).ok_or_else(|| RegistryError::NotStored(reference.into()))
    }

    /// Free bytes of the file system; `None`: it does not report them.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.folder).ok()?;
        (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// The folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn stored(&self, name: Name) -> Option<Stored> {
        let path = self.artifact_path(&name.artifact);
        let bytes = fs::metadata(&path).ok()?.len();
        let record: Record = read(&self.record_path(&name.artifact))?;
        let Name { reference, artifact: id } = name;
        let signature = Some(signature_of(&path)).filter(|signature| signature.is_file());
        Some(Stored { reference, id, path, bytes, targets: record.targets, manifest: record.manifest, signature })
    }

    fn names(&self) -> Vec<(PathBuf, Name)> {
        entries(&self.folder.join(NAMES)).into_iter().filter_map(|path| Some((path.clone(), read(&path)?))).collect()
    }

    fn records(&self) -> Vec<(String, Record)> {
        let ids = entries(&self.folder.join(ARTIFACTS)).into_iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let id = name.strip_suffix(".json").filter(|id| !id.contains('.'))?.to_owned();
            Some((id, read(&path)?))
        });
        ids.collect()
    }

    /// The artifact, its record, and files beside it, such as a tuning.
    fn remove_artifact(&self, id: &str) -> Result<Removed, RegistryError> {
        let mut removed = Removed::default();
        let begin = format!("{id}.");
        for path in entries(&self.folder.join(ARTIFACTS)) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(&begin) {
                let is_artifact = name.ends_with(".unicorn");
                removed.add(Removed { artifacts: is_artifact.into(), bytes: allocated(&path) });
                fs::remove_file(&path).map_err(RegistryError::io(&path))?;
            }
        }
        Ok(removed)
    }

    fn name_path(&self, reference: &str) -> PathBuf {
        let digest = sha256::digest(reference.as_bytes());
        let hash = sha256::digits(&digest).expect("it was just made");
        self.folder.join(NAMES).join(format!("{hash}.json"))
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.folder.join(ARTIFACTS).join(format!("{id}.json"))
    }

    /// Locks names and artifacts against other processes until the file is dropped.
    fn lock(&self) -> Result<File, RegistryError> {
        make(&self.folder)?;
        let lock = || {
            let folder = File::open(&self.folder)?;
            flock(&folder, FlockOperation::LockExclusive)?;
            Ok(folder)
        };
        lock().map_err(RegistryError::io(&self.folder))
    }
}

impl Removed {
    fn add(&mut self, other: Removed) {
        self.artifacts += other.artifacts;
        self.bytes += other.bytes;
    }
}

/// Path of the signature of the artifact at `path`.
pub fn signature_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

/// Writes the artifact at `path` to a file of the user, whole or not at all. File systems that can share blocks do so instead of
/// copying them.
///
/// # Errors
/// Errors of the file system.
pub fn copy_to(path: &Path, output: &Path) -> Result<(), RegistryError> {
    // A link is kept: the file that it points to is replaced.
    let output = &output.canonicalize().unwrap_or(output.to_owned());
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let copy = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        io::copy(&mut File::open(path)?, file.as_file_mut())?;
        file.as_file().set_permissions(new_file_permissions())?;
        file.persist(output).map_err(|error| error.error)?;
        Ok(())
    };
    copy().map_err(RegistryError::io(output))
}

fn make(folder: &Path) -> Result<(), RegistryError> {
    fs::create_dir_all(folder).map_err(RegistryError::io(folder))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes =
        fs::metadata(path).ok().filter(|found| found.len() <= MAX_RECORD_BYTES).and_then(|_| fs::read(path).ok())?;
    serde_json::from_slice(&bytes).ok()
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), RegistryError> {
    write_bytes(path, &serde_json::to_vec(value).expect("records are plain data"))
}

fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), RegistryError> {
    let folder = path.parent().expect("a record lies in a folder");
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(RegistryError::io(path))
}

fn is_same(found: &fs::Metadata, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
}

/// Bytes that a file takes on the disk.
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map_or(0, |found| found.blocks() * 512)
}
