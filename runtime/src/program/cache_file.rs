//! One file of bytes that a later start may find useful and never needs: what is damaged, foreign or cannot be written is
//! as good as nothing.
//!
//! ```text
//!  0 ┌───────┐ magic, with the version of this layout
//! 16 ├───────┤ key: whose bytes these are
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
/// More than any driver writes for one model's kernels.
const MAX_BYTES: u64 = 256 << 20;

/// Where the bytes lie, and the key without which they are another's.
pub struct CacheFile {
    pub path: PathBuf,
    pub key: [u8; 32],
}

impl CacheFile {
    /// The bytes that were last written under this key; `None` if there is no file.
    ///
    /// # Errors
    /// Says why a file that is there is of no use.
    pub fn read(&self) -> Result<Option<Vec<u8>>, String> {
        let bytes = match read_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.says(error)),
            Ok(bytes) => bytes,
        };
        let Some((header, content)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(self.says(format!("has {} bytes, expected at least {HEADER_BYTES}", bytes.len())));
        };
        if &header[..16] != MAGIC {
            return Err(self.says("is no cache of this version"));
        }
        if header[16..48] != self.key {
            return Err(self.says("belongs to another driver or to other kernels"));
        }
        if header[48..] != hash_parts([content]) {
            return Err(self.says("is damaged: its hash is not that of its bytes"));
        }
        Ok(Some(content.to_vec()))
    }

    /// Puts `content` in place of what is there, in one step: nobody ever sees half of it.
    ///
    /// # Errors
    /// Says why it could not be written; what was there before still is, and nothing else is left behind.
    pub fn write(&self, content: &[u8]) -> Result<(), String> {
        let partial = self.path.with_extension(format!("{}.partial", std::process::id()));
        let written = write_file(&partial, &[MAGIC, &self.key, &hash_parts([content]), content])
            .and_then(|()| std::fs::rename(&partial, &self.path));
        written.map_err(|error| {
            // It may not have come into being; what matters is the first error.
            let _ = std::fs::remove_file(&partial);
            self.says(error)
        })
    }

    fn says(&self, what: impl std::fmt::Display) -> String {
        format!("{}: {what}", self.path.display())
    }
}

/// A regular file of bounded size: a pipe would never end, and a device might not.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other(format!("is not a file of at most {MAX_BYTES} bytes")));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// On disk when it returns, so that a rename cannot overtake the bytes.
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
    fn another_key_is_another_owner() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        file.write(b"bytes").unwrap();
        let other = CacheFile { key: [8; 32], ..file };
        assert!(other.read().unwrap_err().contains("belongs to another driver"));
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let endless = CacheFile { path: "/dev/zero".into(), key: [0; 32] };
        assert!(endless.read().unwrap_err().contains("is not a file"));
        let a_folder = CacheFile { path: folder.path().to_owned(), key: [0; 32] };
        assert!(a_folder.read().is_err());
    }

    #[test]
    fn what_cannot_be_written_leaves_all_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let no_folder = folder.path().join("a file");
        std::fs::write(&no_folder, "mine").unwrap();
        assert!(file_in(&no_folder).write(b"bytes").is_err());
        assert_eq!(std::fs::read(&no_folder).unwrap(), b"mine");
        // A folder in the file's place: the last step, the rename, is what fails.
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
