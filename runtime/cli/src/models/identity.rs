//! Which source, target and compiler an artifact in the cache is of.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use unicorn_artifact::hash::hash_parts;
use unicorn_compiler::{CompileOptions, SOURCES};

/// The compiler is part of this program and has its version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Names an artifact in the cache, in two parts: artifacts of the same `place` follow each other, those of the same `version` are
/// equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Hash of the source's path and of the compile options.
    pub place: String,
    /// Hash of the files that are compiled, and of the compiler's version and sources.
    pub version: String,
}

impl Identity {
    /// Identity of the model at `source`, compiled with `options`. File contents are not read: names, sizes and times of change
    /// represent them.
    ///
    /// # Errors
    /// When the source cannot be listed.
    pub fn of(source: &Path, options: &CompileOptions) -> io::Result<Identity> {
        let source = fs::canonicalize(source)?;
        let place = format!("{options:?}");
        let mut version = format!("{VERSION} {SOURCES}\n").into_bytes();
        let projector = options.projector.as_deref().map(files).transpose()?;
        for (name, metadata) in files(&source)?.into_iter().chain(projector.into_iter().flatten()) {
            version.extend(name);
            let changed = (metadata.mtime(), metadata.mtime_nsec(), metadata.ino());
            version.extend(format!("\n{} {changed:?}\n", metadata.len()).into_bytes());
        }
        Ok(Identity {
            place: short(hash_parts([source.as_os_str().as_bytes(), place.as_bytes()])),
            version: short(hash_parts([&version[..]])),
        })
    }
}

/// The file itself, or the files of a folder, in the order of their names. A link counts as its target: Hugging Face's
/// cache is made of links.
fn files(source: &Path) -> io::Result<Vec<(Vec<u8>, Metadata)>> {
    if !source.is_dir() {
        return Ok(vec![(Vec::new(), fs::metadata(source)?)]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        // A link without a target is not a file of the model.
        if let Ok(metadata) = fs::metadata(entry.path())
            && metadata.is_file()
        {
            files.push((entry.file_name().as_bytes().to_vec(), metadata));
        }
    }
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files)
}

/// Enough of a hash to distinguish a user's models.
fn short(hash: [u8; 32]) -> String {
    hash[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_changed_source_has_another_version_at_the_same_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        fs::write(&file, "{}").unwrap();
        let options = CompileOptions::default();
        let identity = || Identity::of(folder.path(), &options).unwrap();
        let first = identity();
        assert_eq!(identity(), first);

        fs::write(&file, "{ }").unwrap();
        let longer = identity();
        assert_ne!(longer.version, first.version);
        let later = SystemTime::now() + Duration::from_secs(3);
        fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        assert_ne!(identity().version, longer.version);
        fs::write(folder.path().join("more.safetensors"), "").unwrap();
        let with_more = identity();
        fs::rename(folder.path().join("more.safetensors"), folder.path().join("other.safetensors")).unwrap();
        assert_ne!(identity().version, with_more.version);
        assert_eq!(identity().place, first.place);
    }

    #[test]
    fn another_path_or_other_options_have_another_place() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one.gguf"), folder.path().join("other.gguf"));
        fs::write(&one, "GGUF").unwrap();
        fs::write(&other, "GGUF").unwrap();
        let mut options = CompileOptions::default();
        let first = Identity::of(&one, &options).unwrap();
        assert_ne!(Identity::of(&other, &options).unwrap().place, first.place);
        options.targets.truncate(1);
        assert_ne!(Identity::of(&one, &options).unwrap().place, first.place);
        options.projector = Some(other.clone());
        let beside = Identity::of(&one, &options).unwrap();
        fs::write(&other, "GGUF, changed").unwrap();
        let changed = Identity::of(&one, &options).unwrap();
        assert!(changed.place == beside.place && changed.version != beside.version);
        // However the path is written.
        let around = folder.path().join(".").join("one.gguf");
        assert_eq!(Identity::of(&around, &CompileOptions::default()).unwrap(), first);
    }
}
