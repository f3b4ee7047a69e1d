//! A file with cached bytes, identified by a key and protected by a hash: damaged and foreign files count as absent.
//!
//! ```text
//!  0 ┌───────┐ magic, with the version of this layout
//! 16 ├───────┤ key: what the bytes belong to
//! 48 ├───────┤ BLAKE3 of the bytes
//! 80 ├───────┤ the bytes
//!    └───────┘
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use unicorn_artifact::hash::hash_parts;

const MAGIC: &[u8; 16] = b"unicorn cache 1\n";
const HEADER_BYTES: usize = 80;
/// Largest file that is read: more than any driver writes for one model's kernels.
const MAX_BYTES: u64 = 256 << 20;

/// A cache file and the key that its contents must have.
pub struct CacheFile {
    pub path: PathBuf,
    pub key: [u8; 32],
}

impl CacheFile {
    /// The bytes; `None` if there is no file.
    ///
    /// # Errors
    /// Why an existing file cannot be used.
    pub fn read(&self) -> Result<Option<Vec<u8>>, String> {
        let bytes = match read_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.error(error)),
            Ok(bytes) => bytes,
        };
        let Some((header, content)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(self.error(format!("has {} bytes, expected at least {HEADER_BYTES}", bytes.len())));
        };
        if &header[..16] != MAGIC {
            return Err(self.error("is no cache of this version"));
        }
        if header[16..48] != self.key {
            return Err(self.error("belongs to another driver or to other kernels"));
        }
        if header[48..] != hash_parts([content]) {
            return Err(self.error("is damaged: its hash is not that of its bytes"));
        }
        Ok(Some(content.to_vec()))
    }

    /// Replaces the file by `content`, atomically.
    ///
    /// # Errors
    /// Why it could not be written; the old file is unchanged then, and no other file is left behind.
    pub fn write(&self, content: &[u8]) -> Result<(), String> {
        let partial = self.path.with_extension(format!("{}.partial", std::process::id()));
        let written = write_file(&partial, &[MAGIC, &self.key, &hash_parts([content]), content])
            .and_then(|()| std::fs::rename(&partial, &self.path));
        written.map_err(|error| {
            // The partial file may not exist; the first error is the one to report.
            let _ = std::fs::remove_file(&partial);
            self.error(error)
        })
    }

    fn error(&self, what: impl std::fmt::Display) -> String {
        format!("{}: {what}", self.path.display())
    }
}

/// Reads a regular file of bounded size: pipes and devices may never end.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other(format!("is not a file of at most {MAX_BYTES} bytes")));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes and syncs, so that the rename that follows cannot reach the disk before the bytes.
fn write_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = File::create(path)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_in(folder: &Path) -> CacheFile {
        CacheFile { path: folder.join("deep/er/one.cache"), key: [7; 32] }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        assert_eq!(file.read(), Ok(None));
        file.write(b"first").unwrap();
        file.write(b"second").unwrap();
        assert_eq!(file.read(), Ok(Some(b"second".to_vec())));
        assert_eq!(std::fs::read_dir(file.path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        file.write(b"some bytes").unwrap();
        let sound = std::fs::read(&file.path).unwrap();
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            std::fs::write(&file.path, damaged).unwrap();
            assert!(file.read().is_err(), "byte {at}");
        }
        for len in 0..sound.len() {
            std::fs::write(&file.path, &sound[..len]).unwrap();
            assert!(file.read().is_err(), "cut to {len} bytes");
        }
        std::fs::write(&file.path, [sound.as_slice(), b"more"].concat()).unwrap();
        assert!(file.read().is_err());
    }

    #[test]
    fn a_file_with_another_key_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        file.write(b"bytes").unwrap();
        let other = CacheFile { key: [8; 32], ..file };
        assert!(other.read().unwrap_err().contains("belongs to another driver"));
    }

    #[test]
    fn what_is_no_regular_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let endless = CacheFile { path: "/dev/zero".into(), key: [0; 32] };
        assert!(endless.read().unwrap_err().contains("is not a file"));
        let a_folder = CacheFile { path: folder.path().to_owned(), key: [0; 32] };
        assert!(a_folder.read().is_err());
    }

    #[test]
    fn a_failed_write_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let no_folder = folder.path().join("a file");
        std::fs::write(&no_folder, "mine").unwrap();
        assert!(file_in(&no_folder).write(b"bytes").is_err());
        assert_eq!(std::fs::read(&no_folder).unwrap(), b"mine");
        // A folder in the file's place makes the last step, the rename, fail.
        let file = CacheFile { path: folder.path().join("taken"), key: [0; 32] };
        std::fs::create_dir(&file.path).unwrap();
        assert!(file.write(b"bytes").is_err());
        let mut left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a file", "taken"]);
    }

    #[test]
    fn a_full_disk_leaves_nothing_behind() {
        // Every write to /dev/full fails as on a full disk.
        let error = write_file(Path::new("/dev/full"), &[b"bytes"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
